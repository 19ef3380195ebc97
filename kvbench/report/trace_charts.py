"""The charts of the page about a trace, as SVG elements: hits by cache size, and the time until reuse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kvbench.report.charts import label_axes, log_seconds, new_axes
from kvbench.report.svg import COLOURS, drawing_style, inline_svg
from kvbench.spec.quantity import show_bytes, show_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["hit_curve_chart", "reuse_time_chart"]


@drawing_style()
def hit_curve_chart(name: str, points: Sequence[Mapping[str, Any]], tiers: Mapping[str, int]) -> str | None:
    """Share of prompt tokens served by an LRU of each size in bytes; `tiers` (by name, in bytes) are marked."""
    if not points:
        return None
    sizes = np.array([point["capacity_bytes"] for point in points], np.float64)
    served = np.array([point["token_hit_rate"] for point in points], np.float64)
    figure, axes = new_axes()
    largest = max([float(sizes[-1]), *map(float, tiers.values())])
    axes.set(xscale="log", xlim=(float(sizes[0]), largest * 1.3), ylim=(0, max(0.05, float(served.max()) * 1.15)))
    axes.step(
        np.append(sizes, largest * 1.3), np.append(served, served[-1]), where="post", color=COLOURS["candidate"]
    )
    for tier, size in tiers.items():
        if size >= sizes[0]:
            axes.axvline(size, color=COLOURS[tier], linewidth=1.4, linestyle=(0, (4, 2)))
            axes.text(size, axes.get_ylim()[1] * 0.98, f" {tier}", color=COLOURS[tier], fontsize=11, va="top")
    _byte_ticks(axes, float(sizes[0]), largest * 1.3)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    label_axes(axes, "size of the cache", "prompt tokens served")
    told = f"from {served[0]:.1%} at {show_bytes(sizes[0])} to {served[-1]:.1%} at {show_bytes(sizes[-1])}"
    return inline_svg(figure, name, title="Prompt tokens served by cache size", description=told)


def _byte_ticks(axes: Axes, low: float, high: float) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    ticks = [2.0**power for power in range(0, 60, 5) if low <= 2.0**power <= high]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: show_bytes(value)))


@drawing_style()
def reuse_time_chart(name: str, percentiles: Mapping[str, float]) -> str | None:
    """The share of reuses that come within a time, from the percentiles p1 to p100."""
    known = sorted((int(key[1:]), value) for key, value in percentiles.items() if key[1:].isdigit() and value > 0)
    if len(known) < 2:
        return None
    shares, times = (np.array(column, np.float64) for column in zip(*known, strict=True))
    low, high = float(times.min()) / 1.15, float(times.max()) * 1.15
    figure, axes = new_axes()
    axes.set(xscale="log", xlim=(low, high), ylim=(0, 102))
    log_seconds(axes.xaxis, low, high)
    axes.plot(times, shares, color=COLOURS["candidate"], marker="o", markersize=4)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")
    label_axes(axes, "time until a block is used again", "reuses within")
    told = "; ".join(f"{int(share)} % within {show_seconds(value)}" for share, value in known)
    return inline_svg(figure, name, title="Time until reuse", description=told)
