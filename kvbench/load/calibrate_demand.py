"""What a workload asks of the client, against what the client was measured to take; tokens and events per second.

One output token is counted as one streamed event, the most that servers send.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from kvbench.errors import InputError
from kvbench.load.calibrate import Calibration, calibrated
from kvbench.workload.schedule import Schedule

__all__ = ["check_capacity", "output_tokens_per_s", "require_capacity", "workers_needed"]

USABLE = 0.5
"""Share of a worker's capacity that a workload may need; above it times begin to depend on the client."""
WINDOW_S = 10.0
"""A workload's need is that of its busiest ten seconds; in a shorter peak answers overlap and even it out."""


def output_tokens_per_s(schedule: Schedule) -> float | None:
    """Output tokens asked for in the busiest ten seconds, per second. None: a closed loop; the engine decides.

    Later turns have no time of their own: they are spread evenly over the round.
    """
    if schedule.concurrency is not None or not schedule.requests:
        return None
    duration_s = max(schedule.duration_s, 1e-9)
    timed = [(r.intended_s, r.output_tokens) for r in schedule.requests if r.intended_s is not None]
    later = sum(r.output_tokens for r in schedule.requests if r.intended_s is None)
    at_s = np.array([at for at, _ in timed], np.float64)
    tokens = np.array([count for _, count in timed], np.float64)
    order = np.argsort(at_s, kind="stable")
    at_s, so_far = at_s[order], np.concatenate([[0.0], np.cumsum(tokens[order])])
    window_s = min(WINDOW_S, duration_s)
    until = np.searchsorted(at_s, at_s + window_s, side="left")
    busiest = float((so_far[until] - so_far[:-1]).max()) if len(at_s) else 0.0
    return busiest / window_s + later / duration_s


def workers_needed(schedule: Schedule, measured: Calibration) -> int:
    """Workers of this host's speed that take the schedule with at most half of their capacity each; at least 1."""
    needed = output_tokens_per_s(schedule)
    if needed is None:
        return 1
    return max(1, int(np.ceil(needed / (USABLE * measured.capacity_events_per_s))))


def require_capacity(schedule: Schedule, measured: Calibration, *, workers: int) -> None:
    """InputError when `workers` workers of this speed are too few for the schedule."""
    count = workers_needed(schedule, measured)
    if count <= workers:
        return
    needed = output_tokens_per_s(schedule) or 0.0
    taken = USABLE * workers * measured.capacity_events_per_s
    raise InputError(
        f"the workload asks for {needed:,.0f} output tokens/s in its busiest {WINDOW_S:g} s, while {workers} "
        f"worker{'s' if workers > 1 else ''} on this host can take {taken:,.0f} if times are not to depend on it",
        do=f"give --workers {count} (with a core for each), join workers on other machines, or lower the rate",
    )


def check_capacity(
    schedule: Schedule, *, workers: int, progress: Callable[[str], None], directory: Path | None = None
) -> Calibration:
    """The calibration of this host; InputError when `workers` workers are too few for the schedule.

    Before anything is refused the host is calibrated again: it may have been busy the first time.
    """
    measured = calibrated(progress, directory=directory)
    if workers_needed(schedule, measured) > workers:
        measured = calibrated(progress, directory=directory, again=True)
    require_capacity(schedule, measured, workers=workers)
    return measured
