"""Whom a plan was made for, as digests: no other arm, and no other workload, is held against it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from kvbench.record.content import digest
from kvbench.spec.profile import Profile, Tiers
from kvbench.spec.workload import Workload

__all__ = ["MadeFor", "arm_digest", "made_for"]


class MadeFor(BaseModel):
    """`sha256:...` of each."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    profile: str
    device_only: str
    """The same engine and device without any tier behind it."""
    workload: str | None
    """None: the plan was made for a trace."""


def arm_digest(profile: Profile) -> str:
    """Of everything but the name: a baseline has its own, and is the device of its candidates all the same."""
    return digest(profile.model_copy(update={"name": "arm"}))


def made_for(profile: Profile, workload: Workload | None) -> MadeFor:
    """`profile` and `workload` as they were read."""
    alone = profile.model_copy(update={"tiers": Tiers(device=profile.tiers.device)})
    return MadeFor(
        profile=arm_digest(profile),
        device_only=arm_digest(alone),
        workload=None if workload is None else digest(workload),
    )
