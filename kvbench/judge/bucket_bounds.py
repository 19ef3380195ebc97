"""What the buckets of a histogram tell of a quantile: bounds, not a number. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

__all__ = ["quantile_bounds"]


def quantile_bounds(buckets: Mapping[float, float], quantile: float) -> tuple[float, float] | None:
    """Between which edges a quantile lies: (0.25, 0.5), or (80, inf) beyond the last one; None without samples."""
    edges = sorted(buckets)
    if not edges or buckets[edges[-1]] <= 0:
        return None
    wanted = quantile * buckets[edges[-1]]
    low = 0.0
    for edge in edges:
        if buckets[edge] >= wanted - 1e-9:
            return low, edge
        low = edge
    return low, math.inf
