"""What an arm's tiers went through by the engine's own telling, over the measured parts: lifetimes and reuse gaps,
preemptions, evictions, drops and failures, waits. Works on whatever the engine counts; what it does not is absent.
Seconds.

A family that comes with its first event is absent from a round in which nothing happened, so a sum is over the
rounds that have it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from kvbench.judge.bucket_bounds import quantile_bounds
from kvbench.judge.case import Case, JudgedRound
from kvbench.judge.phases import measured_start
from kvbench.judge.quality import PromotionWait, TierActivity, TierEvents, TierTime
from kvbench.judge.sources import Counters
from kvbench.spec.engine_metrics import BUCKETED, ENGINE_METRICS

__all__ = ["EVENTS", "arm_activity", "tier_activity"]

Told = TypeVar("Told")
EVENTS = (
    "preemptions",
    *("host_evicted_chunks", "host_dropped_blocks", "host_store_drops", "host_store_skips", "host_load_failures"),
    *("promotion_drops", "promotion_failures", "promotion_failed_chunks", "cascade_failures", "store_drops"),
)
"""Preemptions, evictions, and what was given up or failed, from hot to cold."""
WAITS = ("promotion_time", "host_lookup_time")
"""What tells how long a promotion took from being asked for: of itself, else of the request that waited for it."""

COUNTED = frozenset(
    {*EVENTS, "disk_read_seconds", *(f"{name}_{part}" for name in (*BUCKETED, *WAITS) for part in ("count", "sum"))}
)
"""All that is summed up here."""


def tier_activity(case: Case) -> list[TierActivity]:
    """Of both arms; nothing of one whose engine tells none of it."""
    arms = (
        (case.comparison.baseline.name, [pair.baseline for pair in case.pairs]),
        (case.comparison.candidate.name, [pair.candidate for pair in case.pairs]),
    )
    return [found for arm, rounds in arms if (found := arm_activity(arm, rounds)) is not None]


def arm_activity(arm: str, everything: Sequence[JudgedRound]) -> TierActivity | None:
    """Of one arm, over the rounds that were counted from the beginning of the measured part to the end."""
    rounds = [
        judged
        for judged in everything
        if judged.recorded.counters.unbroken(COUNTED, measured_start(judged.workload))
    ]
    times = [time for name in BUCKETED if (time := _time(name, rounds)) is not None]
    events = [
        TierEvents(name=name, unit=ENGINE_METRICS[name].unit, count=count)
        for name in EVENTS
        if (count := _grown(rounds, name)) is not None
    ]
    if not times and not events:
        return None
    return TierActivity(
        arm=arm,
        rounds=len(rounds),
        left_out=len(everything) - len(rounds),
        times=times,
        events=events,
        promotions=_promotions(rounds),
    )


def _time(name: str, rounds: Sequence[JudgedRound]) -> TierTime | None:
    """None: it is not told, or there was none."""
    count, seconds = _grown(rounds, f"{name}_count"), _grown(rounds, f"{name}_sum")
    if not count or seconds is None:
        return None
    buckets: dict[float, float] = {}
    for each in _known(rounds, lambda counters, since_s: counters.buckets(name, since_s)):
        for edge, grown in each.items():
            buckets[edge] = buckets.get(edge, 0.0) + grown
    return TierTime(
        name=name,
        n=round(count),
        mean_s=seconds / count,
        p50_s=_ends(quantile_bounds(buckets, 0.5)),
        p90_s=_ends(quantile_bounds(buckets, 0.9)),
    )


def _ends(bounds: tuple[float, float] | None) -> tuple[float, float | None] | None:
    return None if bounds is None else (bounds[0], bounds[1] if math.isfinite(bounds[1]) else None)


def _promotions(rounds: Sequence[JudgedRound]) -> PromotionWait | None:
    """Waiting and transfer of a mean promotion; None: not both are told, or there was none."""
    transfer_s = _grown(rounds, "disk_read_seconds")
    for name in WAITS:
        count, wait_s = _grown(rounds, f"{name}_count"), _grown(rounds, f"{name}_sum")
        if count and wait_s is not None and transfer_s:
            return PromotionWait(
                of="promotion" if name == WAITS[0] else "request",
                n=round(count),
                wait_s=wait_s / count,
                transfer_s=transfer_s / count,
                queueing_s=max(0.0, wait_s - transfer_s) / count,
            )
    return None


def _grown(rounds: Sequence[JudgedRound], name: str) -> float | None:
    known = _known(rounds, lambda counters, since_s: counters.grown(name, since_s))
    return sum(known) if known else None


def _known(rounds: Sequence[JudgedRound], ask: Callable[[Counters, float], Told | None]) -> list[Told]:
    each = (ask(judged.recorded.counters, measured_start(judged.workload)) for judged in rounds)
    return [told for told in each if told is not None]
