"""Which blocks lay in which tier when, replayed from an engine's KV events.

Events are counted through in the order in which the engine said them: `place` n is the state after the first n. An
engine says what happened in a step when the step ends, so the state that a look-up met is the one said before it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from kvbench.ledger.events import KvEvent

__all__ = ["UNKNOWN", "Announcement", "BlockHistory", "Prompt"]

UNKNOWN = -1
"""Stands in a prompt for a token of which only the place is known: an answer that a session carries along."""
Prompt = NDArray[np.int32]
_ROOT = b""
MOST_PATHS = 32
"""So many ways through a prompt with unknown tokens are tried."""


@dataclass(frozen=True, slots=True, eq=False)
class Announcement:
    """Blocks that follow one another in a prompt and were stored together."""

    place: int
    """The state before it."""
    blocks: tuple[bytes, ...]


class BlockHistory:
    """The events of one round, of one group of layers: the first that is told of."""

    def __init__(self, events: Iterable[KvEvent]) -> None:
        self.block_tokens = 0
        self.lost_at: int | None = None
        """The place from which on nothing is certain, because batches never came."""
        self._times: list[float] = []
        self._children: dict[bytes, dict[bytes, bytes]] = {}
        self._changes: dict[str, dict[bytes, list[tuple[int, int]]]] = {}
        self._loads: dict[bytes, list[Announcement]] = {}
        self._group: int | None = None
        for place, event in enumerate(events):
            # Clocks that are read one after the other may put an event before the one that was said before it.
            self._times.append(max(event.t_s, self._times[-1]) if self._times else event.t_s)
            self._take(place, event)

    def _take(self, place: int, event: KvEvent) -> None:
        if event.kind == "lost":
            self.lost_at = place if self.lost_at is None else self.lost_at
        elif event.kind == "cleared":
            for block, changes in self._changes.get("device", {}).items():
                if changes[-1][1] > 0:
                    self._change("device", block, place, -changes[-1][1])
        elif event.tier is not None and self._of_first_group(event):
            step = 1 if event.kind == "stored" else -1
            for block in event.hashes:
                self._change(event.tier, block, place, step)
            if event.kind == "stored" and event.tier == "device" and event.hashes:
                self._learn(event)
                self._loads.setdefault(event.hashes[-1], []).append(Announcement(place, event.hashes))

    def _of_first_group(self, event: KvEvent) -> bool:
        if self._group is None:
            self._group = event.group
        return event.group is None or event.group == self._group

    def _change(self, tier: str, block: bytes, place: int, step: int) -> None:
        """Two requests may compute one block at once, so copies on the device are counted; a tier behind it holds a
        block once, however often it says so."""
        changes = self._changes.setdefault(tier, {}).setdefault(block, [])
        before = changes[-1][1] if changes else 0
        after = max(before + step, 0) if tier == "device" else int(step > 0)
        changes.append((place, after))

    def _learn(self, event: KvEvent) -> None:
        """Which tokens each block holds, and which block it follows."""
        width = event.block_tokens
        if width <= 0 or len(event.tokens) != width * len(event.hashes):
            return
        self.block_tokens = self.block_tokens or width
        parent = event.parent or _ROOT
        for index, block in enumerate(event.hashes):
            tokens = event.tokens[index * width : (index + 1) * width]
            self._children.setdefault(parent, {})[tokens.tobytes()] = block
            parent = block

    # -- asking -----------------------------------------------------------------------------------------------

    def place_at(self, t_s: float) -> int:
        """How many events had been said by then."""
        return bisect_right(self._times, t_s)

    def tells(self, tier: str) -> bool:
        """Whether anything was ever said of a tier."""
        return bool(self._changes.get(tier))

    def lies_in(self, tier: str, block: bytes, place: int) -> bool:
        """Whether a block was in a tier after the first `place` events."""
        changes = self._changes.get(tier, {}).get(block, [])
        before = bisect_left(changes, (place, 0))
        return before > 0 and changes[before - 1][1] > 0

    def arrivals(self, tier: str, block: bytes, first: int, end: int) -> Iterator[int]:
        """Places of the events from `first` to before `end` that put a block into a tier."""
        changes = self._changes.get(tier, {}).get(block, [])
        for at in range(bisect_left(changes, (first, 0)), len(changes)):
            place, count = changes[at]
            if place >= end:
                return
            if count > (changes[at - 1][1] if at else 0):
                yield place

    def time_of(self, place: int) -> float:
        """When the event at a place was said."""
        return self._times[place]

    def stays(self, tier: str) -> Iterator[tuple[bytes, int, int | None]]:
        """(block, place of the event that brought it, of the one that took it away) for every stay in a tier; None:
        it was there to the end."""
        for block, changes in self._changes.get(tier, {}).items():
            began: int | None = None
            for place, count in changes:
                if began is None and count > 0:
                    began = place
                elif began is not None and count == 0:
                    yield block, began, place
                    began = None
            if began is not None:
                yield block, began, None

    def announced(self, last: bytes, first: int, end: int) -> Iterator[Announcement]:
        """What was stored on the device together and ended with this block, from place `first` to before `end`."""
        return (found for found in self._loads.get(last, ()) if first <= found.place < end)

    def paths(self, prompt: Prompt, blocks: int) -> Iterator[tuple[bytes, ...]]:
        """The first blocks of a prompt, where all of them were told of with these tokens. Where tokens are unknown
        several may fit: equal prompts whose answers differed."""
        width = self.block_tokens
        if width and blocks * width <= len(prompt):
            yield from islice(self._descend(_ROOT, prompt, 0, blocks), MOST_PATHS)

    def _descend(self, parent: bytes, prompt: Prompt, index: int, blocks: int) -> Iterator[tuple[bytes, ...]]:
        """Block by block as long as only one fits; behind a fork, each of them."""
        found: list[bytes] = []
        width = self.block_tokens
        while index < blocks:
            fitting = self._fitting(parent, prompt[index * width : (index + 1) * width])
            index += 1
            if len(fitting) != 1:
                for block in fitting:
                    yield from ((*found, block, *rest) for rest in self._descend(block, prompt, index, blocks))
                return
            parent = fitting[0]
            found.append(parent)
        yield tuple(found)

    def _fitting(self, parent: bytes, wanted: Prompt) -> list[bytes]:
        """Blocks that follow `parent` and hold these tokens."""
        children = self._children.get(parent, {})
        known = wanted != UNKNOWN
        if known.all():
            block = children.get(wanted.tobytes())
            return [] if block is None else [block]
        return [
            block
            for tokens, block in children.items()
            if np.array_equal(np.frombuffer(tokens, np.int32)[known], wanted[known])
        ]
