"""How values spread: percentiles by linear interpolation, and counts in buckets of powers of two.

Values may stand for several equal ones each, or for a row of whole numbers that rise by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kvbench.workload.traces.trace import Floats, Whole

__all__ = ["Rows", "log2_histogram", "percentiles"]

_PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99, 100)


def percentiles(values: Whole | Floats, counts: Whole | None = None) -> dict[str, float | int]:
    """`p1` to `p100`, `mean` and `n`; of no values only `n`. `counts`: how often each is there (None: once)."""
    if not len(values):
        return {"n": 0}
    if counts is None:
        found = np.percentile(values, _PERCENTILES)
        mean, total = float(np.mean(values)), len(values)
    else:
        order = np.argsort(values, kind="stable")
        ends = np.cumsum(counts[order])
        total = int(ends[-1])
        exact = (total - 1) * (np.array(_PERCENTILES) / 100.0)
        below = np.floor(exact).astype(np.int64)
        places = np.searchsorted(ends, np.stack((below, np.minimum(below + 1, total - 1))), side="right")
        low, high = values[order][places].astype(np.float64)
        found = low + (high - low) * (exact - below)
        mean = float(np.dot(values.astype(np.float64), counts.astype(np.float64))) / total
    return {
        **{f"p{percent}": float(value) for percent, value in zip(_PERCENTILES, found, strict=True)},
        "mean": mean,
        "n": total,
    }


def log2_histogram(distances: Whole, *, never: int, counts: Whole | None = None) -> Mapping[str, int]:
    """Bucket `2^k` counts distances from 2^k to below 2^(k + 1), `inf` the `never`. Empty ones are left out."""
    exponents = np.frexp(distances.astype(np.float64))[1]  # of 0: 0; of 2^k: k + 1; exact below 2**53
    found = np.bincount(exponents, weights=counts).astype(np.int64) if len(exponents) else np.zeros(1, np.int64)
    named = {"0": int(found[0]), **{f"2^{power}": int(count) for power, count in enumerate(found[1:])}}
    named["inf"] = never
    return {name: count for name, count in named.items() if count}


@dataclass(frozen=True)
class Rows:
    """Rows of whole numbers from 0 on, each rising by one, without a look at the single ones."""

    first: Whole
    """Of each row, sorted."""
    beyond: Whole
    """One more than the last of each row, sorted."""
    first_sums: Whole
    beyond_sums: Whole
    """Sums of these up to each place."""
    total: int
    """All numbers added up."""

    @classmethod
    def of(cls, first: Whole, sizes: Whole) -> Rows:
        """From where rows begin and how many numbers each has, in any order."""
        begins, ends = np.sort(first), np.sort(first + sizes)
        sums, beyond_sums = (np.concatenate(([0], np.cumsum(values))) for values in (begins, ends))
        return cls(begins, ends, sums, beyond_sums, int((sizes * (2 * first + sizes - 1)).sum()) // 2)

    @property
    def end(self) -> int:
        """One more than the largest number; 0 of no rows."""
        return int(self.beyond[-1]) if len(self.beyond) else 0

    def below(self, value: int) -> int:
        """How many numbers are smaller."""
        begun = int(np.searchsorted(self.first, value, side="left"))
        ended = int(np.searchsorted(self.beyond, value, side="left"))
        return (begun - ended) * value - int(self.first_sums[begun]) + int(self.beyond_sums[ended])

    def smallest_with(self, count: int) -> int:
        """The smallest value below which so many numbers are, which is one more than the last of them."""
        low, high = 0, self.end
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.below(middle) >= count else (middle, high)
        return high

    def percentiles(self) -> dict[str, float | int]:
        """As `percentiles`, of all numbers."""
        count = self.below(self.end)
        if not count:
            return {"n": 0}
        found: dict[str, float | int] = {}
        for percent in _PERCENTILES:
            exact = (count - 1) * (percent / 100.0)
            place = int(exact)
            low, high = (self.smallest_with(min(rank, count)) - 1 for rank in (place + 1, place + 2))
            found[f"p{percent}"] = low + (high - low) * (exact - place)
        return {**found, "mean": self.total / count, "n": count}

    def log2_histogram(self, *, never: int) -> dict[str, int]:
        """As `log2_histogram`, of all numbers."""
        edges = [0, *(2**power for power in range(self.end.bit_length() + 1))]
        counts = np.diff([self.below(edge) for edge in edges]).tolist()
        named = {"0": counts[0], **{f"2^{power}": count for power, count in enumerate(counts[1:])}, "inf": never}
        return {name: count for name, count in named.items() if count}
