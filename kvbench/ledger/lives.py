"""How long blocks lay in a tier, and whether anybody read them there, as far as KV events tell. Blocks, seconds.

A block behind the device is read when it arrives one tier further up while it lies there: loaded from the host,
promoted from disk. What reaches the host while it lies on the device was stored from there. On the device a read
leaves no event.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from kvbench.ledger.history import BlockHistory
from kvbench.record.tables import LIVES

__all__ = ["lives"]

NEXT = {"host": "device", "disk": "host"}
"""Where a block goes when it is read."""


def lives(history: BlockHistory) -> pa.Table:
    """Schema LIVES, one row a tier that events tell of."""
    rows = [_of_tier(history, tier) for tier in ("device", *NEXT) if history.tells(tier)]
    return pa.Table.from_pylist(rows, schema=LIVES)


def _of_tier(history: BlockHistory, tier: str) -> dict[str, object]:
    stored = removed = unread = 0
    lifetimes: list[float] = []
    gaps: list[float] = []
    for block, began, ended in history.stays(tier):
        stored += 1
        if ended is not None:
            removed += 1
            lifetimes.append(history.time_of(ended) - history.time_of(began))
        if tier in NEXT:
            reads = list(_reads(history, tier, block, began, ended))
            unread += not reads
            gaps += [
                later - earlier for earlier, later in zip([history.time_of(began), *reads], reads, strict=False)
            ]
    return {
        "tier": tier,
        "stored": stored,
        "removed": removed,
        "never_read": unread if tier in NEXT else None,
        "lifetime_p50_s": float(np.median(lifetimes)) if lifetimes else None,
        "reuse_gap_p50_s": float(np.median(gaps)) if gaps else None,
    }


def _reads(history: BlockHistory, tier: str, block: bytes, began: int, ended: int | None) -> Iterator[float]:
    end = history.place_at(float("inf")) if ended is None else ended
    for place in history.arrivals(NEXT[tier], block, began + 1, end):
        if tier != "disk" or not history.lies_in("device", block, place):
            yield history.time_of(place)
