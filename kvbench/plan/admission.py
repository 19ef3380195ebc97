"""Admission by reuse count: a tier that stores a block only when offered for the k-th time. Blocks, tokens."""

from __future__ import annotations

import numpy as np

from kvbench.plan.references import ratio
from kvbench.plan.runs import Runs

__all__ = ["THRESHOLDS", "admission"]

THRESHOLDS = (1, 2, 3, 4, 8)
"""Values of `store_threshold`; 1 (as 0) stores everything."""


def admission(runs: Runs, total_tokens: int) -> list[dict[str, float | int | None]]:
    """What each threshold writes and serves, in a tier without limit of size and with the engine's rule for hits.

    A request that meets a block for the k-th time stores it, so that the next one finds it.
    """
    earlier = runs.earlier
    uses = np.zeros(runs.count, np.int64)
    np.maximum.at(uses, runs.runs[runs.whole], earlier[runs.whole] + 1)
    sizes = runs.run_sizes()
    found: list[dict[str, float | int | None]] = []
    for threshold in THRESHOLDS:
        hits = runs.leading((earlier >= threshold) & runs.can_hit)
        writes = int(sizes[uses >= threshold].sum())
        served = int(runs.tokens[hits].sum())
        first_writes = int(found[0]["written_blocks"] or 0) if found else writes
        first_served = int(found[0]["hit_tokens"] or 0) if found else served
        found.append(
            {
                "store_threshold": threshold,
                "written_blocks": writes,
                "hit_tokens": served,
                "token_hit_rate": ratio(served, total_tokens),
                "writes_saved": ratio(first_writes - writes, first_writes),
                "hits_lost": ratio(first_served - served, first_served),
            }
        )
    return found
