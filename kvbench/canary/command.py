"""What `kvbench gate` does: file, reader and state put together, watched or rehearsed, shown and written down."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from kvbench.canary.gate import DEFAULT_EVERY_S, Gate, Look, Times, make_reader
from kvbench.canary.health import clock
from kvbench.canary.rehearsal import Rehearsal, Rehearsed
from kvbench.canary.serve import GateServer, Seen, finite, parse_address, verdict_document
from kvbench.canary.state import StateStore, default_directory
from kvbench.canary.verdict import CanaryVerdict
from kvbench.errors import InputError
from kvbench.interrupts import raise_if_stopped
from kvbench.record.atomic import write_text
from kvbench.report.gate import GateView, render_gate_junit, render_gate_markdown, show_gate
from kvbench.report.rollback import render_rehearsal_junit, render_rehearsal_markdown, show_rehearsal
from kvbench.report.streams import say
from kvbench.spec.bounds import TIME, check_option
from kvbench.spec.canary import LoadedCanary, load_canary
from kvbench.spec.quantity import parse_quantity

__all__ = ["Asked", "run_gate", "run_rehearsal"]

SHORTEST_S = 1.0
"""Between two looks."""
REHEARSAL_EVERY_S = 2.0
"""A rehearsal looks more often: the time without service is known no finer than that."""


@dataclass(frozen=True)
class Asked:
    """The command line."""

    canary: Path
    once: bool = False
    for_: str | None = None
    every: str | None = None
    junit: Path | None = None
    markdown: Path | None = None
    serve: str | None = None
    state: Path | None = None


def run_gate(asked: Asked, console: Console, *, as_json: bool) -> tuple[CanaryVerdict, dict[str, object]]:
    """The verdict and its document. Files that were asked for are written before it returns."""
    times = Times(_for(asked), _every(asked, DEFAULT_EVERY_S))
    if asked.once and asked.serve is not None:
        raise InputError("--once ends after one look, and --serve goes on; give one of them")
    address = None if asked.serve is None else parse_address(asked.serve)
    _check_folders(asked)
    loaded = load_canary(asked.canary)
    with ExitStack() as stack:
        reader = make_reader(loaded)
        stack.callback(reader.close)
        store = StateStore(asked.state or default_directory(loaded.canary), loaded.canary)
        stack.callback(store.close)
        gate = Gate(loaded, reader, store, times, keeps_verdict=address is not None)
        server = None
        if address is not None:
            armed = loaded.canary.on_breach.armed
            server = GateServer(*address, loaded.canary.name, every_s=times.every_s, armed=armed)
            stack.enter_context(server)
            say(console, f"serving {server.address}/verdict, /healthz and /metrics")
        verdict = _watched(gate, server, console, once=asked.once)
        _write(asked, loaded, verdict)
        if not as_json:
            show_gate(console, verdict)
        gate.delivered()
        if server is not None:
            _serve_on(server, gate, verdict)
    return verdict, verdict_document(verdict)


def run_rehearsal(asked: Asked, console: Console, *, as_json: bool) -> tuple[Rehearsed, dict[str, object]]:
    """What the rehearsal found and its document. Files that were asked for are written before it returns."""
    if asked.once or asked.serve is not None:
        other = "--once" if asked.once else "--serve"
        raise InputError(f"--rehearse runs the hook and ends when it is proven; leave out {other}")
    _check_folders(asked)
    loaded = load_canary(asked.canary)
    before_s, every_s = _for(asked), _every(asked, REHEARSAL_EVERY_S)
    with ExitStack() as stack:
        reader = make_reader(loaded)
        stack.callback(reader.close)
        directory = asked.state or default_directory(loaded.canary)
        # Held so that no gate watches meanwhile and calls the rehearsal a breach.
        for each in (directory, directory / "rehearsal"):
            store = StateStore(each, loaded.canary)
            stack.callback(store.close)
        rehearsal = Rehearsal(loaded, reader, store, before_s=before_s, every_s=every_s)
        found = rehearsal.run(lambda line: say(console, line))
    if asked.junit is not None:
        write_text(asked.junit, render_rehearsal_junit(found))
    if asked.markdown is not None:
        write_text(asked.markdown, render_rehearsal_markdown(found))
    if not as_json:
        show_rehearsal(console, found)
    return found, finite(found.model_dump(mode="json", by_alias=True))


def _for(asked: Asked) -> float | None:
    return None if asked.for_ is None else _seconds("--for", asked.for_)


def _every(asked: Asked, default_s: float) -> float:
    return default_s if asked.every is None else _seconds("--every", asked.every)


def _check_folders(asked: Asked) -> None:
    for file in (asked.junit, asked.markdown):
        if file is not None and not file.parent.is_dir():
            raise InputError(f"there is no folder {file.parent} to write {file.name} to")


def _seconds(option: str, text: str) -> float:
    try:
        amount = parse_quantity(text, "seconds")
    except ValueError as error:
        raise InputError(f"{option}: {error}") from error
    if amount < SHORTEST_S:
        raise InputError(f"{option}: {text} is too short; the least is {SHORTEST_S:g} s")
    return check_option(option, amount, TIME, text)


def _watched(gate: Gate, server: GateServer | None, console: Console, *, once: bool) -> CanaryVerdict:
    resumed = False
    with GateView(console) as view:

        def on_look(look: Look) -> None:
            nonlocal resumed
            if gate.resumed and not resumed:
                resumed = True
                say(console, "going on with the watch that an earlier gate began")
            view.look(look.verdict, look.failure)
            if server is not None:
                server.show(_seen(server.seen, gate, look.verdict))

        verdict = gate.once(on_look) if once else gate.watch(on_look)
    if gate.stands is not None:
        until = "" if gate.stands.until_s is None else f" until {clock(gate.stands.until_s)}"
        say(
            console,
            f"this watch has ended before; its verdict stands{until}, and no hook is run. "
            "A changed file, or another --state, begins a new watch",
        )
    return verdict


def _seen(before: Seen, gate: Gate, verdict: CanaryVerdict, *, ended: bool = False) -> Seen:
    return replace(
        before,
        verdict=verdict,
        reads_done=gate.feed.reads_done,
        reads_failed=gate.feed.reads_failed,
        last_read_s=gate.feed.last_read_s,
        ended=ended,
    )


def _serve_on(server: GateServer, gate: Gate, verdict: CanaryVerdict) -> None:
    """The verdict stays to be asked for until a signal ends the command."""
    server.show(_seen(server.seen, gate, verdict, ended=True))
    while True:
        time.sleep(0.5)
        raise_if_stopped()


def _write(asked: Asked, loaded: LoadedCanary, verdict: CanaryVerdict) -> None:
    if asked.junit is not None:
        write_text(asked.junit, render_gate_junit(verdict, loaded.canary.name))
    if asked.markdown is not None:
        write_text(asked.markdown, render_gate_markdown(verdict, loaded.canary.name))
