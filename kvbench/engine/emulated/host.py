"""The host tier's chunks as vLLM's `CPUOffloadingManager` keeps them, and what lies on the disk tier behind it.

Keys are integers that stand for a chunk's content and everything before it. No times, no bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
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

    def __init__(self, capacity: int, policy: str, *, store_threshold: int = 0) -> None:
        self.capacity = capacity
        self.references: dict[int, int] = {}
        """Of every chunk here; `WRITING`, or how many transfers read it."""
        self._policy_name = policy
        self._policy = make_policy(policy, capacity)
        self._evictable = 0
        self._threshold = store_threshold
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
        access.reused.update(key for key in ready if key not in access.inserted)
        if not to_store:
            return [], []
        evicted: list[int] = []
        surplus = len(references) + len(to_store) - self.capacity
        if surplus > 0:
            found = self._policy.evict(surplus, set(keys), references) if surplus <= self._evictable else None
            if found is None:
                return None
            evicted = found
            self._evictable -= len(evicted)
            for key in evicted:
                del references[key]
        for key in to_store:
            self._policy.insert(key)
            references[key] = WRITING
        access.inserted.update(to_store)
        return to_store, evicted

    def promote(self, key: int, access: Access) -> bool:
        """`prepare_store` of one chunk that is not here and comes from the tier behind; False: no room."""
        if key not in access.missed:
            self._policy.missed((key,))
            access.missed.add(key)
        access.seen.add(key)
        references = self.references
        if len(references) >= self.capacity:
            found = self._policy.evict(1, (), references) if self._evictable else None
            if found is None:
                return False
            self._evictable -= 1
            del references[found[0]]
        self._policy.insert(key)
        references[key] = WRITING
        access.inserted.add(key)
        return True

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
            if len(offers) >= MOST_TRACKED:
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
            if references[key] == 0:
                self._evictable -= 1
            references[key] += 1
        if access is not None:
            access.seen.update(keys)
            access.reused.update(key for key in keys if key not in access.inserted)

    def complete_load(self, keys: Sequence[int]) -> None:
        """The transfer is over."""
        references = self.references
        for key in keys:
            references[key] -= 1
            if references[key] == 0:
                self._evictable += 1

    def request_finished(self, keys: Sequence[int], access: Access) -> None:
        """`keys` are the request's chunks from head to tail; those it touched count as used now."""
        touched = [key for key in keys if key in access.seen]
        self._policy.finished(touched, access.inserted - access.reused, access.reused)

    def reset(self) -> None:
        """Forget everything, whatever is under way."""
        self.references.clear()
        self._evictable = 0
        self._policy = make_policy(self._policy_name, self.capacity)
