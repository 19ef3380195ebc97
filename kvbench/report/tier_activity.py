"""Tables of what tiers went through by their engines' own telling; one row a figure and arm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvbench.judge.quality import TierActivity
from kvbench.report.parts import TableView
from kvbench.report.plain import plain
from kvbench.report.wording import MISSING, show_value
from kvbench.spec.engine_metrics import BUCKETED, ENGINE_METRICS

__all__ = ["activity_tables"]


def activity_tables(arms: Sequence[TierActivity]) -> tuple[TableView, ...]:
    """Those that have rows; each says which rounds are not in it."""
    tables = (_promotions(arms), _times(arms), _events(arms))
    return tuple(replace(table, note=table.note + _left_out(arms)) for table in tables if table.rows)


def _left_out(arms: Sequence[TierActivity]) -> str:
    return "".join(
        f" Without {arm.left_out} of {arm.left_out + arm.rounds} rounds of {plain(arm.arm)}: their counters began "
        "again, or were first read too late."
        for arm in arms
        if arm.left_out
    )


def _promotions(arms: Sequence[TierActivity]) -> TableView:
    """Waiting beside transfer, the difference being the queue."""
    rows = tuple(
        (
            plain(arm.arm),
            f"{told.n:,} {told.of}{'s' if told.n != 1 else ''}",
            show_value(told.wait_s, "s"),
            show_value(told.transfer_s, "s"),
            show_value(told.queueing_s, "s"),
        )
        for arm in arms
        if (told := arm.promotions) is not None
    )
    return TableView(
        "Promotions from disk: waiting against transfer",
        "Means of the measured parts. Waiting is from being asked for to being ready in the host tier; transfer is "
        "the time in reads; the rest is queueing, look-ups included; at least, as reads that overlap are added up. "
        "Of loads from the host to the device engines tell the transfer alone.",
        ("Arm", "Means of", "Waiting", "Transfer", "Queueing"),
        rows,
        right=2,
        wide=True,
    )


def _times(arms: Sequence[TierActivity]) -> TableView:
    rows = tuple(
        (
            ENGINE_METRICS[name].meaning,
            plain(arm.arm),
            f"{time.n:,}",
            show_value(time.mean_s, "s"),
            _bounds(time.p50_s),
            _bounds(time.p90_s),
        )
        for name in BUCKETED
        for arm in arms
        for time in arm.times
        if time.name == name
    )
    return TableView(
        "Lifetimes, reuse gaps and waits that the engines tell",
        "Measured parts of all rounds, by the engines' histograms: a quantile lies between two edges.",
        ("What", "Arm", "n", "Mean", "p50", "p90"),
        rows,
        right=2,
    )


def _bounds(ends: tuple[float, float | None] | None) -> str:
    if ends is None:
        return MISSING
    low, high = ends
    return f"> {show_value(low, 's')}" if high is None else f"{show_value(low, 's')} – {show_value(high, 's')}"


def _events(arms: Sequence[TierActivity]) -> TableView:
    told = [{event.name: event for event in arm.events} for arm in arms]
    names = dict.fromkeys(name for each in told for name in each)
    rows = tuple(
        (
            ENGINE_METRICS[name].meaning,
            *(f"{each[name].count:,.0f} {each[name].unit}" if name in each else MISSING for each in told),
        )
        for name in names
    )
    return TableView(
        "Preemptions, evictions, drops and failures that the engines count",
        "Measured parts of all rounds. What an engine does not count is not known.",
        ("What", *(plain(arm.arm) for arm in arms)),
        rows,
        right=1,
    )
