"""Before an engine is started: can the client play the workload, with its workers on this host?"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvbench.compare.plan import ANY_CAPACITY
from kvbench.load.calibrate_demand import check_capacity
from kvbench.spec.crew import Crew
from kvbench.spec.profile import Profile
from kvbench.spec.workload import Workload
from kvbench.workload.build import build_schedule

__all__ = ["check_client"]

FIRST_ROUND = 1


def check_client(arms: Sequence[Profile], workload: Workload, crew: Crew, progress: Callable[[str], None]) -> None:
    """InputError when `crew` is too small for the workload, by the calibration of this host.

    What only a running server tells changes which prompts are equal, not how many there are or how long; that they
    go as text, which takes more, is known once it runs: every round is checked again then. Where all servers run
    already that is soon enough, and the schedule, which takes half a second for 10,000 requests, is made once.
    """
    if all(arm.engine.kind == "attached" for arm in arms):
        return
    schedule = build_schedule(
        workload,
        FIRST_ROUND,
        block_tokens=None,
        capacities_tokens=None if workload.arrivals.trace is not None else ANY_CAPACITY,
        max_model_len=None,
    )
    check_capacity(schedule, crew, as_text=False, progress=progress)
