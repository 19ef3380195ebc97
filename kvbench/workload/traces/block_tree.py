"""The block lists of all requests of a trace, in memory that grows with different blocks and not with references.

Where ids stand for everything before them, each has one block before it, and a request's list is the way from the
root to its last block: one number a block and one a request are kept. Where ids are not chained so, the lists
themselves are kept.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np

from kvbench.workload.traces.numbering import Numbering, Whole

__all__ = ["BlockLists", "BlockTree"]

_FOLDED = 1 << 21
"""References that are kept as they came before they are taken into the tree."""


@dataclass(frozen=True)
class BlockTree:
    """Chained lists. Blocks are numbered from 0 in the order of their first appearance in the file."""

    before: Whole
    """The block before each block, or -1."""
    last: Whole
    """The last block of each request, or -1 where it names none."""

    def lists(self, offsets: Whole) -> Whole:
        """All lists one after the other; request i has `offsets[i]` to `offsets[i + 1]` of it."""
        blocks = np.empty(int(offsets[-1]), np.int64)
        places, here, first = offsets[1:] - 1, self.last, offsets[:-1]
        while len(places):
            left = places >= first
            places, here, first = places[left], here[left], first[left]
            blocks[places] = here
            places, here = places - 1, self.before[here]
        return blocks

    def above(self, blocks: Whole, steps: Whole) -> Whole:
        """The block that stands so many steps before each of `blocks` in its list."""
        found = blocks.copy()
        going = np.flatnonzero(steps > 0)
        step = 0
        while len(going):
            found[going] = self.before[found[going]]
            step += 1
            going = going[steps[going] > step]
        return found


class BlockLists:
    """Collects the lists of requests in the order of a file."""

    def __init__(self) -> None:
        self._fresh = array("q")
        self._fresh_counts = array("q")
        self._counts: list[Whole] = []
        self._numbering = Numbering()
        self._before: Whole = np.empty(0, np.int64)
        """As many as there are blocks, and room for more."""
        self._last: list[Whole] = []
        self._listed: list[Whole] | None = None
        """Set as soon as some block was found behind two different ones."""

    def add(self, ids: array[int]) -> None:
        """The list of one request; see `Numbering` for what ids may be."""
        self._fresh.extend(ids)
        self._fresh_counts.append(len(ids))
        self._fold_when_many()

    def add_rows(self, ids: Whole, counts: Whole) -> None:
        """Many lists, one after the other."""
        self._fresh.frombytes(np.ascontiguousarray(ids, np.int64).tobytes())
        self._fresh_counts.frombytes(np.ascontiguousarray(counts, np.int64).tobytes())
        self._fold_when_many()

    def finished(self) -> tuple[Whole, BlockTree | None, Whole]:
        """(Blocks of every request, their tree, nothing), or where ids are not chained (..., None, all lists)."""
        self._fold()
        counts = _joined(self._counts)
        if self._listed is not None:
            return counts, None, _joined(self._listed)
        before = self._before[: self._numbering.count].copy()
        return counts, BlockTree(before, _joined(self._last)), np.empty(0, np.int64)

    def _fold_when_many(self) -> None:
        if len(self._fresh) >= max(_FOLDED, self._numbering.count // 2):
            self._fold()

    def _fold(self) -> None:
        """Take what came into the tree, or behind the lists."""
        counts = np.array(self._fresh_counts, np.int64)
        known = self._numbering.count
        numbers = self._numbering.numbers(np.array(self._fresh, np.int64))
        self._fresh, self._fresh_counts = array("q"), array("q")
        if self._listed is None and not self._grown(numbers, counts, known):
            offsets = np.concatenate(([0], np.cumsum(_joined(self._counts))))
            self._listed = [BlockTree(self._before, _joined(self._last)).lists(offsets)]
            self._last = []
        self._counts.append(counts)
        if self._listed is not None:
            self._listed.append(numbers)
            return
        last = np.full(len(counts), -1, np.int64)
        last[counts > 0] = numbers[np.cumsum(counts)[counts > 0] - 1]
        self._last.append(last)

    def _grown(self, numbers: Whole, counts: Whole, known: int) -> bool:
        """Whether every block, of which the first `known` were there before, stands behind one and the same."""
        total = self._numbering.count
        if total > len(self._before):
            more = np.empty(total + total // 2, np.int64)
            more[:known] = self._before[:known]
            self._before = more
        previous = np.empty(len(numbers), np.int64)
        previous[1:] = numbers[:-1]
        previous[(np.cumsum(counts) - counts)[counts > 0]] = -1
        new = numbers >= known
        if not np.array_equal(self._before[numbers[~new]], previous[~new]):
            return False
        self._before[numbers[new]] = previous[new]
        return np.array_equal(self._before[numbers[new]], previous[new])


def _joined(parts: list[Whole]) -> Whole:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
