"""What a schedule amounts to, for people who are about to run it: counts, tokens, rate, reuse. Sends nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvbench.workload.blocks import BlockPaths, block_paths
from kvbench.workload.schedule import PlannedRequest, Schedule

__all__ = ["ClassSummary", "ScheduleSummary", "describe"]


@dataclass(frozen=True)
class ClassSummary:
    """One class of a schedule; lengths as planned."""

    requests: int
    measured: int
    conversations: int
    """Sessions, or requests of a class without turns."""
    prompt_tokens: int
    output_tokens: int
    longest_prompt_tokens: int
    working_set_tokens: int
    """All different prefixes of the class together, those of the priming included."""


@dataclass(frozen=True)
class ScheduleSummary:
    """A schedule in figures. Priming counts in `prime_*`, the working set and as reusable, nowhere else."""

    classes: dict[str, ClassSummary]
    prime_requests: int
    prime_tokens: int
    repeats: int
    rate_per_s: float | None
    """Measured requests per second of measured time; None for a closed loop, where the engine sets the rate."""
    ideal_reuse_share: float
    """Share of measured prompt tokens in leading whole blocks that an earlier request had: what an unlimited cache
    could serve if requests came one after the other. The last token of a prompt is always computed.
    """
    duration_s: float
    """To the end of the last phase; priming before it and answers still under way after it come on top."""
    upper_bound: bool
    """Closed loop: counts are what the fastest engine would get through."""
    branch_requests: int = 0
    """Requests in side branches of sessions; they count in their class and in the reuse like any other."""
    compactions: int = 0
    """Turns that begin with a rewritten context."""
    aborts: int = 0
    """Answers that their users are to leave. Output tokens count as asked for, reuse counts what is to come."""

    @property
    def requests(self) -> int:
        return sum(summary.requests for summary in self.classes.values())

    @property
    def measured(self) -> int:
        return sum(summary.measured for summary in self.classes.values())

    @property
    def prompt_tokens(self) -> int:
        return sum(summary.prompt_tokens for summary in self.classes.values())

    @property
    def output_tokens(self) -> int:
        return sum(summary.output_tokens for summary in self.classes.values())

    @property
    def longest_prompt_tokens(self) -> int:
        return max((summary.longest_prompt_tokens for summary in self.classes.values()), default=0)

    @property
    def working_set_tokens(self) -> int:
        return sum(summary.working_set_tokens for summary in self.classes.values())


def describe(schedule: Schedule, block_tokens: int) -> ScheduleSummary:
    """Sum the schedule up for an engine with blocks of `block_tokens` tokens."""
    sizes = dict(zip((request.id for request in schedule.in_order()), schedule.prompt_tokens(), strict=True))
    by_class: dict[str, list[PlannedRequest]] = {}
    for request in schedule.requests:
        by_class.setdefault(request.class_, []).append(request)
    working_sets = _working_sets(schedule.in_order())
    measured_s = sum(phase.end_s - phase.start_s for phase in schedule.phases if phase.measured)
    measured = sum(request.measured for request in schedule.requests)
    closed = schedule.concurrency is not None
    return ScheduleSummary(
        classes={
            class_: _class_summary(requests, sizes, working_sets.get(class_, 0))
            for class_, requests in by_class.items()
        },
        prime_requests=len(schedule.prime),
        prime_tokens=sum(request.own_prompt_tokens for request in schedule.prime),
        repeats=sum(request.repeat_of is not None for request in schedule.requests),
        rate_per_s=None if closed or not measured_s else measured / measured_s,
        ideal_reuse_share=_ideal_reuse_share(block_paths(schedule, block_tokens), block_tokens),
        duration_s=schedule.duration_s,
        upper_bound=closed,
        branch_requests=sum(request.branch is not None for request in schedule.requests),
        compactions=sum(not request.carries for request in schedule.requests),
        aborts=sum(request.aborts for request in schedule.requests),
    )


def _class_summary(requests: list[PlannedRequest], sizes: dict[int, int], working_set_tokens: int) -> ClassSummary:
    return ClassSummary(
        requests=len(requests),
        measured=sum(request.measured for request in requests),
        conversations=sum(request.turn == 0 for request in requests),
        prompt_tokens=sum(sizes[request.id] for request in requests),
        output_tokens=sum(request.output_tokens for request in requests),
        longest_prompt_tokens=max(sizes[request.id] for request in requests),
        working_set_tokens=working_set_tokens,
    )


def _working_sets(requests: Iterable[PlannedRequest]) -> dict[str, int]:
    """Tokens of the different prefixes that are really sent, by class."""
    prefixes = {
        (request.class_, request.prefix): request.segments[0].tokens
        for request in requests
        if request.prefix is not None and request.turn == 0
    }
    totals: dict[str, int] = {}
    for (class_, _), tokens in prefixes.items():
        totals[class_] = totals.get(class_, 0) + tokens
    return totals


def _ideal_reuse_share(paths: BlockPaths, block_tokens: int) -> float:
    seen: dict[int, int] = {}
    reused = total = 0
    for request in paths.requests:
        if request.request.measured:
            most = max(0, request.prompt_tokens - 1) // block_tokens
            reused += min(most, paths.leading(request.prompt, seen)) * block_tokens
            total += request.prompt_tokens
        seen.update((run, paths.run_blocks[run]) for run in request.sequence)
    return reused / total if total else 0.0
