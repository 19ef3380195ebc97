"""How values spread: percentiles by linear interpolation, and counts in buckets of powers of two.

Values may stand for several equal ones each, or for a row of whole numbers that rise by one.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kvbench.workload.traces.trace import Floats, Whole

__all__ = ["log2_histogram", "percentiles"]

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
