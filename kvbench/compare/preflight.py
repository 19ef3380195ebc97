"""Before anything starts: can every arm be started here, one at a time, and is there room for it?"""

from __future__ import annotations

from collections.abc import Sequence

from kvbench.access import request_headers, trust
from kvbench.doctor.check import Check
from kvbench.doctor.examine import essential
from kvbench.doctor.reading import read_essentials
from kvbench.engine.base import Progress
from kvbench.engine.create import render_profile
from kvbench.engine.traps import named_traps
from kvbench.engine.trtllm_engine import check_startable as check_trtllm
from kvbench.engine.vllm_engine import check_startable
from kvbench.errors import InputError, KeyPath, Where
from kvbench.spec.loading import where
from kvbench.spec.places import placed
from kvbench.spec.profile import EngineSpec, Profile

__all__ = ["check_host"]


def check_host(profiles: Sequence[Profile], progress: Progress) -> list[str]:
    """Warnings as sentences, which are shown, too. InputError names every failed check and what to do.

    What is wrong with a profile on any host comes before what this host lacks for it.
    """
    for profile in profiles:
        if profile.engine.kind != "attached":
            render_profile(profile)
    found = [(profile, check) for profile in profiles for check in _checks(profile)]
    failed = [(profile, check) for profile, check in found if check.status == "fail"]
    if failed:
        raise _refused(failed)
    for profile in profiles:
        with placed(profile):
            _check_startable(profile, progress)
    warnings = [f"{profile.name}: {check.text}" for profile, check in found if check.status == "warn"]
    warnings += named_traps(profiles)
    for warning in warnings:
        progress(f"note: {warning}")
    return warnings


def _check_startable(profile: Profile, progress: Progress) -> None:
    match profile.engine.kind:
        case "attached":
            request_headers(profile.engine.access)
            trust(profile.engine.access)
        case "vllm":
            check_startable(profile, progress)
        case "tensorrt-llm":
            check_trtllm(profile, progress)


def _refused(failed: Sequence[tuple[Profile, Check]]) -> InputError:
    """Arms that fail alike are named together, with the place of the first."""
    whose: dict[str, list[Profile]] = {}
    places: dict[str, Where | None] = {}
    for profile, check in failed:
        whose.setdefault(check.text, []).append(profile)
        places.setdefault(check.text, where(profile, *_key(profile.engine, check.id)))
    first, *others = [
        (places[text], f"{', '.join(profile.name for profile in arms)}: {text}") for text, arms in whose.items()
    ]
    return InputError(
        "; ".join([first[1], *(f"{place}: {told}" if place else told for place, told in others)]),
        where=first[0],
        do="; ".join(dict.fromkeys(check.do for _profile, check in failed)),
    )


def _key(spec: EngineSpec, check: str) -> KeyPath:
    """What in a profile asks for that which a failed check misses."""
    if check == "environment":
        ways = {"environment": spec.environment, "image": spec.image, "command": spec.command}
        return "engine", next((name for name, given in ways.items() if given is not None), "kind")
    if check == "port":
        return "engine", "args", "port"
    return ("tiers", "disk", "path") if check.startswith("disk_") else ("tiers", "host", "size")


def _checks(profile: Profile) -> list[Check]:
    """An attached server is asked by the engine itself, with its key."""
    return [] if profile.engine.kind == "attached" else essential(profile, read_essentials(profile))
