"""The ledger of one round as columns beside its latencies: measured requests, in the table's order; tokens."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pandas as pd

from kvbench.judge.columns import Bools, Floats, numbers
from kvbench.judge.latency import RoundLatencies

__all__ = ["UNATTRIBUTED", "RoundLedger"]

UNATTRIBUTED = "unattributed"


class RoundLedger:
    """Where the prompt tokens of each measured request came from."""

    def __init__(self, table: pd.DataFrame, latencies: RoundLatencies) -> None:
        self._latencies = latencies
        self._rows = pd.DataFrame()
        if not table.empty:
            in_order = np.array_equal(table["id"].to_numpy(), latencies.ids)
            self._rows = table if in_order else table.set_index("id").reindex(latencies.ids)

    def tokens(self, source: str) -> Floats:
        """Of every request; NaN where it is not known."""
        if source not in self._rows:
            return np.full(len(self._latencies), np.nan)
        return numbers(self._rows, source)

    @cached_property
    def split(self) -> Bools:
        """Requests that were completed and of whose every prompt token the source is known. None whose user was to
        leave, as of these the slow ones are not completed."""
        known = ~np.isnan(self.tokens("computed")) & (self.tokens(UNATTRIBUTED) == 0)
        return np.asarray(known & self._latencies.completed & ~self._latencies.leaves)

    @property
    def promoted(self) -> Floats:
        """Tokens from tiers behind the device."""
        return np.asarray(self.tokens("host") + self.tokens("disk"))
