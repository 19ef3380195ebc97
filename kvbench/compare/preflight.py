"""Before anything starts: can every arm be started here, one at a time, and is there room for it?"""

from __future__ import annotations

from collections.abc import Sequence

from kvbench.access import request_headers, trust
from kvbench.doctor.check import Check
from kvbench.doctor.examine import essential
from kvbench.doctor.reading import read_essentials
from kvbench.engine.base import Progress
from kvbench.engine.traps import named_traps
from kvbench.engine.trtllm_engine import check_startable as check_trtllm
from kvbench.engine.vllm_engine import check_startable
from kvbench.errors import InputError
from kvbench.spec.profile import Profile

__all__ = ["check_host"]


def check_host(profiles: Sequence[Profile], progress: Progress) -> list[str]:
    """Warnings as sentences, which are shown, too. InputError names every failed check and what to do."""
    found: list[tuple[str, Check]] = [(p.name, check) for p in profiles for check in _checks(p)]
    failed = [(name, check) for name, check in found if check.status == "fail"]
    if failed:
        whose: dict[str, list[str]] = {}
        for name, check in failed:
            whose.setdefault(check.text, []).append(name)
        raise InputError(
            "; ".join(f"{', '.join(names)}: {text}" for text, names in whose.items()),
            do="; ".join(dict.fromkeys(check.do for _name, check in failed)),
        )
    for profile in profiles:
        if profile.engine.kind == "attached":
            request_headers(profile.engine.access)
            trust(profile.engine.access)
        elif profile.engine.kind == "vllm":
            check_startable(profile, progress)
        elif profile.engine.kind == "tensorrt-llm":
            check_trtllm(profile, progress)
    warnings = [f"{name}: {check.text}" for name, check in found if check.status == "warn"] + named_traps(profiles)
    for warning in warnings:
        progress(f"note: {warning}")
    return warnings


def _checks(profile: Profile) -> list[Check]:
    """An attached server is asked by the engine itself, with its key."""
    return [] if profile.engine.kind == "attached" else essential(profile, read_essentials(profile))
