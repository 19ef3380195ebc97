"""The scrapes of a round in virtual time: samples of the core's counters, and how often they could be had."""

from __future__ import annotations

import pyarrow as pa

from kvbench.engine.emulated.counters import canonical_series
from kvbench.engine.emulated.scheduler import EmulatedCore
from kvbench.engine.emulated.tables import MetricRows
from kvbench.judge.evidence import ScrapeSummary
from kvbench.spec.emulation import After

__all__ = ["Scrapes"]


class Scrapes:
    """Looks at the core; `missing` says from which request on there is nothing to look at."""

    def __init__(self, core: EmulatedCore, missing: After | None) -> None:
        self._core = core
        self._missing = missing
        sizes = core.sizes
        self._host, self._disk = sizes.host_bytes > 0, sizes.disk
        self._rows = MetricRows(host=self._host, disk=self._disk)
        self._expected = self._succeeded = 0

    def look(self, now_s: float, *, requests: int, away: bool) -> bool:
        """One set of samples; False: /metrics would not have answered, after so many requests or while away."""
        if away or (self._missing is not None and requests >= self._missing.after):
            return False
        self._rows.add(now_s, canonical_series(self._core.read_gauges(), host=self._host, disk=self._disk))
        return True

    def look_in_time(self, now_s: float, *, requests: int, away: bool) -> None:
        """A look that was to be made."""
        self._expected += 1
        self._succeeded += self.look(now_s, requests=requests, away=away)

    def table(self, zero_s: float) -> pa.Table:
        """Schema METRICS, with times from `zero_s` on."""
        return self._rows.table(zero_s)

    def summary(self) -> ScrapeSummary:
        """Nobody is ever late here: what was missed is the engine's fault, or was injected."""
        missed = self._expected - self._succeeded
        supported = self._missing is None or self._missing.after > 0
        vanished = self._missing is not None and self._missing.after > 0 and missed > 0
        return ScrapeSummary(
            expected=self._expected,
            succeeded=self._succeeded,
            longest_gap_ours_s=0.0,
            engine_stalled=0 if vanished or not supported else missed,
            supported=supported,
            vanished=vanished,
        )
