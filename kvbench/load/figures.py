"""What the driver knows about itself: how late it sent and read, what it cost."""

from __future__ import annotations

import gc
import os
import time
from array import array
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvbench.load.clock import Clock
from kvbench.load.stream import Completion

__all__ = ["Figures", "LagHistogram"]

FOLDED_AT_ONCE = 32
"""Answers whose read lags are evaluated together, in about as many hundredths of a millisecond."""
_EDGES_NS = np.geomspace(100.0, 1e11, 900)
"""100 ns to 100 s in steps of 2.3 %."""


class LagHistogram:
    """Counts by size, so that memory does not grow with the run; quantiles are right within 2.3 %."""

    def __init__(self) -> None:
        self._counts: NDArray[np.int64] = np.zeros(len(_EDGES_NS) + 1, np.int64)
        self.max_ns = 0

    def add(self, lags_ns: array[int] | NDArray[np.int64]) -> None:
        values = np.asarray(lags_ns, np.int64)
        if not len(values):
            return
        self._counts += np.bincount(np.searchsorted(_EDGES_NS, values), minlength=len(self._counts))
        self.max_ns = max(self.max_ns, int(values.max()))

    @property
    def total(self) -> int:
        return int(self._counts.sum())

    def quantile_s(self, q: float) -> float | None:
        """Upper edge of the step that holds the quantile; None without any value."""
        if self.total == 0:
            return None
        index = int(np.searchsorted(np.cumsum(self._counts), q * self.total))
        return float(min(_EDGES_NS[min(index, len(_EDGES_NS) - 1)], self.max_ns)) / 1e9


class _Pauses:
    """The longest collection of garbage; there is none while the round runs, unless something asks for it."""

    def __init__(self) -> None:
        self.longest_ns = 0
        self._since_ns = 0
        gc.callbacks.append(self._collecting)

    def _collecting(self, phase: str, _: dict[str, int]) -> None:
        now_ns = time.monotonic_ns()
        if phase == "start":
            self._since_ns = now_ns
        else:
            self.longest_ns = max(self.longest_ns, now_ns - self._since_ns)

    def stop(self) -> None:
        gc.callbacks.remove(self._collecting)


def _steal_s() -> float | None:
    """CPU time that the hypervisor gave to others, all CPUs together; None where it is not told."""
    try:
        fields = Path("/proc/stat").read_text("ascii").split("\n", 1)[0].split()
        return int(fields[8]) / os.sysconf("SC_CLK_TCK")  # proc(5): the eighth number of the first line
    except (OSError, IndexError, ValueError):
        return None


class Figures:
    """Collected while the round runs; `summary` is what goes into `load.json`."""

    def __init__(self, clock: Clock) -> None:
        self.send_lags_s = array("d")
        """Sent minus intended, one entry a request after time zero."""
        self.connects_s = array("d")
        """How long connections took, with their TLS: one entry for each request that a new one was made for."""
        self.events = 0
        self.token_events = 0
        self.doubts_ns = array("q")
        """See `tokens.Placed`."""
        self.multi_token_events = 0
        self.uncounted_outputs = 0
        """Answers that told neither token ids nor usage."""
        self.substituted_turns = 0
        """Later turns for which the server returned no token ids, so that other tokens took their place."""
        self._clock = clock
        self._read_lags = LagHistogram()
        self._doubts = LagHistogram()
        self._unstamped_before = 0
        self._cpu_before_s = 0.0
        self._begun_ns = clock.now_ns()
        self._steal_before_s = _steal_s()
        self._pauses = _Pauses()

    def answered(self, completion: Completion, *, failed: bool) -> None:
        """Take in what an answer's tokens tell."""
        placed = completion.placed
        self.events += completion.events
        self.token_events += placed.events
        self.doubts_ns.extend(placed.doubts_ns)
        if len(self._clock.lags_ns) >= FOLDED_AT_ONCE:
            self.fold()
        self.multi_token_events += placed.multi_token_events
        self.uncounted_outputs += not failed and not placed.known

    def begin(self) -> None:
        """Time zero: what came before does not count."""
        self.events = self.token_events = self.multi_token_events = self.uncounted_outputs = 0
        self.connects_s = array("d")
        self.doubts_ns = array("q")
        self._clock.lags_ns = []
        self._read_lags, self._doubts = LagHistogram(), LagHistogram()
        self._unstamped_before = self._clock.unstamped
        self._cpu_before_s = time.process_time()
        self._begun_ns = self._clock.now_ns()
        self._steal_before_s = _steal_s()
        self._pauses.longest_ns = 0

    def fold(self) -> None:
        """Take in the clock's latest readings; about once a second."""
        lags, self._clock.lags_ns = self._clock.lags_ns, []
        if lags:
            self._read_lags.add(np.concatenate(lags))
        doubts, self.doubts_ns = self.doubts_ns, array("q")
        self._doubts.add(doubts)

    def end(self) -> None:
        """The round is over; `summary` may still be asked."""
        self._pauses.stop()

    def summary(self) -> dict[str, float | None]:
        """Figures by name; seconds where the name ends in `_s`; None: not measured."""
        self.fold()
        sent, connects = (np.frombuffer(each, np.float64) for each in (self.send_lags_s, self.connects_s))
        unstamped = self._clock.unstamped - self._unstamped_before
        reads = self._read_lags.total + unstamped
        cpu_s = time.process_time() - self._cpu_before_s
        elapsed_s = max(1e-9, (self._clock.now_ns() - self._begun_ns) / 1e9)
        steal_s = _steal_s()
        return {
            "send_lag_p50_s": _quantile(sent, 0.5),
            "send_lag_p99_s": _quantile(sent, 0.99),
            "send_lag_max_s": _quantile(sent, 1.0),
            # From turning to a request to the connection that was made for it: part of its latency, not of the lag.
            "connect_p50_s": _quantile(connects, 0.5),
            "connect_p99_s": _quantile(connects, 0.99),
            "connect_max_s": _quantile(connects, 1.0),
            # An event that was read alone has the kernel's own time; the bound is for those that were not.
            "timestamp_error_p50_s": self._timestamp_error_s(0.5, exact=unstamped == 0),
            "timestamp_error_p99_s": self._timestamp_error_s(0.99, exact=unstamped == 0),
            # The kernel's stamp against the clock at the read: what the times would be off without the kernel's.
            "read_lag_p50_s": self._read_lags.quantile_s(0.5),
            "read_lag_p99_s": self._read_lags.quantile_s(0.99),
            "read_lag_max_s": self._read_lags.max_ns / 1e9 if self._read_lags.total else None,
            "unstamped_reads_share": unstamped / reads if reads else None,
            "clock_steps": float(self._clock.steps),
            "gc_pause_max_s": self._pauses.longest_ns / 1e9,
            "client_cpu_s": cpu_s,
            "client_cpu_cores": cpu_s / elapsed_s,
            "host_steal_cores": (
                None
                if steal_s is None or self._steal_before_s is None
                else (steal_s - self._steal_before_s) / elapsed_s
            ),
            "client_cpu_ms_per_1000_events": cpu_s * 1e6 / self.events if self.events else None,
            "events": float(self.events),
            "merged_events_share": self._doubts.total / self.token_events if self.token_events else None,
            "multi_token_events": float(self.multi_token_events),
            "uncounted_outputs": float(self.uncounted_outputs),
            "substituted_turns": float(self.substituted_turns),
        }

    def _timestamp_error_s(self, q: float, *, exact: bool) -> float | None:
        """Bound on the error of events' times; where not all reads were stamped, the reads' lag is the guess."""
        if not self.token_events:
            return None
        if not exact:
            return self._read_lags.quantile_s(q)
        share = self._doubts.total / self.token_events
        return self._doubts.quantile_s((q - 1 + share) / share) if share > 1 - q else 0.0


def _quantile(values: NDArray[np.float64], q: float) -> float | None:
    return float(np.quantile(values, q)) if len(values) else None
