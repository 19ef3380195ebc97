"""What an engine says about its KV blocks: stored here, removed there. Values and their table; no wire.

Times in seconds from the round's start. A hash stands for a block's tokens and for everything before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from kvbench.record.tables import KV_EVENTS

__all__ = ["KvEvent", "event_table", "events_of"]


def _no_tokens() -> NDArray[np.int32]:
    return np.empty(0, np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class KvEvent:
    """One event, in the order in which the engine said them."""

    batch: int
    t_s: float
    kind: Literal["stored", "removed", "cleared", "lost"]
    """`lost`: batches before this one never came, so what lies where is not known any more."""
    tier: str | None = None
    hashes: tuple[bytes, ...] = ()
    parent: bytes | None = None
    tokens: NDArray[np.int32] = field(default_factory=_no_tokens)
    """Of all the blocks, one after the other; empty: not told."""
    block_tokens: int = 0
    group: int | None = None


def event_table(events: Iterable[KvEvent]) -> pa.Table:
    """Schema KV_EVENTS."""
    every = list(events)
    return pa.table(
        {
            "batch": [event.batch for event in every],
            "t_s": [event.t_s for event in every],
            "kind": [event.kind for event in every],
            "tier": [event.tier for event in every],
            "hashes": [list(event.hashes) for event in every],
            "parent": [event.parent for event in every],
            "tokens": [event.tokens for event in every],
            "block_tokens": [event.block_tokens for event in every],
            "group": [event.group for event in every],
        },
        schema=KV_EVENTS,
    )


def events_of(table: pd.DataFrame) -> Iterator[KvEvent]:
    """The events of such a table, in its order."""
    for row in table.to_dict("records"):
        yield KvEvent(
            batch=int(row["batch"]),
            t_s=float(row["t_s"]),
            kind=row["kind"],
            tier=row["tier"] if isinstance(row["tier"], str) else None,
            hashes=tuple(row["hashes"]),
            parent=row["parent"] if isinstance(row["parent"], bytes) else None,  # a column of nulls is one of NaN
            tokens=np.asarray(row["tokens"], np.int32),
            block_tokens=int(row["block_tokens"]),
            group=None if pd.isna(row["group"]) else int(row["group"]),
        )
