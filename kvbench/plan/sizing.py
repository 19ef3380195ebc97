"""How large a cache must be for a share of the reuse, also in bytes of a model. Blocks, tokens, bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvbench.plan.geometry import KvGeometry
from kvbench.plan.references import ratio
from kvbench.plan.spread import Rows
from kvbench.workload.traces.trace import Whole

__all__ = ["HitCurve", "bytes_of_models", "needed"]

_SHARES = (0.5, 0.8, 0.9, 0.95, 0.99, 1.0)


@dataclass(frozen=True)
class HitCurve:
    """The tokens that an LRU of any size serves. An LRU must hold more blocks than a block needs."""

    needed: Rows
    """By each block; in a row of blocks each needs one more than the one before it."""
    block_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, needed: Whole, sizes: Whole, block_tokens: int, total_tokens: int) -> HitCurve:
        """From what the first block of each row needs, and how many blocks it has."""
        return cls(Rows.of(needed, sizes), block_tokens, total_tokens)

    def tokens_at(self, capacity_blocks: int) -> int:
        """Served at a capacity: of each row as many blocks as need less than it."""
        return self.needed.below(capacity_blocks) * self.block_tokens

    def share(self, capacity_blocks: int) -> float:
        """Of all prompt tokens, at a capacity."""
        return self.tokens_at(capacity_blocks) / self.total_tokens if self.total_tokens else 0.0

    @property
    def best(self) -> float:
        """At an unlimited capacity."""
        return self.share(self.needed.end)

    def blocks_for(self, share_of_best: float) -> int | None:
        """The smallest capacity that serves this share of what an unlimited one serves; None: nothing is reused."""
        blocks = self.needed.below(self.needed.end)
        if not blocks:
            return None
        return self.needed.smallest_with(math.ceil(share_of_best * blocks - 1e-9))


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
