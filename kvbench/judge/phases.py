"""When a round's measured phases begin and end, in seconds from the round's start."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvbench.spec.workload import Workload

__all__ = ["measured_end", "measured_seconds", "measured_start", "within_measured"]


def _spans(workload: Workload) -> list[tuple[float, float]]:
    """Measured phases in order; a workload has at least one."""
    spans, at = [], 0.0
    for phase in workload.phases:
        if phase.measured:
            spans.append((at, at + phase.for_s))
        at += phase.for_s
    return spans


def measured_start(workload: Workload) -> float:
    """Start of the first measured phase."""
    return _spans(workload)[0][0]


def measured_end(workload: Workload) -> float:
    """End of the last measured phase."""
    return _spans(workload)[-1][1]


def measured_seconds(workload: Workload) -> float:
    """Length of all measured phases together."""
    return sum(end - start for start, end in _spans(workload))


def within_measured(t_s: npt.NDArray[np.float64], workload: Workload) -> npt.NDArray[np.bool_]:
    """Which moments lie in a measured phase."""
    inside = np.zeros(len(t_s), dtype=bool)
    for start, end in _spans(workload):
        inside |= (t_s >= start) & (t_s < end)
    return inside
