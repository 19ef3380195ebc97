"""Which chunk leaves the host tier: LRU and ARC, deciding as vLLM 0.32's policy classes do. No times, no bytes.

`references` is the host tier's: -1 while a chunk is being written, else the transfers that read it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Protocol

__all__ = ["Arc", "Lru", "Policy", "make_policy"]

References = Mapping[int, int]


class Policy(Protocol):
    """Order of the chunks in the host tier."""

    def insert(self, keys: Iterable[int]) -> None:
        """Chunks that are not here are being written."""

    bulk: bool
    """Whether inserting chunks one after the other, each after an eviction of its own, comes to the same as all
    evictions and then all of them."""

    def remove(self, key: int) -> None:
        """A chunk could not be written."""

    def missed(self, keys: Sequence[int]) -> None:
        """Chunks that are about to be inserted, once for each request."""

    def finished(self, keys: Sequence[int], inserted: Collection[int], reused: Collection[int]) -> None:
        """A request is over; `keys` are all that it touched, from the head of its prompt to the tail."""

    def evict(self, count: int, protected: Collection[int], references: References) -> list[int] | None:
        """Drop so many chunks that no transfer reads; None, and nothing is dropped, when there are not enough."""


class Lru:
    """Least recently used; within a request the tail counts as used before the head."""

    bulk = True

    def __init__(self, capacity: int) -> None:
        self._order: OrderedDict[int, None] = OrderedDict()

    def insert(self, keys: Iterable[int]) -> None:
        self._order.update(dict.fromkeys(keys))

    def remove(self, key: int) -> None:
        del self._order[key]

    def missed(self, keys: Sequence[int]) -> None:
        pass

    def finished(self, keys: Sequence[int], inserted: Collection[int], reused: Collection[int]) -> None:
        order = self._order
        move = order.move_to_end
        for key in reversed(keys):
            if key in order:
                move(key)

    def evict(self, count: int, protected: Collection[int], references: References) -> list[int] | None:
        free = (key for key in self._order if not references[key])
        if protected:
            free = (key for key in free if key not in protected)
        chosen = list(islice(free, count))
        if len(chosen) < count:
            return None
        for key in chosen:
            del self._order[key]
        return chosen


class Arc:
    """Adaptive replacement (Megiddo and Modha, 2003) as vLLM has it: ghosts of evicted chunks move the border
    between chunks seen once and chunks seen again.
    """

    bulk = False

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._target = 0.0
        """Of chunks seen once."""
        self._once: OrderedDict[int, None] = OrderedDict()
        self._again: OrderedDict[int, None] = OrderedDict()
        self._once_ghosts: OrderedDict[int, None] = OrderedDict()
        self._again_ghosts: OrderedDict[int, None] = OrderedDict()

    def insert(self, keys: Iterable[int]) -> None:
        for key in keys:
            self._once[key] = None
            self._once_ghosts.pop(key, None)
            self._again_ghosts.pop(key, None)

    def remove(self, key: int) -> None:
        if key in self._once:
            del self._once[key]
        else:
            self._again.pop(key, None)

    def missed(self, keys: Sequence[int]) -> None:
        for key in reversed(keys):
            once, again = len(self._once_ghosts), len(self._again_ghosts)
            if key in self._once_ghosts:
                self._target = min(self._target + max(1, again / once), self._capacity)
                self._once_ghosts.move_to_end(key)
            elif key in self._again_ghosts:
                self._target = max(self._target - max(1, once / again), 0)
                self._again_ghosts.move_to_end(key)

    def finished(self, keys: Sequence[int], inserted: Collection[int], reused: Collection[int]) -> None:
        once, again = self._once, self._again
        for key in reversed(keys):
            if key in inserted:
                if key in once:
                    once.move_to_end(key)
                elif key in again:
                    again.move_to_end(key)
            elif key in reused and key in once:
                del once[key]
                again[key] = None
            elif key in reused and key in again:
                again.move_to_end(key)

    def evict(self, count: int, protected: Collection[int], references: References) -> list[int] | None:
        def candidates(keys: OrderedDict[int, None]) -> Iterator[int]:
            return (key for key in keys if references[key] == 0 and key not in protected)

        once, again = candidates(self._once), candidates(self._again)
        left = len(self._once)
        chosen: list[tuple[int, bool]] = []
        for _ in range(count):
            key = next(once, None) if left >= int(self._target) else None
            from_once = key is not None
            if key is None:
                key = next(again, None)
            if key is None:
                key = next(once, None)
                from_once = True
            if key is None:
                return None
            left -= from_once
            chosen.append((key, from_once))
        for key, from_once in chosen:
            if from_once:
                del self._once[key]
                self._once_ghosts[key] = None
            else:
                del self._again[key]
                self._again_ghosts[key] = None
        if chosen:
            for ghosts in (self._once_ghosts, self._again_ghosts):
                while len(ghosts) > self._capacity:
                    ghosts.popitem(last=False)
        return [key for key, _ in chosen]


def make_policy(name: str, capacity: int) -> Policy:
    """`lru` or `arc`."""
    return Arc(capacity) if name == "arc" else Lru(capacity)
