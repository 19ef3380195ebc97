"""The measurement's figures about itself: how late it sent, what it missed, what disturbed it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kvbench.judge.case import Case
from kvbench.judge.columns import Floats
from kvbench.judge.evidence import ArmRound, Comparison
from kvbench.judge.phases import measured_seconds, within_measured
from kvbench.judge.send_lag import followed_lag
from kvbench.judge.verdict import Instrument
from kvbench.spec.workload import Workload

__all__ = ["contention_cores", "instrument", "scrape_coverage"]

_OF_THE_DRIVER = (
    "merged_events_share",
    "read_lag_p99_s",
    "unstamped_reads_share",
    "loop_stall_max_s",
    "gc_pause_max_s",
    "stepped_down_s",
    "client_cpu_cores",
    "host_steal_cores",
    "calibrated_capacity_events_per_s",
    "calibrated_timestamp_error_p99_s",
    "calibrated_send_lag_p99_s",
)
"""Figures of the load driver that have the same name in a verdict."""
_COUNTED_BY_THE_DRIVER = ("clock_steps", "resent_on_stale_connection", "substituted_turns", "uncounted_outputs")
"""The same; what they count changes what times, lengths or hits mean, in whichever round it was."""


def scrape_coverage(recorded: ArmRound) -> float | None:
    """Share of expected scrapes that were made; one that failed while the engine stalled was made. None: there is
    nothing to scrape."""
    scrapes = recorded.scrapes
    if not scrapes.supported or scrapes.expected <= 0:
        return None
    return min(1.0, (scrapes.succeeded + scrapes.engine_stalled) / scrapes.expected)


def contention_cores(recorded: ArmRound, workload: Workload) -> float | None:
    """Mean steal plus CPU used outside kvbench and the engines over the measured part, in cores.

    None: not recorded."""
    parts = [host_values(recorded, name, workload) for name in ("steal_cores", "cpu_foreign_cores")]
    return sum(float(values.mean()) for values in parts) if all(len(values) for values in parts) else None


def swap_growth(recorded: ArmRound, workload: Workload) -> float | None:
    """Bytes that the swap in use grew by over the measured part, at its largest. None: not recorded."""
    values = host_values(recorded, "swap_used_bytes", workload)
    return float(values.max() - values[0]) if len(values) else None


def swap_moved(recorded: ArmRound, workload: Workload) -> float | None:
    """Bytes to and from swap in the measured part, by their mean rate. None: not recorded."""
    parts = [host_values(recorded, f"swap_{way}_bytes_per_s", workload) for way in ("read", "write")]
    if not all(len(values) for values in parts):
        return None
    return sum(float(values.mean()) for values in parts) * measured_seconds(workload)


def host_values(recorded: ArmRound, name: str, workload: Workload) -> Floats:
    """Samples of one figure of the host in the measured part, in order of time."""
    if name not in recorded.host_samples:
        return np.empty(0)
    times, values = recorded.host_samples[name]
    return values[within_measured(times, workload)]


def instrument(comparison: Comparison, case: Case) -> Instrument:
    """The worst round's figure each; the share of multi-token events is the mean over rounds, counts are sums."""
    rounds = [side for pair in comparison.pairs for side in (pair.baseline, pair.candidate)]
    shares = [
        side.latencies.multi_token_event_share for pair in case.pairs for side in (pair.baseline, pair.candidate)
    ]
    known = [share for share in shares if not np.isnan(share)]
    after_an_answer = [followed_lag(side.requests) for side in rounds]
    of_the_driver = {name: _largest(side.load.get(name) for side in rounds) for name in _OF_THE_DRIVER}
    counted = {name: _total(side.load.get(name) for side in rounds) for name in _COUNTED_BY_THE_DRIVER}
    return Instrument(
        followed_requests=sum(lag.requests for lag in after_an_answer),
        followed_send_lag_p99_s=_largest(lag.p99_s for lag in after_an_answer),
        send_lag_p99_s=_largest(side.send_lag.p99_s for side in rounds),
        timestamp_error_p99_s=_largest(timestamp_error(side) for side in rounds),
        scrape_coverage=min(
            (coverage for side in rounds if (coverage := scrape_coverage(side)) is not None), default=None
        ),
        multi_token_event_share=float(np.mean(known)) if known else None,
        workers=_largest(side.load.get("workers") for side in rounds),
        worker_clock_error_s=_largest(side.load.get("worker_clock_error_max_s") for side in rounds),
        worker_clock_offset_s=_largest(side.load.get("worker_clock_offset_max_s") for side in rounds),
    ).model_copy(update=of_the_driver | counted)


def timestamp_error(recorded: ArmRound) -> float | None:
    """p99 of the error of token times, seconds: the round's own bound, which knows only of events that were read
    together, but never less than what the calibration found against known send times. None: no bound."""
    bound = recorded.load.get("timestamp_error_p99_s")
    return None if bound is None else max(bound, recorded.load.get("calibrated_timestamp_error_p99_s", 0.0))


def _total(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
