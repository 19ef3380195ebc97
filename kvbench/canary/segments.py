"""Time cut into segments: the units of every interval over live metrics. Pure; Unix seconds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvbench.canary.histogram import Counts, bucket_keys, edges_of
from kvbench.canary.series import Floats, Key, Replica

__all__ = [
    "SEGMENT_S",
    "Grid",
    "SegmentCounts",
    "buckets_in",
    "choose_grid",
    "counts_in",
    "growth_in",
    "levels_in",
    "rate_in",
]

SEGMENT_S = 30.0
"""The usual segment: several times as long as requests last, and as the rollback rule's usual window."""
FEWEST_SCRAPES = 2
"""A segment holds at least so many scrapes."""
COVERED = 0.5
"""A segment of which less was seen says nothing."""
AT_ONCE = 12
"""One look at a short stretch cuts it into about so many."""
AT_LEAST = 24
"""A watch, however short, is cut into about so many: more than it takes to know the spread."""


@dataclass(frozen=True)
class Grid:
    """`count` segments of `length_s` from `start_s` on; a scrape on an edge belongs to the segment before it."""

    start_s: float
    length_s: float
    count: int

    def merged(self, factor: int) -> Grid:
        """Segments `factor` times as long; an incomplete last one is left out."""
        return Grid(self.start_s, self.length_s * factor, self.count // factor)

    def places(self, t_s: Floats) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
        """The segment of each moment, and whether it lies in one at all."""
        places = np.ceil((t_s - self.start_s) / self.length_s - 1e-9).astype(np.intp) - 1
        return places, (places >= 0) & (places < self.count)


def choose_grid(
    start_s: float, end_s: float, interval_s: float, *, once: bool, planned_s: float | None = None
) -> Grid:
    """Whole segments between two moments; `planned_s` is how long the whole watch takes."""
    span_s = max(end_s - start_s, 0.0)
    least = FEWEST_SCRAPES * interval_s
    wanted_s = span_s / AT_ONCE if once else SEGMENT_S if planned_s is None else planned_s / AT_LEAST
    length_s = max(min(SEGMENT_S, wanted_s), least)
    if length_s <= 0:
        return Grid(start_s, SEGMENT_S, 0)
    return Grid(start_s, length_s, math.floor(span_s / length_s + 1e-9))


@dataclass(frozen=True, eq=False)
class SegmentCounts:
    """Sums over the usable segments, in order of time."""

    samples: Floats
    requests: Floats
    over_least: Floats
    over_most: Floats

    @property
    def n(self) -> int:
        return len(self.samples)


def counts_in(several: Iterable[Counts], grid: Grid) -> SegmentCounts:
    """Counts of all replicas together. A segment without requests, or hardly seen, is left out, not zero."""
    sums = np.zeros((4, grid.count))
    covered = np.zeros(grid.count)
    for counts in several:
        regular = ~np.isin(counts.t_s, counts.unusual)
        places, inside = grid.places(counts.t_s)
        chosen = regular & inside
        for row, values in enumerate((counts.samples, counts.requests, counts.over_least, counts.over_most)):
            np.add.at(sums[row], places[chosen], values[chosen])
        seen = np.zeros(grid.count)
        np.add.at(seen, places[chosen], counts.steps_s[chosen])
        covered = np.maximum(covered, seen)
    usable = (covered >= COVERED * grid.length_s) & (sums[0] > 0)
    return SegmentCounts(*(row[usable] for row in sums))


def growth_in(replicas: Iterable[Replica], name: str, grid: Grid, **labels: str) -> Floats:
    """Growth of a counter in each segment, all replicas together; NaN where hardly anything was seen."""
    return _summed(((replica, replica.keys(name, **labels)) for replica in replicas), grid)


def rate_in(replicas: Iterable[Replica], name: str, grid: Grid) -> Floats:
    """Growth of a counter a second and replica that was there; NaN where hardly anything was seen."""
    total, covered, seconds = _sums(((replica, replica.keys(name)) for replica in replicas), grid)
    enough = covered >= COVERED * grid.length_s
    rate: Floats = np.divide(total, seconds, out=np.full(grid.count, np.nan), where=enough & (seconds > 0))
    return rate


def buckets_in(replicas: Sequence[Replica], metric: str, grid: Grid) -> dict[float, Floats]:
    """Upper edge → samples at most there in each segment, all replicas together; 0 where nothing was seen.

    Of edges that not all replicas have, only some would be counted: they are left out.
    """
    each = [set(edges) for replica in replicas if (edges := edges_of(replica, metric))]
    edges = sorted(set.intersection(*each)) if each else []
    return {
        edge: np.nan_to_num(_summed(((replica, bucket_keys(replica, metric, edge)) for replica in replicas), grid))
        for edge in edges
    }


def _summed(several: Iterable[tuple[Replica, list[Key]]], grid: Grid) -> Floats:
    total, covered, _ = _sums(several, grid)
    return np.where(covered >= COVERED * grid.length_s, total, np.nan)


def _sums(several: Iterable[tuple[Replica, list[Key]]], grid: Grid) -> tuple[Floats, Floats, Floats]:
    """Of each segment the growth, and the seconds seen: of the replica seen most, and of all together."""
    total, covered, seconds = np.zeros(grid.count), np.zeros(grid.count), np.zeros(grid.count)
    for replica, keys in several:
        growth = replica.grown(keys)
        places, inside = grid.places(replica.t_s)
        chosen = inside & ~np.isnan(growth) & ~replica.after_gap
        np.add.at(total, places[chosen], growth[chosen])
        seen = np.zeros(grid.count)
        np.add.at(seen, places[chosen], replica.steps_s[chosen])
        covered, seconds = np.maximum(covered, seen), seconds + seen
    return total, covered, seconds


def levels_in(replicas: Iterable[Replica], name: str, grid: Grid, **labels: str) -> Floats:
    """Mean of a gauge over scrapes and replicas in each segment; NaN where there is no scrape."""
    total, scrapes = np.zeros(grid.count), np.zeros(grid.count)
    for replica in replicas:
        level = replica.level(replica.keys(name, **labels))
        places, inside = grid.places(replica.t_s)
        chosen = inside & ~np.isnan(level)
        np.add.at(total, places[chosen], level[chosen])
        np.add.at(scrapes, places[chosen], 1)
    with np.errstate(invalid="ignore"):
        return np.where(scrapes > 0, total / scrapes, np.nan)
