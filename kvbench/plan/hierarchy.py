"""Tiers behind each other, LRUs of whole blocks or one an ARC: who serves a hit, what is written. In blocks.

Requests come one after the other and take no time. A request looks up its leading blocks in the state before it,
each served by the fastest tier that holds it; then all its blocks are used, the last first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import numpy as np

from kvbench.plan.depths import Depths
from kvbench.plan.played import play
from kvbench.plan.references import ratio, running_maximum
from kvbench.plan.runs import Runs
from kvbench.plan.stack import NEVER

__all__ = ["INCLUSIONS", "Inclusion", "TierUse", "hierarchy", "usual_hierarchies"]

Inclusion = Literal["exclusive", "inclusive_touch_all", "inclusive_filtered"]
"""`exclusive`: a used block moves to the first tier, what a tier evicts goes to the recent end of the next.
`inclusive_touch_all`: a used block is put in, or made recent, in every tier. So does vLLM, which offers all blocks
of a prompt to the host tier, wherever they were found.
`inclusive_filtered`: computed blocks are written to every tier; a hit in tier j refreshes the tiers up to j only.
"""
INCLUSIONS: tuple[Inclusion, ...] = ("exclusive", "inclusive_touch_all", "inclusive_filtered")

_USUAL_SHARES = ((0.01, 0.05), (0.01, 0.1), (0.02, 0.2), (0.05, 0.5), (0.01, 0.05, 0.3), (0.02, 0.1, 0.5))


@dataclass(frozen=True)
class TierUse:
    """What every tier did, fastest first."""

    capacities: tuple[int, ...]
    mode: Inclusion
    hit_blocks: tuple[int, ...]
    hit_tokens: tuple[int, ...]
    writes: tuple[int, ...]
    """Blocks newly put in."""
    total_blocks: int
    total_tokens: int
    arc: int | None = None
    """Which tier, if any, evicts by ARC; the others by LRU."""

    def document(self, tail: str) -> dict[str, object]:
        """For machines. Where all tiers are LRUs, these are the keys of the reference numbers."""
        policies = ["arc" if tier == self.arc else "lru" for tier in range(len(self.capacities))]
        own = {} if self.arc is None else {"policies": policies}
        return own | {
            "capacities": list(self.capacities),
            "mode": self.mode,
            "tail": tail,
            "start_request": 0,
            "hit_blocks_per_tier": list(self.hit_blocks),
            "block_hit_rate_per_tier": [ratio(hits, self.total_blocks) for hits in self.hit_blocks],
            "block_hit_rate_total": ratio(sum(self.hit_blocks), self.total_blocks),
            "token_hit_rate_per_tier": [ratio(hits, self.total_tokens) for hits in self.hit_tokens],
            "token_hit_rate_total": ratio(sum(self.hit_tokens), self.total_tokens),
            "loads_per_tier": [0, *self.hit_blocks[1:]],
            "writes_per_tier": list(self.writes),
            "total_blocks": self.total_blocks,
        }


def usual_hierarchies(unique_blocks: int) -> list[tuple[int, ...]]:
    """Shares of all blocks of the trace, two and three tiers; no tier is empty."""
    return [tuple(max(1, int(unique_blocks * share)) for share in shares) for shares in _USUAL_SHARES]


def hierarchy(
    runs: Runs,
    depths: Depths,
    capacities: Sequence[int],
    mode: Inclusion,
    total_tokens: int,
    *,
    arc: int | None = None,
) -> TierUse:
    """Play all references through tiers of these capacities, fastest first. `depths` are those of `runs`.

    The tier `arc` decides as vLLM's host tier does under ARC; that cannot be together with `exclusive`.
    """
    sizes = tuple(capacities)
    if mode == "inclusive_filtered" or arc is not None:
        if mode == "exclusive":
            raise ValueError("an ARC tier takes in what is used, not what a faster tier evicts")
        hit_blocks, hit_tokens, writes = play(runs, sizes, filtered=mode == "inclusive_filtered", arc=arc)
    else:
        edges = _edges(sizes, mode)
        hit_blocks, hit_tokens = _served(runs, depths, edges)
        writes = _writes(depths, sizes, mode)
    counted = tuple(hit_blocks), tuple(hit_tokens), tuple(writes)
    return TierUse(sizes, mode, *counted, runs.blocks, total_tokens, arc)


def _edges(sizes: Sequence[int], mode: Inclusion) -> list[int]:
    """A block that lies less deep than this in one stack of all touches is in this tier or a faster one.

    Tiers that hand their oldest block to the next are one stack cut into pieces; those that see every touch are
    stacks of their own, of which the largest so far tells.
    """
    return list(accumulate(sizes) if mode == "exclusive" else accumulate(sizes, max))


def _served(runs: Runs, depths: Depths, edges: Sequence[int]) -> tuple[list[int], list[int]]:
    """Blocks and tokens that each tier serves. Of a request, blocks hit up to the first that no tier holds."""
    arrival = np.where(runs.can_hit, depths.arrival, NEVER)
    worst = arrival if runs.chained else running_maximum(runs.requests, arrival)
    near = np.flatnonzero(worst < edges[-1])
    """Runs of which some tier serves a block."""
    arrival, sizes, told = arrival[near], runs.sizes[near], runs.tokens[near]
    reached = np.minimum(edges[-1] - worst[near], sizes)
    blocks, tokens = [0], [0]
    for edge in edges:
        here = np.minimum(np.clip(edge - arrival, 0, sizes), reached)
        blocks.append(int(here.sum()))
        tokens.append(int(np.minimum(here * runs.block_tokens, told).sum()))
    return np.diff(blocks).tolist(), np.diff(tokens).tolist()


def _writes(depths: Depths, sizes: Sequence[int], mode: Inclusion) -> list[int]:
    """Blocks newly put in. A stack of C blocks takes one in at every touch that finds it C deep or deeper; what it
    has taken in and no longer holds went to the next.
    """

    if mode == "inclusive_touch_all":
        return [depths.missing(size) for size in sizes]
    unique, upto = depths.missing(NEVER), list(accumulate(sizes))
    return [depths.missing(upto[0]), *(depths.missing(size) - min(size, unique) for size in upto[:-1])]
