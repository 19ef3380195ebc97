"""How large a cache must be for a share of the reuse, also in bytes of a model. Blocks, tokens, bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kvbench.plan.geometry import KvGeometry
from kvbench.plan.references import ratio
from kvbench.workload.traces.trace import Whole

__all__ = ["HitCurve", "bytes_of_models", "needed"]

_SHARES = (0.5, 0.8, 0.9, 0.95, 0.99, 1.0)


@dataclass(frozen=True)
class HitCurve:
    """The tokens that an LRU of any size serves. It is made of rows of blocks, each of which needs one more than
    the one before it; an LRU must hold more blocks than a block needs.
    """

    first: Whole
    """What the first block of each row needs, sorted."""
    beyond: Whole
    """One more than what the last block of each row needs, sorted."""
    first_sums: Whole
    beyond_sums: Whole
    """Sums of these up to each place."""
    block_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, needed: Whole, sizes: Whole, block_tokens: int, total_tokens: int) -> HitCurve:
        """From what the first block of each row needs, and how many blocks it has."""
        first, beyond = np.sort(needed), np.sort(needed + sizes)
        sums, beyond_sums = (np.concatenate(([0], np.cumsum(values))) for values in (first, beyond))
        return cls(first, beyond, sums, beyond_sums, block_tokens, total_tokens)

    def tokens_at(self, capacity_blocks: int) -> int:
        """Served at a capacity: of each row as many blocks as need less than it."""
        begun = int(np.searchsorted(self.first, capacity_blocks, side="left"))
        ended = int(np.searchsorted(self.beyond, capacity_blocks, side="left"))
        blocks = (begun - ended) * capacity_blocks - int(self.first_sums[begun]) + int(self.beyond_sums[ended])
        return blocks * self.block_tokens

    def share(self, capacity_blocks: int) -> float:
        """Of all prompt tokens, at a capacity."""
        return self.tokens_at(capacity_blocks) / self.total_tokens if self.total_tokens else 0.0

    @property
    def best(self) -> float:
        """At an unlimited capacity."""
        return self.share(int(self.beyond[-1])) if len(self.beyond) else 0.0

    def blocks_for(self, share_of_best: float) -> int | None:
        """The smallest capacity that serves this share of what an unlimited one serves; None: nothing is reused."""
        if not len(self.beyond):
            return None
        low, high = 0, int(self.beyond[-1])
        wanted = share_of_best * self.tokens_at(high) - 1e-9
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.tokens_at(middle) >= wanted else (middle, high)
        return high


def needed(curve: HitCurve) -> list[dict[str, float | int | None]]:
    """Capacities for shares of the reuse, the knee of the curve among them."""
    return [
        {
            "share_of_reuse": share,
            "blocks": blocks,
            "token_hit_rate": None if blocks is None else curve.share(blocks),
        }
        for share in _SHARES
        for blocks in [curve.blocks_for(share)]
    ]


def bytes_of_models(
    geometries: Sequence[KvGeometry],
    *,
    block_tokens: int,
    unique_blocks: int,
    sizes: Sequence[Mapping[str, float | int | None]],
    duration_s: float,
) -> list[dict[str, object]]:
    """The trace in bytes of each model: all different blocks, the capacities of `needed`, and writes per day."""
    found: list[dict[str, object]] = []
    for geometry in geometries:
        block_bytes = geometry.block_bytes(block_tokens)
        all_bytes = unique_blocks * block_bytes
        a_day = ratio(all_bytes * 86_400, duration_s)
        found.append(
            {
                "model": geometry.name,
                "attention": geometry.attention,
                "kv_dtype": geometry.kv_dtype,
                "bytes_per_token": geometry.block_token_bytes,
                "bytes_per_block": block_bytes,
                "unique_bytes": all_bytes,
                "bytes_for_share_of_reuse": [
                    {
                        "share_of_reuse": entry["share_of_reuse"],
                        "bytes": None if entry["blocks"] is None else int(entry["blocks"]) * block_bytes,
                    }
                    for entry in sizes
                ],
                "written_bytes_per_day": a_day,
            }
        )
    return found
