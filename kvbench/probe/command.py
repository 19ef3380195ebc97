"""`kvbench probe` from end to end: start the engine, probe, stop it, write what was found."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from kvbench import __version__
from kvbench.compare.preflight import check_host
from kvbench.compare.round import make_launch
from kvbench.compare.start import host_facts
from kvbench.engine.base import Effective, Endpoint
from kvbench.engine.create import create_engine
from kvbench.errors import EngineError
from kvbench.probe.counters import Counters
from kvbench.probe.decode import record_decode
from kvbench.probe.line import Line
from kvbench.probe.result import Result, break_evens, document, points_of, result_of
from kvbench.probe.sender import Background, Sender
from kvbench.probe.series import Series, record_series, settle_s
from kvbench.probe.setting import Options, Room, choose_lengths, room_of
from kvbench.probe.suffix import record_suffixes
from kvbench.record.atomic import write_text
from kvbench.record.run_directory import RunDirectory, utc_now
from kvbench.spec.profile import Profile

__all__ = ["probe_and_check", "probe_profile"]

CHECK_SHARE = 0.3
"""Of the time, for running just below and just above the break-even lengths."""
CHECKS = 2
"""Times that the break-even is checked: the first may move it past where it ran; else the second adds to it."""
TELL_EVERY_S = 10.0
SERIES_APART = 1_000_000
"""Between the numbers of prompts of two series; none has so many."""

Progress = Callable[[str], None]


def probe_profile(
    profile: Profile, options: Options, out: Path, progress: Progress, *, group_s: float = 5.0
) -> tuple[dict[str, Any], Path]:
    """Probe and write `probe.json` and `probe.html`; the document and its folder. InputError before any start.

    `group_s`: samples closer together than this are not taken for independent.
    """
    from kvbench.report.probe import probe_page

    RunDirectory.check_writable(out)
    warnings = check_host([profile], progress)
    directory = RunDirectory.make_folder(out, f"probe-{profile.name}")
    began = utc_now()
    seed = secrets.randbits(32)
    with ExitStack() as stack:
        engine = create_engine(profile, make_launch(profile, directory, f"probe-{profile.name}"))
        stack.callback(engine.stop)
        endpoint = engine.start(progress)
        effective = engine.effective()
        if effective.differences:
            raise EngineError(f"{profile.name} does not run as asked: {'; '.join(effective.differences)}")
        room = room_of(profile, effective)
        lengths = choose_lengths(room, options.lengths)
        results, beside = _probe(endpoint, room, lengths, options, seed, progress, group_s)
    remarks = engine.remarks()
    for remark in remarks:
        progress(remark)
    found = {
        "schema": 1,
        "profile": profile.name,
        "emulated": profile.engine.kind == "emulated",
        **document(results[0], room, options),
        **beside,
        "under_load": None if len(results) == 1 else document(results[1], room, options),
        "background_per_s": options.background_per_s,
        "lengths": list(lengths),
        "conditions": _conditions(profile, effective, room, seed, began, [*warnings, *remarks]),
    }
    write_text(directory / "probe.json", json.dumps(found, indent=1, allow_nan=False) + "\n")
    write_text(directory / "probe.html", probe_page(found))
    return found, directory


def _conditions(
    profile: Profile, effective: Effective, room: Room, seed: int, began: str, warnings: list[str]
) -> dict[str, Any]:
    return {
        "kvbench": __version__,
        "began_utc": began,
        "host": host_facts(),
        "engine": {"kind": profile.engine.kind, "version": effective.version, "model": profile.engine.model},
        "device_tokens": room.device,
        "host_tokens": room.host,
        "disk": room.disk,
        "kv_bytes_per_token": room.kv_bytes_per_token,
        "unknown": list(effective.unknown),
        "launches": 1,
        "seed": seed,
        "warnings": warnings,
    }


def _probe(
    endpoint: Endpoint,
    room: Room,
    lengths: tuple[int, ...],
    options: Options,
    seed: int,
    progress: Progress,
    group_s: float,
) -> tuple[list[Result], dict[str, Any]]:
    """The series alone and, when asked, the one under load; and what a plan wants to know besides."""
    results: list[Result] = []
    with ExitStack() as stack:
        sender = Sender(endpoint, seed)
        stack.callback(sender.close)
        counters = Counters(endpoint)
        stack.callback(counters.close)
        sender.nudge()  # the connection stands, and what an engine prepares at its first request is prepared
        loads = [None] if options.background_per_s is None else [None, Background(options.background_per_s)]
        for load in loads:
            sender.background = load
            where = "alone" if load is None else f"beside {options.background_per_s:g} requests/s"
            results.append(
                probe_and_check(room, lengths, options, sender, counters, progress, where, len(results), group_s)
            )
            sender.quiet()
        progress("probing alone: longer suffixes, and steps while requests decode")
        number = (1 + CHECKS) * len(loads) * SERIES_APART
        behind = record_suffixes(sender, lengths, number)
        decoded = record_decode(sender, room, number + SERIES_APART)
    return results, {"suffixes": [asdict(each) for each in behind], "decode": [asdict(each) for each in decoded]}


def probe_and_check(
    room: Room,
    lengths: tuple[int, ...],
    options: Options,
    sender: Sender,
    counters: Counters,
    progress: Progress,
    where: str,
    index: int,
    group_s: float,
) -> Result:
    """One series and the checks of its break-even lengths; `index` keeps its prompts apart from other series'."""
    number = (1 + CHECKS) * index * SERIES_APART
    last = time.monotonic()

    def told(series: Series) -> None:
        nonlocal last
        if time.monotonic() - last >= TELL_EVERY_S:
            last = time.monotonic()
            progress(f"probing {where}: {_so_far(series)}")

    series = record_series(
        room,
        lengths,
        options,
        sender,
        counters,
        limit_s=options.limit_s * (1 - CHECK_SHARE),
        first_number=number,
        group_s=group_s,
        told=told,
    )
    result = result_of(series, room, options)
    line: Line | None = None
    for _ in range(CHECKS):
        sides = result.sides(room)
        beside = sorted({tokens for tier in sides.values() for tokens in tier.values()})
        if not beside or result.is_checked(sides, options.confidence):
            break
        progress(f"probing {where}: checking the break-even at {', '.join(map(str, beside))} tokens")
        checked_lengths = sorted({*beside, _pusher(result, lengths, room)})
        wanted = {source: source == "computed" or bool(sides.get(source)) for source in room.sources}
        if line is None or (line.lengths, line.asked) != (checked_lengths, wanted):
            line = Line(room, checked_lengths, dict(wanted))
            number += SERIES_APART
        checked = record_series(
            room,
            checked_lengths,
            options,
            sender,
            counters,
            limit_s=options.limit_s * CHECK_SHARE / CHECKS,
            wanted=wanted,
            line=line,
            first_number=number,
            group_s=group_s,
        )
        result.check_samples += checked.samples
        for tier, each in sides.items():
            for side, tokens in each.items():
                result.checked.setdefault(tier, {}).setdefault(tokens, side)
        result.break_even = break_evens(result.costs, points_of(result.samples, options.confidence), room)
    return result


def _pusher(result: Result, lengths: tuple[int, ...], room: Room) -> int:
    """The length that pushes others on fastest: whose tokens take least, until they are stored."""
    computed_s, _ = result.costs["computed"].at(np.asarray(lengths, np.float64))
    each = [(s + settle_s(room, tokens)) / tokens for s, tokens in zip(computed_s, lengths, strict=True)]
    return lengths[int(np.argmin(each))]


def _so_far(series: Series) -> str:
    counts = {source: len(series.of(source)) for source in dict.fromkeys(s.source for s in series.samples)}
    thrown = sum(series.thrown_away.values())
    kept = ", ".join(f"{count} {source}" for source, count in counts.items())
    return f"{kept or 'nothing yet'}" + (f"; {thrown} thrown away" if thrown else "")
