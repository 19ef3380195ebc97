"""Long tables, a row a sample, as one series a key. Seconds, and whatever the values are in."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pandas as pd

__all__ = ["Series", "series_by"]

Series = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]
"""Times and values, in order of time."""


def series_by(table: pd.DataFrame, *columns: str) -> Iterator[tuple[tuple[str, ...], Series]]:
    """The series of a table with `t_s` and `value`, by what stands in these columns. Rows without a value are left
    out."""
    rows = table[table["value"].notna()]
    if rows.empty:
        return
    times, values = rows["t_s"].to_numpy(dtype=np.float64), rows["value"].to_numpy(dtype=np.float64)
    coded = [pd.factorize(rows[column]) for column in columns]
    keys = np.zeros(len(rows), dtype=np.int64)
    for codes, distinct in coded:
        keys = keys * len(distinct) + codes
    order = np.lexsort((times, keys))
    for part in np.split(order, np.flatnonzero(np.diff(keys[order])) + 1):
        yield tuple(str(distinct[codes[part[0]]]) for codes, distinct in coded), (times[part], values[part])
