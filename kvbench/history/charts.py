"""The course of one rule as an SVG element: every run with its interval, the limit, and where the level changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kvbench.history.trend import Point, Series
from kvbench.history.words import unit_of
from kvbench.report.charts import HEIGHT, STATUS_MARKERS, new_axes
from kvbench.report.plain import plain
from kvbench.report.svg import COLOURS, drawing_style, inline_svg
from kvbench.report.wording import show_value

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["course_chart"]

TICKS = 5


@drawing_style()
def course_chart(name: str, series: Series) -> str | None:
    """None when no run measured the rule. `name` is unique in the page; runs are equally spaced, newest right."""
    places = [(place, point) for place, point in enumerate(series.points) if point.value is not None]
    if not places:
        return None
    figure, axes = new_axes(HEIGHT, left=74)
    if series.logarithmic:
        axes.set_yscale("log")
    low, high = _bounds(series, [point for _, point in places])
    axes.set(xlim=(-0.5, len(series.points) - 0.5), ylim=(low, high))
    _levels(axes, series)
    kinds: dict[tuple[str, bool], list[tuple[int, Point]]] = {}
    for place, point in places:
        kinds.setdefault((point.status, point.counts), []).append((place, point))
    for (status, counts), drawn in kinds.items():
        _draw(axes, status, counts, drawn)
    _labels(axes, series, low, high)
    told = ", ".join(f"{point.run.created:%Y-%m-%d}: {point.value:.4g}" for _, point in places[-10:])
    return inline_svg(figure, name, title=f"{plain(series.rule)} over the runs", description=told)


def _bounds(series: Series, points: Sequence[Point]) -> tuple[float, float]:
    """Room for every value and limit; an interval may widen it to three times that, and is cut off beyond."""
    values = [point.value for point in points if point.value is not None]
    values += [point.limit for point in points if point.limit is not None]
    if series.logarithmic:
        values = [value for value in values if value > 0]
    scale = np.log if series.logarithmic else np.asarray
    inner = scale(np.array(values))
    span = float(inner.max() - inner.min()) or (0.1 if series.logarithmic else abs(float(inner.max())) * 0.1 or 1.0)
    ends = [end for point in points for end in point.interval or () if not series.logarithmic or end > 0]
    outer = np.clip(scale(np.array(ends or values)), inner.min() - span, inner.max() + span)
    bounds = np.array([min(outer.min(), inner.min()) - 0.06 * span, max(outer.max(), inner.max()) + 0.06 * span])
    low, high = np.exp(bounds) if series.logarithmic else bounds
    return float(low), float(high)


def _levels(axes: Axes, series: Series) -> None:
    """The limit of each run, and a line where the level changed."""
    limits = [np.nan if point.limit is None else point.limit for point in series.points]
    edges = np.arange(len(limits) + 1) - 0.5
    axes.stairs(limits, edges, baseline=None, color=COLOURS["muted"], linewidth=1.4, linestyle=(0, (5, 2)))
    names = [point.run.name for point in series.points]
    for change in series.changes:
        place = names.index(change.run.name) - 0.5
        axes.axvline(place, color=COLOURS["fail"], linewidth=1.2, linestyle=(0, (2, 2)))


def _draw(axes: Axes, status: str, counts: bool, drawn: Sequence[tuple[int, Point]]) -> None:
    """Points of one kind, with their intervals."""
    colour = COLOURS[status] if counts else COLOURS["muted"]
    low, high = axes.get_ylim()
    bars = [(place, np.clip(point.interval, low, high)) for place, point in drawn if point.interval is not None]
    if bars:
        places, ends = zip(*bars, strict=True)
        axes.vlines(
            places, [end[0] for end in ends], [end[1] for end in ends], color=colour, linewidth=2.4, alpha=0.55
        )
    axes.plot(
        [place for place, _ in drawn],
        [point.value or 0.0 for _, point in drawn],
        linestyle="none",
        marker=STATUS_MARKERS[status],
        markersize=6.5,
        markerfacecolor=colour if counts else "none",
        markeredgecolor=COLOURS["surface"] if counts else colour,
        markeredgewidth=0.8,
    )


def _labels(axes: Axes, series: Series, low: float, high: float) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    ticks = np.geomspace(low, high, TICKS + 2) if series.logarithmic else np.linspace(low, high, TICKS + 2)
    axes.yaxis.set_major_locator(FixedLocator([float(tick) for tick in ticks[1:-1]]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: show_value(value, unit_of(series))))
    shown = np.unique(np.linspace(0, len(series.points) - 1, min(TICKS, len(series.points))).round().astype(int))
    axes.set_xticks(shown, [f"{series.points[place].run.created:%m-%d}" for place in shown])
    axes.set_xlabel("run", color=COLOURS["muted"], fontsize=11)
