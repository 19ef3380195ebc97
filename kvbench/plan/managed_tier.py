"""A tier of single blocks that keeps and drops what vLLM's host tier would, by LRU or ARC. In blocks.

The policies are those of the emulated engine, which are checked against vLLM's own. A request's blocks are offered
at once: those that are not there are stored if there is room beside the others of the same request, else none is.
With a threshold, only those that are offered often enough count.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from kvbench.engine.emulated.host import MOST_TRACKED, Access, HostChunks

__all__ = ["ManagedTier", "Part"]

Part = tuple[int, int, int]
"""A run, and from which of its blocks to which."""


class ManagedTier:
    """Blocks by the run that they are part of and their place in it. `run_sizes` has the blocks of every run."""

    def __init__(
        self,
        capacity: int,
        policy: str,
        run_sizes: Sequence[int],
        *,
        store_threshold: int = 0,
        most_tracked: int = MOST_TRACKED,
    ) -> None:
        self.writes = 0
        """Blocks stored so far."""
        self._sizes = run_sizes
        self._first = [0, *accumulate(run_sizes)]
        self._host = HostChunks(capacity, policy, store_threshold=store_threshold, most_tracked=most_tracked)

    def reach(self, run: int, block: int) -> int:
        """How far from this block on a run is held without a gap; `block` itself when that one is not."""
        held, first = self._host.references, self._first[run]
        size = self._sizes[run]
        while block < size and first + block in held:
            block += 1
        return block

    def begins(self, run: int, block: int, end: int) -> int:
        """Where between two blocks of a run, the first one left out, the next held one is; `end` when none is."""
        held, first = self._host.references, self._first[run]
        return next((place for place in range(block + 1, end) if first + place in held), end)

    def use(self, parts: Sequence[Part]) -> None:
        """One request uses these, the last one first."""
        keys: dict[int, None] = {}
        for run, start, end in reversed(parts):
            first = self._first[run]
            keys.update(dict.fromkeys(range(first + start, first + end)))
        used, access = list(keys), Access()
        prepared = self._host.prepare_store(used, access)
        if prepared is not None:
            self._host.complete_store(prepared[0])
            self.writes += len(prepared[0])
        self._host.request_finished(used, access)
