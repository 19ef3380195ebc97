"""Where a series of nights changed its level: the split that ranks tell apart best, applied again to both sides.

Whether: the largest standardised Mann-Whitney statistic of all splits (D. M. Hawkins and Q. Deng, "A nonparametric
change-point control chart", J. Quality Technology 42, 2010). Where: least absolute deviations (J. Bai, Econometric
Theory 11, 1995) among the splits that ranks tell apart nearly as well, since that statistic leans to the middle.
Binary segmentation: L. Ju. Vostrikova (1981). One wild night moves neither; no distribution is assumed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

__all__ = ["FEWEST", "LEVEL", "METHOD", "ChangePoint", "change_points", "likeliest_change"]

Floats = npt.NDArray[np.float64]

LEVEL = 0.01
"""How often a series without a change is said to have one. With ten rules on show, one in ten pages."""
METHOD = "largest Mann-Whitney statistic over all splits (Hawkins and Deng, 2010), by permutation"
PERMUTATIONS = 1999
NEARLY = 0.8
"""Of the largest statistic: splits from here on may be the place."""
FEWEST = 10
"""Below it no order is rare enough: 4 nights all below 5 others, or above, come up in 2 of 126 permutations."""


@dataclass(frozen=True)
class ChangePoint:
    """The level is another one from value `index` on."""

    index: int
    p_value: float


def change_points(values: Floats, level: float = LEVEL) -> list[ChangePoint]:
    """Every change of level in `values` (in order of time, finite), in order of time."""
    found: list[ChangePoint] = []
    open_ = [(0, len(values))]
    while open_:
        start, end = open_.pop()
        if end - start < FEWEST:
            continue
        change = likeliest_change(values[start:end])
        if change.p_value <= level:
            found.append(ChangePoint(start + change.index, change.p_value))
            open_ += [(start, start + change.index), (start + change.index, end)]
    return sorted(found, key=lambda change: change.index)


def likeliest_change(values: Floats) -> ChangePoint:
    """The likeliest change of level, and how often chance alone makes one as clear.

    The p-value comes from permutations with a fixed seed: it holds for short series and for ties, and the same
    series always gives the same.
    """
    ranks = rankdata(values)
    statistic = _statistics(ranks[np.newaxis, :])[0]
    largest = float(statistic.max())
    shuffled = np.random.default_rng(len(ranks)).permuted(np.tile(ranks, (PERMUTATIONS, 1)), axis=1)
    as_clear = int((_statistics(shuffled).max(axis=1) >= largest - 1e-9).sum())
    near = [int(place) + 1 for place in np.flatnonzero(statistic >= NEARLY * largest)]
    return ChangePoint(min(near, key=lambda place: _deviations(values, place)), (1 + as_clear) / (1 + PERMUTATIONS))


def _deviations(values: Floats, place: int) -> float:
    """Sum of distances to the median of either side."""
    return sum(float(np.abs(side - np.median(side)).sum()) for side in (values[:place], values[place:]))


def _statistics(ranks: Floats) -> Floats:
    """|standardised rank sum| of the values up to each but the last; one series a row."""
    count = ranks.shape[1]
    before = np.arange(1, count)
    distance = np.cumsum(ranks, axis=1)[:, :-1] - before * (count + 1) / 2
    return np.asarray(np.abs(distance) / np.sqrt(before * (count - before) * (count + 1) / 12))
