"""Before anything starts: does this host have room for every arm, one at a time?"""

from __future__ import annotations

from collections.abc import Sequence

from kvbench.engine.preflight import Check, check_profile
from kvbench.errors import InputError
from kvbench.spec.profile import Profile

__all__ = ["check_host"]


def check_host(profiles: Sequence[Profile]) -> list[str]:
    """Warnings as sentences. InputError names every failed check, what it found and what to do."""
    found: list[tuple[str, Check]] = [(p.name, check) for p in profiles for check in check_profile(p)]
    failed = [(name, check) for name, check in found if check.status == "fail"]
    if failed:
        raise InputError(
            "; ".join(dict.fromkeys(f"{name}: {check.text}" for name, check in failed)),
            do="; ".join(dict.fromkeys(check.do for _name, check in failed)),
        )
    return [f"{name}: {check.text}" for name, check in found if check.status == "warn"]
