"""The measurement's figures about itself: how late it sent, what it missed, what disturbed it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kvbench.judge.case import Case
from kvbench.judge.evidence import ArmRound, Comparison
from kvbench.judge.latency import numbers
from kvbench.judge.phases import within_measured
from kvbench.judge.verdict import Instrument
from kvbench.spec.workload import Workload

__all__ = ["contention_cores", "instrument", "scrape_coverage", "send_lag_p99"]


def send_lag_p99(recorded: ArmRound) -> float | None:
    """p99 of actual minus intended send time of measured requests, in seconds; None when none was sent."""
    table = recorded.requests
    measured = (table["measured"] == True).to_numpy(dtype=bool)  # noqa: E712 - null is not measured
    lags = (numbers(table, "sent_s") - numbers(table, "intended_s"))[measured]
    lags = lags[~np.isnan(lags)]
    return float(np.quantile(lags, 0.99)) if len(lags) else None


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
    table = recorded.host
    inside = within_measured(table["t_s"].to_numpy(dtype=np.float64), workload)
    parts = []
    for name in ("steal_cores", "cpu_foreign_cores"):
        values = table["value"].to_numpy(dtype=np.float64)[inside & (table["name"] == name).to_numpy(dtype=bool)]
        values = values[~np.isnan(values)]
        if not len(values):
            return None
        parts.append(float(values.mean()))
    return sum(parts)


def instrument(comparison: Comparison, case: Case) -> Instrument:
    """The worst round's figure each; the share of multi-token events is the mean over rounds."""
    rounds = [side for pair in comparison.pairs for side in (pair.baseline, pair.candidate)]
    shares = [
        side.latencies.multi_token_event_share for pair in case.pairs for side in (pair.baseline, pair.candidate)
    ]
    known = [share for share in shares if not np.isnan(share)]
    return Instrument(
        send_lag_p99_s=_largest(send_lag_p99(side) for side in rounds),
        timestamp_error_p99_s=_largest(side.load.get("timestamp_error_p99_s") for side in rounds),
        scrape_coverage=min(
            (coverage for side in rounds if (coverage := scrape_coverage(side)) is not None), default=None
        ),
        multi_token_event_share=float(np.mean(known)) if known else None,
    )


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
