"""Which tier a comparison is about: the one that a rollback would disable."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from kvbench.spec.profile import Profile

__all__ = ["Tier", "newest_tier"]

Tier = Literal["device", "host", "disk"]
TIERS: tuple[Tier, ...] = ("device", "host", "disk")


def newest_tier(baseline: Profile, candidate: Profile) -> Tier | None:
    """The coldest tier that the candidate has and the baseline lacks, else the coldest that changed, else None."""
    own = [tier for tier in TIERS if tier in candidate.tier_names]
    added = [tier for tier in own if tier not in baseline.tier_names]
    changed = [tier for tier in own if _settings(candidate, tier) != _settings(baseline, tier)]
    return next(reversed(added or changed), None)


def _settings(profile: Profile, tier: Tier) -> object:
    """What makes the tier what it is. Not where its files lie: every arm has a directory of its own."""
    tiers = profile.tiers
    if tier != "disk":
        return getattr(tiers, tier)
    return tiers.disk and tiers.disk.model_copy(update={"path": Path()}), tiers.secondary
