"""Columns of tables as arrays. What they hold is to be read only: it may be the table's own memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

__all__ = ["Bools", "Floats", "Ids", "Rows", "at_ranks", "common", "flag", "median", "numbers", "rows"]

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ids = npt.NDArray[np.int64]
Rows = Bools | npt.NDArray[np.intp] | slice
"""Some rows of a table, to index its columns with."""


def numbers(table: pd.DataFrame, column: str) -> Floats:
    """A column as floats; null is NaN."""
    series = table[column]
    if isinstance(series.dtype, np.dtype) and series.dtype.kind in "fiu":  # there null is NaN already
        return np.asarray(series.to_numpy(), dtype=np.float64)
    values: Floats = series.to_numpy(dtype=np.float64, na_value=np.nan)
    return values


def flag(table: pd.DataFrame, column: str) -> Bools:
    """Where a column is true; null is not."""
    chosen: Bools = (table[column] == True).to_numpy(dtype=bool)  # noqa: E712 - null is not True
    return chosen


def rows(chosen: Bools) -> Bools | slice:
    """The same rows; as a slice where they stand together, which takes them without a copy."""
    first, count = (int(chosen.argmax()), int(chosen.sum())) if len(chosen) else (0, 0)
    together = slice(first, first + count)
    return together if chosen[together].all() else chosen


def common(one: Ids, other: Ids) -> tuple[Rows, Rows]:
    """Where two columns of ids have the same ones, in each of them; in the same order."""
    if np.array_equal(one, other):
        return slice(None), slice(None)
    _, left, right = np.intersect1d(one, other, return_indices=True)
    return left, right


def at_ranks(values: Floats, ranks: Sequence[int]) -> list[float]:
    """Order statistics at rising ranks of values without NaN, whose order is changed. Each is looked for among what
    lies beyond the one before: numpy has a fast partition by one rank and a slow one by several."""
    found, begin = [], 0
    for rank in ranks:
        values[begin:].partition(rank - begin)
        found.append(float(values[rank]))
        begin = rank + 1
    return found


def median(values: Floats) -> float:
    """Of at least one value, none of them NaN, whose order is changed."""
    half = len(values) // 2
    middle = at_ranks(values, [half] if len(values) % 2 else [half - 1, half])
    return sum(middle) / len(middle)
