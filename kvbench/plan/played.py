"""Tiers that have to be played: one sees only what the faster ones did not serve, or decides by ARC. In blocks.

Computed blocks are written to every tier; a hit in tier j renews the tiers up to j, or all of them. Requests are
played one after the other: what a tier sees depends on what the others hold. A run is touched last block first, so
that of what was touched together its end is the oldest.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Protocol

from kvbench.plan.managed_tier import ManagedTier, Part
from kvbench.plan.runs import Runs

__all__ = ["play"]

_Segment = tuple[int, int, int]
"""From a block of a run to another, and the tier that served them."""


class _Tier(Protocol):
    """What a hierarchy is made of."""

    writes: int

    def reach(self, run: int, block: int) -> int:
        """From a block of a run that is here, how far more of it surely is; `block` itself when it is not."""

    def begins(self, run: int, block: int, end: int) -> int:
        """Where between two blocks of a run the next held ones begin; `end` when none do."""

    def use(self, parts: Sequence[Part]) -> None:
        """A request uses these, the last one of its prompt first."""


class _Lru:
    """An LRU of blocks that keeps what was touched together as one piece."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.writes = 0
        self._blocks = 0
        self._touches = 0
        self._order: OrderedDict[int, int] = OrderedDict()
        """The run of each touch that has left anything, the oldest first."""
        self._pieces: dict[int, list[tuple[int, int, int]]] = {}
        """By run: (from block, to block, touch), rising."""

    def reach(self, run: int, block: int) -> int:
        """The end of the piece that holds this block of the run; `block` itself when none does."""
        for start, end, _ in self._pieces.get(run, ()):
            if start <= block < end:
                return end
        return block

    def begins(self, run: int, block: int, end: int) -> int:
        """Where between two blocks of a run the next piece begins; `end` when none does."""
        return next((start for start, _, _ in self._pieces.get(run, ()) if block < start < end), end)

    def use(self, parts: Sequence[Part]) -> None:
        """As they come; each part's last block first."""
        for run, start, end in parts:
            self._touch(run, start, end)

    def _touch(self, run: int, start: int, end: int) -> None:
        """Put in or renew blocks of a run, the last one first; each new one drives out the oldest when full."""
        self._touches += 1
        touch = self._touches
        pieces = self._pieces.setdefault(run, [])
        if not pieces:  # nothing of it is here: the usual case
            pieces.append((start, end, touch))
            self._order[touch] = run
            self.writes += end - start
            self._blocks += end - start
            self._evict()
            return
        if len(pieces) == 1 and pieces[0][:2] == (start, end):  # all of it is here, and nothing more
            del self._order[pieces[0][2]]
            pieces[0] = (start, end, touch)
            self._order[touch] = run
            return
        while end > start:
            low = self._renew(pieces, start, end, touch)
            if low == end:
                low = max([start, *(stop for _, stop, _ in pieces if stop < end and stop > start)])
                pieces.append((low, end, touch))
                self.writes += end - low
                self._blocks += end - low
            pieces.sort()
            self._order[touch] = run
            self._evict()
            end = low

    def _renew(self, pieces: list[tuple[int, int, int]], start: int, end: int, touch: int) -> int:
        """Make the piece before `end` recent as far down as `start`; where that is, or `end` when there is none."""
        for place, (low, high, old) in enumerate(pieces):
            if low < end <= high and old != touch:
                first = max(low, start)
                rest = [(low, first, old)] * (low < first) + [(end, high, old)] * (end < high)
                pieces[place : place + 1] = [*rest, (first, end, touch)]
                if not any(other == old for _, _, other in pieces):
                    del self._order[old]
                return first
        return end

    def _evict(self) -> None:
        while self._blocks > self.capacity:
            touch, run = next(iter(self._order.items()))
            pieces = self._pieces[run]
            place = len(pieces) - 1
            while pieces[place][2] != touch:
                place -= 1
            start, end, _ = pieces[place]
            surplus = min(self._blocks - self.capacity, end - start)
            self._blocks -= surplus
            if surplus < end - start:
                pieces[place] = (start, end - surplus, touch)
                return
            del pieces[place]
            if not pieces or not any(other == touch for _, _, other in pieces):
                del self._order[touch]


def play(
    runs: Runs, capacities: Sequence[int], *, filtered: bool, arc: int | None = None
) -> tuple[list[int], list[int], list[int]]:
    """(Blocks served, tokens served, blocks written) of every tier, fastest first.

    `filtered`: a tier is not renewed by what a faster one served. `arc` is the tier, if any, that is no LRU.
    """
    sizes_of_runs = runs.run_sizes().tolist() if arc is not None else []
    tiers: list[_Tier] = [
        ManagedTier(capacity, "arc", sizes_of_runs) if number == arc else _Lru(capacity)
        for number, capacity in enumerate(capacities)
    ]
    blocks, tokens = [0] * len(tiers), [0] * len(tiers)
    names, sizes = runs.runs.tolist(), runs.sizes.tolist()
    can_hit, told = runs.can_hit.tolist(), runs.tokens.tolist()
    for first, end in pairwise(runs.offsets.tolist()):
        served: list[list[_Segment]] = []
        for place in range(first, end):
            found = _serve(tiers, names[place], sizes[place]) if can_hit[place] else []
            served.append(found)
            for start, stop, number in found:
                blocks[number] += stop - start
                size = runs.block_tokens
                tokens[number] += min(stop * size, told[place]) - min(start * size, told[place])
            if not found or found[-1][1] < sizes[place]:
                break
        for number, tier in enumerate(tiers):
            parts: list[Part] = []
            for place in range(end - 1, first - 1, -1):
                found = served[place - first] if filtered and place - first < len(served) else []
                parts += ((names[place], *span) for span in _unserved(found, sizes[place], number))
            tier.use(parts)
    return blocks, tokens, [tier.writes for tier in tiers]


def _serve(tiers: Sequence[_Tier], run: int, size: int) -> list[_Segment]:
    """The leading blocks of a run that the tiers hold, each from the fastest that does."""
    found: list[_Segment] = []
    block = 0
    while block < size:
        for number, tier in enumerate(tiers):
            end = tier.reach(run, block)
            if end > block:
                for faster in tiers[:number]:
                    end = faster.begins(run, block, end)
                found.append((block, end, number))
                block = end
                break
        else:
            break
    return found


def _unserved(found: Sequence[_Segment], size: int, number: int) -> Iterator[tuple[int, int]]:
    """What tiers faster than this one did not serve, the last part first."""
    end = size
    for start, stop, tier in reversed(found):
        if tier < number:
            if stop < end:
                yield stop, end
            end = start
    if end > 0:
        yield 0, end
