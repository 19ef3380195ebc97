"""Numbers for block ids, from 0 in the order of their first appearance, while a file is read part by part."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["Numbering", "Whole"]

Whole = NDArray[np.int64]

_SPARSE = 4
"""Ids up to so many times the blocks seen so far are looked up in a table, others by search."""
_SMALL_TABLE = 1 << 16


class Numbering:
    """Memory grows with different ids. Ids are any numbers of 64 bits."""

    def __init__(self) -> None:
        self.count = 0
        """Different ids so far."""
        self._table: Whole | None = np.full(_SMALL_TABLE, -1, np.int64)
        """Number of each id from 0 on; None: ids are searched in `_ids`."""
        self._ids: Whole = np.empty(0, np.int64)
        """Sorted, with `_numbers` beside it."""
        self._numbers: Whole = np.empty(0, np.int64)

    def numbers(self, ids: Whole) -> Whole:
        """The number of each; ids that were not there before get the next ones."""
        if not len(ids):
            return ids
        lowest, highest = int(ids.min()), int(ids.max())
        limit = _SPARSE * (self.count + len(ids)) + _SMALL_TABLE
        if self._table is not None and (lowest < 0 or highest >= limit):
            self._to_search(self._table)
        if self._table is None:
            return self._searched(ids)
        if highest >= len(self._table):
            more = np.full(min(limit, 2 * highest + 1), -1, np.int64)
            more[: len(self._table)] = self._table
            self._table = more
        return self._looked_up(self._table, ids)

    def _looked_up(self, table: Whole, ids: Whole) -> Whole:
        found = table[ids]
        unknown = found < 0
        fresh = ids[unknown]
        if len(fresh):
            table[fresh[::-1]] = np.arange(len(fresh))[::-1]  # of several, the last to be written stays
            first = fresh[table[fresh] == np.arange(len(fresh))]
            table[first] = np.arange(self.count, self.count + len(first))
            self.count += len(first)
            found[unknown] = table[fresh]
        return found

    def _to_search(self, table: Whole) -> None:
        self._ids = np.flatnonzero(table >= 0)
        self._numbers = table[self._ids]
        self._table = None

    def _searched(self, ids: Whole) -> Whole:
        import pandas as pd

        codes, different = pd.factorize(ids)  # in the order of first appearance
        places = np.searchsorted(self._ids, different)
        there = places < len(self._ids)
        there[there] = self._ids[places[there]] == different[there]
        numbers = np.empty(len(different), np.int64)
        numbers[there] = self._numbers[places[there]]
        fresh = ~there
        numbers[fresh] = np.arange(self.count, self.count + int(fresh.sum()))
        self.count += int(fresh.sum())
        if fresh.any():
            every = np.concatenate((self._ids, different[fresh]))
            order = np.argsort(every, kind="stable")
            self._ids, self._numbers = every[order], np.concatenate((self._numbers, numbers[fresh]))[order]
        found: Whole = numbers[codes]
        return found
