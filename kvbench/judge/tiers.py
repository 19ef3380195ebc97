"""Which tier a comparison is about: the one that a rollback would disable."""

from __future__ import annotations

from typing import Literal

from kvbench.spec.profile import Profile

__all__ = ["Tier", "newest_tier"]

Tier = Literal["device", "host", "disk"]
TIERS: tuple[Tier, ...] = ("device", "host", "disk")


def newest_tier(baseline: Profile, candidate: Profile) -> Tier | None:
    """The coldest tier that the candidate has and the baseline lacks, else the coldest that changed, else None."""
    for added_only in (True, False):
        for tier in reversed(TIERS):
            new, old = getattr(candidate.tiers, tier), getattr(baseline.tiers, tier)
            if new is not None and new != old and (old is None or not added_only):
                return tier
    return None
