"""The history in words, for the terminal and the page: figures with units, changes as sentences."""

from __future__ import annotations

from datetime import datetime

from kvbench.history.trend import Change, Comparison, Point, Series
from kvbench.report.plain import plain
from kvbench.report.wording import MISSING, show_interval, show_value

__all__ = ["change_sentence", "drift", "figure", "headline", "limit", "night_of", "unit_of"]


def night_of(time: datetime) -> str:
    """`2026-01-31 02:00`, UTC."""
    return time.strftime("%Y-%m-%d %H:%M")


def unit_of(series: Series) -> str | None:
    """Of values, limits and intervals."""
    return "ratio" if series.ratio else series.unit


def figure(series: Series, point: Point) -> tuple[str, str]:
    """Value and interval."""
    unit = unit_of(series)
    return show_value(point.value, unit), "" if point.interval is None else show_interval(point.interval, unit)


def limit(series: Series, point: Point) -> str:
    """`≤ ×1.1`."""
    if point.limit is None:
        return MISSING
    sign = "" if not series.ratio else "≤ " if series.upper else "≥ "
    return sign + show_value(point.limit, unit_of(series))


def drift(series: Series) -> str:
    """`×1.02 [×0.98, ×1.05] in 14 runs`: since the last change of level."""
    if series.trend is None:
        return MISSING
    unit = "ratio" if series.logarithmic else unit_of(series)
    amount = show_value(series.trend.drift, unit)
    return f"{amount} {show_interval(series.trend.interval, unit)} in {series.trend.runs} runs"


def headline(each: Comparison) -> str:
    """Which arms, how many runs, from when to when."""
    first, last = (night_of(run.created) for run in (each.runs[0], each.runs[-1]))
    told = f"1 run, {first}" if len(each.runs) == 1 else f"{len(each.runs)} runs, {first} to {last}"
    return f"{plain(each.candidate)} against {plain(each.baseline)}: {told} UTC"


def change_sentence(series: Series, change: Change) -> str:
    """When, how much, how sure, and what else changed there."""
    unit = unit_of(series)
    before, after = show_value(change.before, unit), show_value(change.after, unit)
    told = (
        f"{plain(series.rule)} changed on {night_of(change.run.created)}: {before} before, {after} since "
        f"(p = {change.p_value:.2g})"
    )
    if not change.with_it:
        return f"{told}; nothing that is recorded about the runs changed there"
    versions = "; ".join(
        f"{version.what} {plain(version.before)} → {plain(version.after)} on {night_of(run.created)}"
        for run, version in change.with_it
    )
    return f"{told}; with it: {versions}"
