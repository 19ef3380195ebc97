"""What a workload asks of the client, against what the client was measured to take; tokens and events per second.

One output token is counted as one streamed event, the most that servers send, and every request with what it costs
beside its tokens. Prompts count whole, with what sessions carry, although the beginnings that they share are made
once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvbench.errors import InputError
from kvbench.load.calibrate import Calibration, calibrated
from kvbench.observe.cgroup import cgroup_limits
from kvbench.spec.crew import Crew
from kvbench.workload.schedule import Schedule

__all__ = ["Demand", "check_capacity", "demand", "require_capacity", "usable_cores"]

USABLE = 0.5
"""Share of a worker's capacity that a workload may need; above it times begin to depend on the client."""
WINDOW_S = 10.0
"""A workload's need is that of its busiest ten seconds; in a shorter peak answers overlap and even it out."""
FIRST_S, GAP_S = 0.05, 0.01
"""The fastest server that is reckoned with in a closed loop, where the server decides how much is sent: the first
token after 50 ms and then one each 10 ms, the pace of the neutral server that load generators were compared at."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Demand:
    """Tokens and requests per second in the busiest stretch, and what they cost."""

    output_tokens_per_s: float
    prompt_tokens_per_s: float
    requests_per_s: float
    cores: float
    """CPU that the client needs for them on the host that was calibrated."""
    slots: int | None = None
    """A closed loop's: it is a guess then, at the fastest server."""

    @property
    def workers(self) -> int:
        """Workers, with a core each, that take it with at most half of their capacity."""
        return max(1, int(np.ceil(self.cores / USABLE - 1e-9)))

    def __str__(self) -> str:
        tokens = (
            f"{self.output_tokens_per_s:,.0f} output tokens/s and {self.prompt_tokens_per_s:,.0f} prompt tokens/s "
            f"({self.requests_per_s:,.0f} requests/s)"
        )
        if self.slots is None:
            return f"the workload asks for {tokens} in its busiest {WINDOW_S:g} s"
        pace = f"{FIRST_S * 1e3:g} ms to the first token and {GAP_S * 1e3:g} ms between two"
        return f"{self.slots} slots can come to {tokens} at a fast server ({pace})"


def demand(schedule: Schedule, measured: Calibration, *, as_text: bool = False) -> Demand:
    """What `schedule` needs; `as_text`: its prompts are sent as text.

    Later turns have no time of their own: they are spread evenly over the round.
    """
    if not schedule.requests:
        return Demand(0.0, 0.0, 0.0, 0.0, schedule.concurrency)
    outputs = np.array([request.output_tokens for request in schedule.requests], np.float64)
    prompts = np.array(schedule.prompt_tokens()[len(schedule.prime) :], np.float64)
    made_per_s = measured.text_prompt_tokens_per_s if as_text else measured.prompt_tokens_per_s
    costs = outputs / measured.capacity_events_per_s + prompts / made_per_s + (measured.request_cpu_s or 0.0)
    amounts = np.stack([outputs, prompts, np.ones(len(costs)), costs])
    if schedule.concurrency is not None:
        held_s = sum(FIRST_S + GAP_S * (r.output_tokens - 1) + r.think_s for r in schedule.requests)
        per_s = amounts.sum(axis=1) * schedule.concurrency / held_s
    else:
        times = [np.nan if request.intended_s is None else request.intended_s for request in schedule.requests]
        per_s = _busiest(np.array(times, np.float64), amounts, max(schedule.duration_s, 1e-9))
    output_tokens, prompt_tokens, requests, cores = per_s.tolist()
    return Demand(output_tokens, prompt_tokens, requests, cores, schedule.concurrency)


def _busiest(at_s: Floats, amounts: Floats, duration_s: float) -> Floats:
    """Each row of `amounts` per second, in the stretch in which the last row is most; NaN: at any time."""
    timed = ~np.isnan(at_s)
    order = np.argsort(at_s[timed], kind="stable")
    times = at_s[timed][order]
    so_far = np.concatenate([np.zeros((len(amounts), 1)), np.cumsum(amounts[:, timed][:, order], axis=1)], axis=1)
    window_s = min(WINDOW_S, duration_s)
    until = np.searchsorted(times, times + window_s, side="left")
    within = so_far[:, until] - so_far[:, :-1]
    busiest = within[:, int(within[-1].argmax())] if len(times) else np.zeros(len(amounts))
    later = amounts[:, ~timed].sum(axis=1)
    per_s: Floats = busiest / window_s + later / duration_s
    return per_s


def usable_cores() -> int:
    """Cores that this process may use: by its affinity and by the quota of its control group, at least one."""
    quota = cgroup_limits().get("cgroup_cpu_limit_cores", np.inf)
    return max(1, int(min(len(os.sched_getaffinity(0)), quota)))


def require_capacity(needed: Demand, crew: Crew, *, cores: int) -> None:
    """InputError when `crew` is too small for it. Workers of this host beyond its `cores` are no help."""
    working = min(crew.local, cores) + crew.joining
    if needed.workers <= working:
        return
    who = _so_many(working, "worker")
    if crew.local > cores:
        who += f" (of {crew.local} here only {cores} can have a core)"
    less = "lower the rate" if needed.slots is None else "give fewer slots"
    if (local := needed.workers - crew.joining) <= cores:
        do = f"give --workers {local} (with a core for each), join workers on other machines, or {less}"
    else:
        more = _so_many(needed.workers - min(crew.local, cores), "worker")
        do = f"join {more} on other machines (--expect-workers), or {less}; here are cores for {cores}"
    raise InputError(
        f"{needed}, which takes a client {needed.cores:.2f} cores here, while {who} may use {USABLE * working:g} "
        "if times are not to depend on the client",
        do=do,
    )


def _so_many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def check_capacity(
    schedule: Schedule,
    crew: Crew,
    *,
    as_text: bool,
    progress: Callable[[str], None],
    directory: Path | None = None,
) -> Calibration:
    """The calibration of this host; InputError when `crew` is too small for the schedule.

    Before anything is refused the host is calibrated again: it may have been busy the first time.
    """
    cores = usable_cores()
    measured = calibrated(progress, directory=directory)
    if demand(schedule, measured, as_text=as_text).workers > min(crew.local, cores) + crew.joining:
        measured = calibrated(progress, directory=directory, again=True)
    require_capacity(demand(schedule, measured, as_text=as_text), crew, cores=cores)
    return measured
