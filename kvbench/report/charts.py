"""The charts of the HTML report, drawn by matplotlib as SVG elements. Every function is pure.

Text stays text; both arms differ by dash or marker as well as by colour.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from kvbench.judge.verdict import RuleResult
from kvbench.judge.wording import quantile_name
from kvbench.report.series import (
    Dots,
    Numbers,
    Sample,
    SourceRates,
    thin_curve,
    thin_dots,
)
from kvbench.report.svg import COLOURS, drawing_style, inline_svg
from kvbench.report.wording import MISSING, show_ratio, show_value
from kvbench.spec.quantity import show_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

__all__ = [
    "effects",
    "itl_quantiles",
    "label_axes",
    "log_seconds",
    "new_axes",
    "sources_over_time",
    "ttft_distribution",
    "ttft_over_time",
]

WIDTH, HEIGHT = 410, 240
"""Of a chart in its own units, which are pixels on a phone held upright; larger screens scale it up."""
DOT_LIMIT = 700
"""Points of one arm in a scatter; above it they are thinned (the page must stay small)."""
GAP_FLOOR_S = 1e-4
"""Gaps are drawn from here up: tokens that came in one event have a gap of zero, which no log axis can show."""
DASHES: Mapping[str, str | tuple[int, tuple[float, float]]] = {"baseline": (0, (5.0, 2.2)), "candidate": "-"}
TICKS = (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999)


def new_axes(height: float = HEIGHT, left: float = 66) -> tuple[Figure, Axes]:
    """Axes with room for labels of a known size: measuring text would make a drawing depend on installed fonts."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72)
    FigureCanvasSVG(figure)
    margins = {"left": left / WIDTH, "right": 1 - 12 / WIDTH, "bottom": 38 / height, "top": 1 - 10 / height}
    axes = figure.add_subplot()
    figure.subplots_adjust(**margins)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set(color=COLOURS["muted"], linewidth=0.8)
    axes.tick_params(which="both", color=COLOURS["muted"], labelcolor=COLOURS["ink"], labelsize=11, width=0.8)
    axes.grid(color=COLOURS["grid"], linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def label_axes(axes: Axes, x: str, y: str) -> None:
    """What the axes show, in the muted colour and at the same distance in every figure."""
    axes.set_xlabel(x, color=COLOURS["muted"], fontsize=11)
    axes.set_ylabel(y, color=COLOURS["muted"], fontsize=11)
    axes.yaxis.set_label_coords(-54 / (WIDTH - 78), 0.5)


def log_seconds(axis: Axis, low: float, high: float) -> None:
    """At most seven labelled, round times on a log axis over [low, high]."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks: list[float] = []
    for steps in ((1, 2, 5), (1, 3), (1,)):
        ticks = [step * 10.0**e for e in exponents for step in steps if low <= step * 10.0**e <= high]
        if len(ticks) <= 7:
            break
    axis.set_major_locator(FixedLocator(ticks[:: -(-len(ticks) // 7) or 1]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: show_seconds(value)))


def _bounds(values: Iterable[Numbers], floor: float = 1e-6) -> tuple[float, float] | None:
    every = np.concatenate([np.empty(0), *values])
    if len(every) == 0:
        return None
    low, high = max(float(every.min()), floor), max(float(every.max()), floor)
    return low / 1.15, high * 1.15


@drawing_style()
def ttft_distribution(name: str, class_: str, arms: Mapping[str, Sequence[Sample]]) -> str | None:
    """The share of requests answered within a time, per arm ("baseline", "candidate") and round.

    Failed requests count among all, and so do those whose user left before: a curve that ends below 100 % has some.
    """
    bounds = _bounds(sample.values for samples in arms.values() for sample in samples)
    if bounds is None:
        return None
    figure, axes = new_axes()
    axes.set(xscale="log", xlim=bounds)
    log_seconds(axes.xaxis, *bounds)
    medians = []
    for role, samples in arms.items():
        pooled = Sample.pooled(samples)
        for sample in samples:
            _step(axes, sample, role, width=0.8, alpha=0.4)
        _step(axes, pooled, role, width=2.2, alpha=1.0)
        median = MISSING if pooled.median is None else show_seconds(pooled.median)
        left = f", {pooled.left} left by their users before" if pooled.left else ""
        medians.append(f"{role}: {len(pooled)} requests, {pooled.failed} failed{left}, median {median}")
    axes.set_ylim(0, 1.02)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
    label_axes(axes, "TTFT, from the intended time", "requests answered within")
    title = f"TTFT of class {class_}"
    return inline_svg(figure, name, title=title, description="; ".join(medians))


def _step(axes: Axes, sample: Sample, role: str, width: float, alpha: float) -> None:
    ranks = thin_curve(sample.values)
    if len(ranks) == 0:
        return
    x = np.concatenate([sample.values[ranks[:1]], sample.values[ranks]])
    y = np.concatenate([[0], (ranks + 1) / len(sample)])
    axes.step(x, y, where="post", color=COLOURS[role], linestyle=DASHES[role], linewidth=width, alpha=alpha)


@drawing_style()
def itl_quantiles(name: str, arms: Mapping[str, Sequence[Sample]], requests: Mapping[str, int]) -> str | None:
    """ITL by percentile, the axis stretched towards the tail; thin where too few requests carry the percentile."""
    bounds = _bounds((s.values for samples in arms.values() for s in samples), floor=GAP_FLOOR_S)
    if bounds is None:
        return None
    figure, axes = new_axes()
    axes.set(yscale="log", ylim=bounds)
    log_seconds(axes.yaxis, *bounds)
    told, deepest = [], 1
    for role, samples in arms.items():
        pooled = Sample.pooled(samples).values
        if len(pooled) == 0:
            continue
        ranks = thin_curve(pooled)
        share = np.minimum(ranks / len(pooled), 1 - 1 / len(pooled))
        deepest = max(deepest, len(pooled))
        carried = 1 - share >= 3 / max(requests[role], 3) - 1e-12
        x, y = -np.log10(1 - share), np.maximum(pooled[ranks], GAP_FLOOR_S)
        axes.plot(x, y, color=COLOURS[role], linestyle=DASHES[role], linewidth=0.9, alpha=0.45)
        axes.plot(x[carried], y[carried], color=COLOURS[role], linestyle=DASHES[role], linewidth=2.2)
        told.append(
            f"{role}: {len(pooled)} gaps of {requests[role]} requests, "
            f"median {show_seconds(float(np.median(pooled)))}"
        )
    ticks = [q for q in TICKS if 1 - q >= 0.9 / deepest]
    axes.set_xticks([-math.log10(1 - q) for q in ticks], [quantile_name(q) for q in ticks])
    axes.set_xlim(0, None)
    label_axes(axes, "share of gaps that are shorter", "ITL")
    return inline_svg(figure, name, title="ITL by percentile", description="; ".join(told))


@drawing_style()
def sources_over_time(
    name: str, arm: str, round_: int, rates: SourceRates, limits: tuple[float, float, float]
) -> str:
    """Prompt tokens per second, stacked by source. `limits`: first and last second, highest rate of the axes."""
    figure, axes = new_axes(height=165)
    below: Numbers = np.zeros(len(rates.t_s) - 1)
    for source, rate in rates.rates.items():
        above = below + np.nan_to_num(rate)
        axes.stairs(
            above,
            rates.t_s,
            baseline=below,
            fill=True,
            facecolor=COLOURS.get(source, COLOURS["muted"]),
            edgecolor=COLOURS["surface"],
            linewidth=0.4,
        )
        below = above
    if rates.t_s[0] < 0:
        axes.axvline(0, color=COLOURS["ink"], linewidth=0.9, linestyle=(0, (2, 2)))
    axes.set_xlim(*limits[:2])
    axes.set_ylim(0, limits[2] or 1)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k" if value >= 1000 else f"{value:g}")
    axes.locator_params(axis="y", nbins=4)
    label_axes(axes, "seconds from the round's start", "tokens/s")
    peak = show_value(float(below.max()), "tokens/s")
    return inline_svg(
        figure, name, title=f"Prompt tokens by source, {arm}, round {round_}", description=f"highest rate {peak}"
    )


def highest_rate(each: Iterable[SourceRates]) -> float:
    """The highest total rate in any step."""
    totals = (np.nansum(np.vstack(list(rates.rates.values())), axis=0).max() for rates in each)
    return max((float(total) for total in totals), default=0.0) * 1.05


MARKERS = {"computed": ("X", "computed"), "cached": ("o", "device"), "unknown": ("s", "muted")}
"""Marker and colour of a request by where most of its prompt came from."""


@drawing_style()
def ttft_over_time(name: str, arm: str, dots: Mapping[str, Dots], bounds: tuple[float, float]) -> str | None:
    """Every measured request of an arm that had a token, all rounds over one another; `dots` has the keys of
    `MARKERS`."""
    total = sum(map(len, dots.values()))
    if total == 0:
        return None
    figure, axes = new_axes()
    axes.set(yscale="log", ylim=bounds)
    log_seconds(axes.yaxis, *bounds)
    drawn = 0
    for kind, points in dots.items():
        marker, colour = MARKERS[kind]
        thinned = thin_dots(points, max(4, DOT_LIMIT * len(points) // total))
        drawn += len(thinned)
        axes.plot(
            thinned.t_s,
            thinned.ttft_s,
            linestyle="none",
            marker=marker,
            markersize=4.4,
            alpha=0.75,
            markerfacecolor=COLOURS[colour],
            markeredgecolor=COLOURS["surface"],
            markeredgewidth=0.4,
        )
    label_axes(axes, "intended time, seconds from the round's start", "TTFT")
    told = ", ".join(f"{len(points)} {kind}" for kind, points in dots.items())
    return inline_svg(
        figure, name, title=f"TTFT over time, {arm}", description=f"{told}; {drawn} of {total} points drawn"
    )


def dot_bounds(each: Iterable[Dots]) -> tuple[float, float] | None:
    """Axis limits that hold every point."""
    return _bounds(dots.ttft_s for dots in each)


STATUS_MARKERS = {"pass": "o", "fail": "X", "unknown": "D"}


@drawing_style()
def effects(name: str, results: Sequence[tuple[RuleResult, bool]]) -> str | None:
    """Ratios with their intervals beside what is allowed.

    `results`: ratio results, each with whether its limit is an upper one.
    """
    shown = [(result, upper) for result, upper in results if result.effect is not None and result.effect > 0]
    if not shown:
        return None
    longest = max(len(_short(result.rule)) for result, _ in shown)
    figure, axes = new_axes(height=58 + 34 * len(shown), left=14 + 6.6 * longest)
    low, high = _ratio_bounds([result for result, _ in shown])
    axes.set(xscale="log", xlim=(low, high), ylim=(len(shown) - 0.4, -0.6))
    for row, (result, upper) in enumerate(shown):
        _effect(axes, row, result, upper, (low, high))
    axes.axvline(1, color=COLOURS["ink"], linewidth=0.9)
    _ratio_ticks(axes, low, high)
    axes.set_yticks(range(len(shown)), [_short(result.rule) for result, _ in shown])
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("candidate / baseline", color=COLOURS["muted"], fontsize=11)
    told = "; ".join(f"{r.rule}: {show_ratio(r.effect or 0)}, {r.status}" for r, _ in shown)
    return inline_svg(figure, name, title="Effects beside their limits", description=told)


def _effect(axes: Axes, row: int, result: RuleResult, upper: bool, extent: tuple[float, float]) -> None:
    low, high = extent
    if result.limit is not None:
        left, right = (low, result.limit) if upper else (result.limit, high)
        axes.barh(row, right - left, left=left, height=0.62, color=COLOURS["allowed"], linewidth=0)
        axes.plot([result.limit] * 2, [row - 0.31, row + 0.31], color=COLOURS["muted"], linewidth=1.6)
    colour = COLOURS[result.status]
    for interval, width in ((result.decision_ci, 1.4), (result.ci, 3.6)):
        if interval is not None:
            ends = np.clip(interval, low, high)
            axes.plot(ends, [row, row], color=colour, linewidth=width, solid_capstyle="butt")
    axes.plot(
        [result.effect or 1.0],
        [row],
        marker=STATUS_MARKERS[result.status],
        markersize=8,
        markerfacecolor=colour,
        markeredgecolor=COLOURS["surface"],
        markeredgewidth=1,
    )


def _ratio_bounds(results: Iterable[RuleResult]) -> tuple[float, float]:
    """Room for every effect, limit and interval; an interval without a bound does not stretch the axis."""
    ends = [1.0]
    for result in results:
        near = [end for end in (result.decision_ci or result.ci or ()) if 0.01 < end < 100]
        ends += [end for end in (result.effect, result.limit, *near) if end is not None and end > 0]
    return min(ends) / 1.25, max(ends) * 1.25


def _ratio_ticks(axes: Axes, low: float, high: float) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    steps = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
    fine = (0.8, 0.9, 1.1, 1.25) if high / low < 4 else ()
    axes.xaxis.set_major_locator(FixedLocator(sorted(tick for tick in (*steps, *fine) if low <= tick <= high)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"×{value:g}"))


def _short(text: str, limit: int = 20) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
