"""Tiers behind each other, each an LRU of whole blocks: who serves a hit, what is written and loaded. In blocks.

Requests come one after the other and take no time. A request looks up its leading blocks in the state before it,
each served by the fastest tier that holds it; then all its blocks are used, the last first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kvbench.plan.references import References, ratio, running_maximum
from kvbench.plan.stack import NEVER, arrival_depths, stack_distances
from kvbench.workload.traces.trace import Whole

__all__ = ["INCLUSIONS", "Inclusion", "TierUse", "hierarchy", "usual_hierarchies"]

Inclusion = Literal["exclusive", "inclusive_touch_all", "inclusive_filtered"]
"""`exclusive`: a used block moves to the first tier, what a tier evicts goes to the recent end of the next.
`inclusive_touch_all`: a used block is put in, or made recent, in every tier.
`inclusive_filtered`: computed blocks are written to every tier; a hit in tier j refreshes the tiers up to j only.
"""
INCLUSIONS: tuple[Inclusion, ...] = ("exclusive", "inclusive_touch_all", "inclusive_filtered")

_USUAL_SHARES = ((0.01, 0.05), (0.01, 0.1), (0.02, 0.2), (0.05, 0.5), (0.01, 0.05, 0.3), (0.02, 0.1, 0.5))
_Lru = OrderedDict[int, None]


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

    def document(self, tail: str) -> dict[str, object]:
        """For machines."""
        return {
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


def hierarchy(refs: References, capacities: Sequence[int], mode: Inclusion) -> TierUse:
    """Play all references through tiers of these capacities, fastest first."""
    sizes = tuple(capacities)
    if mode == "inclusive_touch_all":
        served, writes = _everywhere(refs, sizes)
    else:
        served, writes = _played(refs, sizes, _use_exclusive if mode == "exclusive" else _use_filtered)
    return TierUse(
        capacities=sizes,
        mode=mode,
        hit_blocks=tuple(int(np.sum(served == tier)) for tier in range(len(sizes))),
        hit_tokens=tuple(int(refs.tokens[served == tier].sum()) for tier in range(len(sizes))),
        writes=tuple(writes),
        total_blocks=len(served),
        total_tokens=refs.total_tokens,
    )


_Served = NDArray[np.int8]
"""The tier that served each reference, or -1."""
_Use = Callable[[list[int], list[int], list[_Lru], Sequence[int], list[int]], None]
"""Uses the blocks of a request, of which the leading ones were served by these tiers; counts writes."""


def _everywhere(refs: References, sizes: Sequence[int]) -> tuple[_Served, list[int]]:
    """Every tier is a plain LRU of all touches, so that stack distances tell all."""
    depths = np.where(refs.can_hit, arrival_depths(refs), NEVER)
    hits = running_maximum(refs, depths) < max(sizes)
    served = np.full(len(depths), -1, np.int8)
    for tier, size in reversed(list(enumerate(sizes))):
        served[hits & (depths < size)] = tier
    return served, _writes_of_lrus(refs, sizes)


def _played(refs: References, sizes: Sequence[int], use: _Use) -> tuple[_Served, list[int]]:
    """One reference after the other, where what a tier sees depends on the tiers before it."""
    tiers: list[_Lru] = [OrderedDict() for _ in sizes]
    writes = [0] * len(sizes)
    flat, can_hit = refs.blocks.tolist(), refs.can_hit.tolist()
    served = np.full(len(flat), -1, np.int8)
    for start, end in pairwise(refs.offsets.tolist()):
        path = flat[start:end]
        by = _served_by(path, can_hit[start:end], tiers)
        served[start : start + len(by)] = by
        use(path, by, tiers, sizes, writes)
    return served, writes


def _served_by(path: list[int], can_hit: list[bool], tiers: list[_Lru]) -> list[int]:
    """The tier of every leading block that some tier holds."""
    by: list[int] = []
    for block, allowed in zip(path, can_hit, strict=True):
        if not allowed:
            break
        for number, tier in enumerate(tiers):
            if block in tier:
                by.append(number)
                break
        else:
            break
    return by


def _use_exclusive(
    path: list[int], by: list[int], tiers: list[_Lru], sizes: Sequence[int], writes: list[int]
) -> None:
    first, lower = tiers[0], tiers[1:]
    for block in reversed(path):
        if block in first:
            first.move_to_end(block)
            continue
        for tier in lower:
            if tier.pop(block, 0) is None:
                break
        victim = block
        for number, tier in enumerate(tiers):
            tier[victim] = None
            writes[number] += 1
            if len(tier) <= sizes[number]:
                break
            victim = tier.popitem(last=False)[0]


def _use_filtered(
    path: list[int], by: list[int], tiers: list[_Lru], sizes: Sequence[int], writes: list[int]
) -> None:
    for number, tier in enumerate(tiers):
        size = sizes[number]
        for index in range(len(path) - 1, -1, -1):
            if index < len(by) and by[index] < number:
                continue
            block = path[index]
            if block in tier:
                tier.move_to_end(block)
            else:
                tier[block] = None
                writes[number] += 1
                if len(tier) > size:
                    tier.popitem(last=False)


def _writes_of_lrus(refs: References, sizes: Sequence[int]) -> list[int]:
    """Misses of plain LRUs over the stream of touches, in which every request is reversed."""
    ends = refs.offsets[1:][refs.requests]
    order: Whole = np.empty(len(refs.blocks), np.int64)
    order[refs.offsets[:-1][refs.requests] + ends - 1 - np.arange(len(order))] = np.arange(len(order))
    distances = stack_distances(refs.blocks[order])
    return [int(np.sum(distances >= size)) for size in sizes]
