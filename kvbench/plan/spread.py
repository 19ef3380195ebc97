"""How values spread: percentiles by linear interpolation, and counts in buckets of powers of two."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kvbench.workload.traces.trace import Floats, Whole

__all__ = ["log2_histogram", "percentiles"]

_PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99, 100)


def percentiles(values: Whole | Floats) -> dict[str, float | int]:
    """`p1` to `p100`, `mean` and `n`; of no values only `n`."""
    if not len(values):
        return {"n": 0}
    found = np.percentile(values, _PERCENTILES)
    return {
        **{f"p{percent}": float(value) for percent, value in zip(_PERCENTILES, found, strict=True)},
        "mean": float(np.mean(values)),
        "n": len(values),
    }


def log2_histogram(distances: Whole, *, never: int) -> Mapping[str, int]:
    """Bucket `2^k` counts distances from 2^k to below 2^(k + 1), `inf` the `never`. Empty ones are left out."""
    exponents = np.frexp(distances.astype(np.float64))[1] - 1  # exact below 2**53
    counts = np.bincount(exponents[distances > 0]) if np.any(distances > 0) else np.empty(0, np.int64)
    zero = int(np.sum(distances == 0))
    named = {"0": zero, **{f"2^{power}": int(count) for power, count in enumerate(counts)}, "inf": never}
    return {name: count for name, count in named.items() if count}
