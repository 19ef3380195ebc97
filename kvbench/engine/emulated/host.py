"""The host tier's chunks as vLLM's `CPUOffloadingManager` keeps them, and what lies on the disk tier behind it.

Keys are integers that stand for a chunk's content and everything before it. No times, no bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from kvbench.engine.emulated.policies import make_policy

__all__ = ["MOST_TRACKED", "Access", "HostChunks"]

WRITING = -1
"""In `references`: the chunk has its place, and its content is on the way."""

MOST_TRACKED = 64_000
"""Chunks whose offers are counted for `store_threshold` (vLLM's `max_tracker_size`)."""


@dataclass(slots=True)
class Access:
    """What one request touched in the host tier."""

    seen: set[int] = field(default_factory=set)
    inserted: set[int] = field(default_factory=set)
    reused: set[int] = field(default_factory=set)
    missed: set[int] = field(default_factory=set)


class HostChunks:
    """Places for chunks, who may be evicted, and whose turn it is."""

    def __init__(
        self, capacity: int, policy: str, *, store_threshold: int = 0, most_tracked: int = MOST_TRACKED
    ) -> None:
        self.capacity = capacity
        self.references: dict[int, int] = {}
        """Of every chunk here; `WRITING`, or how many transfers read it."""
        self._policy_name = policy
        self._policy = make_policy(policy, capacity)
        self._evictable = 0
        self._threshold = store_threshold
        self._most_tracked = most_tracked
        self._offers: OrderedDict[int, int] = OrderedDict()
        self.skipped = 0
        """Stores left out by the threshold so far."""

    def prepare_store(self, keys: Sequence[int], access: Access) -> tuple[list[int], list[int]] | None:
        """Make room for those that are not here: (what is to be copied, what was evicted). None: no room."""
        if self._threshold >= 2:
            self._count_offers(keys)
        references = self.references
        to_store = [key for key in keys if key not in references]
        ready = [key for key in keys if references.get(key, WRITING) >= 0]
        if self._threshold >= 2:
            wanted = [key for key in to_store if self._offers.get(key, 0) >= self._threshold]
            self.skipped += len(to_store) - len(wanted)
            to_store = wanted
        first = [key for key in to_store if key not in access.missed]
        if first:
            self._policy.missed(first)
            access.missed.update(first)
        access.seen.update(to_store, ready)
        access.reused.update(set(ready) - access.inserted)
        if not to_store:
            return [], []
        evicted: list[int] = []
        surplus = len(references) + len(to_store) - self.capacity
        if surplus > 0:
            found = self._evict(surplus, set(keys))
            if found is None:
                return None
            evicted = found
        self._policy.insert(to_store)
        references.update(dict.fromkeys(to_store, WRITING))
        access.inserted.update(to_store)
        return to_store, evicted

    def promote(self, keys: Sequence[int], access: Access) -> int:
        """`prepare_store` of chunks that are not here and come from the tier behind, one after the other: for how
        many there was room."""
        if not self._policy.bulk:
            return next((place for place, key in enumerate(keys) if not self._promote(key, access)), len(keys))
        references = self.references
        places = self.capacity - len(references)
        room = min(len(keys), max(places, 0) + self._evictable)
        tried = keys[: room + 1]
        access.missed.update(tried)
        access.seen.update(tried)
        promoted = keys[:room]
        if room > places:
            self._evict(room - places, ())
        self._policy.insert(promoted)
        references.update(dict.fromkeys(promoted, WRITING))
        access.inserted.update(promoted)
        return room

    def _promote(self, key: int, access: Access) -> bool:
        if key not in access.missed:
            self._policy.missed((key,))
            access.missed.add(key)
        access.seen.add(key)
        references = self.references
        if len(references) >= self.capacity and self._evict(1, ()) is None:
            return False
        self._policy.insert((key,))
        references[key] = WRITING
        access.inserted.add(key)
        return True

    def _evict(self, count: int, protected: Collection[int]) -> list[int] | None:
        """Let so many go; None, and none go, when there are not so many that could."""
        found = self._policy.evict(count, protected, self.references) if count <= self._evictable else None
        if found is not None:
            self._evictable -= len(found)
            for key in found:
                del self.references[key]
        return found

    def _count_offers(self, keys: Sequence[int]) -> None:
        offers = self._offers
        known = {key for key in keys if key in offers}
        for key in keys:
            if key in known:
                offers.move_to_end(key)
                offers[key] += 1
        others = len(offers) - len(known)
        for key in keys:
            if key in offers:
                continue
            if len(offers) >= self._most_tracked:
                if others == 0:
                    continue
                offers.popitem(last=False)
                others -= 1
            offers[key] = 1

    def complete_store(self, keys: Sequence[int]) -> None:
        """Their content has arrived."""
        references = self.references
        for key in keys:
            if references.get(key) == WRITING:
                references[key] = 0
                self._evictable += 1

    def prepare_load(self, keys: Sequence[int], access: Access | None) -> None:
        """A transfer begins to read them. Without `access` it is the tiers' own and no use by a request."""
        references = self.references
        for key in keys:
            readers = references[key]
            if not readers:
                self._evictable -= 1
            references[key] = readers + 1
        if access is not None:
            access.seen.update(keys)
            access.reused.update(set(keys) - access.inserted)

    def complete_load(self, keys: Sequence[int]) -> None:
        """The transfer is over."""
        references = self.references
        for key in keys:
            references[key] = left = references[key] - 1
            if not left:
                self._evictable += 1

    def request_finished(self, keys: Sequence[int], access: Access) -> None:
        """`keys` are the request's chunks from head to tail; those it touched count as used now."""
        seen = access.seen
        touched = [key for key in keys if key in seen]
        self._policy.finished(touched, access.inserted - access.reused, access.reused)

    def reset(self) -> None:
        """Forget everything, whatever is under way."""
        self.references.clear()
        self._evictable = 0
        self._policy = make_policy(self._policy_name, self.capacity)
