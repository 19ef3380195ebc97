"""Which requests are held out of the tiers behind the host: a share of them, drawn by the workload's seed."""

from __future__ import annotations

from dataclasses import replace

from kvbench.spec.workload import Workload
from kvbench.workload.randomness import Stream
from kvbench.workload.schedule import Schedule

__all__ = ["with_holdout"]


def with_holdout(schedule: Schedule, workload: Workload) -> Schedule:
    """The same schedule with `tier_holdout` of its requests marked, each on its own, whatever it asks for.

    Priming requests are never held out: they find nothing, and what they leave is there for all.
    """
    if not workload.tier_holdout:
        return schedule
    stream = Stream(workload.seed, workload.name, schedule.round, "tier holdout")
    share = workload.tier_holdout
    return replace(
        schedule,
        requests=tuple(replace(request, holdout=stream.uniform() < share) for request in schedule.requests),
    )
