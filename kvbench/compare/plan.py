"""What a comparison would do, worked out from its files alone: rounds, time, load and reuse. Starts nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np
from rich.console import Console
from rich.table import Table

from kvbench.compare.difference import rendered_differences, show_differences
from kvbench.engine.traps import named_traps
from kvbench.errors import InputError
from kvbench.judge.phases import measured_end, measured_start
from kvbench.judge.sample_check import check_sample, check_windows, scarce
from kvbench.judge.together import conversations, mean_place
from kvbench.plan.profile_geometry import kv_bytes_per_token
from kvbench.plan.profile_sources import profile_sources
from kvbench.report.plain import plain
from kvbench.report.streams import say
from kvbench.spec.fitness import usual_block_tokens
from kvbench.spec.loading import Experiment
from kvbench.spec.profile import Profile
from kvbench.spec.quantity import show_seconds
from kvbench.workload.build import build_replay, build_schedule
from kvbench.workload.describe import ScheduleSummary, describe
from kvbench.workload.replay import ReplaySummary
from kvbench.workload.schedule import Schedule

__all__ = ["ComparisonPlan", "plan_comparison", "show_plan"]

ENGINE_START_S = 20.0
"""A start of the embedded engine on two quiet cores takes 14 to 18 s; engines with large weights take longer."""

ANY_CAPACITY = {"device": 100_000, "host": 100_000}
"""Tokens, where only the engine knows: pools sized by it change what requests say, not how many there are."""

SOURCES = ("device", "host", "disk", "computed")


@dataclass(frozen=True)
class ComparisonPlan:
    """Everything `--dry-run` shows. Times in seconds, sizes in tokens."""

    arms: tuple[str, ...]
    rounds_min: int
    rounds_max: int
    summary: ScheduleSummary | None
    """None when the pool is sized from the running engine."""
    sources: dict[str, dict[str, int] | None]
    """Predicted tokens by source per arm, where the sizes are known beforehand."""
    seconds: tuple[float, float]
    """Shortest and longest duration of the whole run, without priming."""
    warnings: tuple[str, ...]
    refused: tuple[str, ...]
    """Rules that the workload cannot carry."""
    replay: ReplaySummary | None = None
    """Where the schedule comes from a trace."""
    differences: dict[str, list[str]] = field(default_factory=dict)
    """For each candidate, what its rendered start differs in from the baseline's."""
    traps: tuple[str, ...] = ()
    """What an arm's engine will not do as its profile looks."""

    def document(self) -> dict[str, object]:
        """For machines."""
        return {
            "arms": list(self.arms),
            "rounds": {"min": self.rounds_min, "max": self.rounds_max},
            "duration_s": {"min": self.seconds[0], "max": self.seconds[1]},
            "schedule": asdict(self.summary) if self.summary else None,
            "expected_sources": self.sources,
            "warnings": [*self.warnings, *self.traps],
            "refused": list(self.refused),
            "replay": self.replay.document() if self.replay else None,
            "rendered_differences": self.differences,
        }


def plan_comparison(experiment: Experiment, warnings: list[str]) -> ComparisonPlan:
    """Build the first round's schedule and look at it. InputError when it cannot be built at all."""
    rounds = experiment.rules.rounds
    schedule, played = _first_schedule(experiment)
    summary = describe(schedule, usual_block_tokens(experiment.baseline.engine)) if schedule else None
    if played is not None and summary is not None:
        summary = replace(summary, compactions=0)  # no turn of a replay carries anything, rewritten or not
    round_s = sum(phase.for_s for phase in experiment.workload.phases)
    launched = [p for p in experiment.arms if p.engine.kind != "attached"]
    per_round = round_s * len(experiment.arms) + ENGINE_START_S * len(launched)
    return ComparisonPlan(
        arms=tuple(profile.name for profile in experiment.arms),
        rounds_min=rounds.min,
        rounds_max=rounds.max,
        summary=summary,
        sources={p.name: _expected(p, schedule) for p in experiment.arms},
        seconds=(per_round * rounds.min, per_round * rounds.max),
        warnings=tuple(warnings),
        refused=tuple(_refused(experiment, schedule)),
        replay=played,
        differences=rendered_differences(experiment),
        traps=tuple(named_traps(experiment.arms)),
    )


def _first_schedule(experiment: Experiment) -> tuple[Schedule | None, ReplaySummary | None]:
    capacities = _capacities_tokens(experiment)
    needs_engine = any(c.prefix and c.prefix.working_set for c in experiment.workload.classes.values())
    if needs_engine and capacities is None:
        return None, None
    if experiment.workload.arrivals.trace is not None:
        played = build_replay(
            experiment.workload, 1, capacities_tokens=capacities, max_model_len=_longest(experiment.baseline)
        )
        return played.schedule, played.summary
    return _schedule(experiment, 1, capacities), None


def _schedule(experiment: Experiment, index: int, capacities_tokens: dict[str, int] | None) -> Schedule:
    return build_schedule(
        experiment.workload,
        index,
        block_tokens=usual_block_tokens(experiment.baseline.engine),
        capacities_tokens=capacities_tokens,
        max_model_len=_longest(experiment.baseline),
    )


def _longest(profile: Profile) -> int | None:
    limit = profile.engine.args.get("max-model-len")
    return limit if isinstance(limit, int) else None


def _refused(experiment: Experiment, first: Schedule | None) -> list[str]:
    """Rules that the workload cannot carry in some round. How many requests there are depends on the engine only in
    a closed loop; what then needs no count is checked all the same.
    """
    rules, load, trace = experiment.rules, experiment.workload, experiment.workload.arrivals.trace
    span_s = measured_start(load), measured_end(load)
    if load.arrivals.process == "closed":
        uncounted: dict[str, int | None] = dict.fromkeys(load.classes)
        return [*check_sample(rules, uncounted), *check_windows(rules, {}, *span_s)]
    known = _capacities_tokens(experiment) or ANY_CAPACITY
    schedule = first or _schedule(experiment, 1, known)
    schedules = [schedule]
    if trace is None and scarce(rules, _measured(schedule, staying=True)):
        others = range(2, rules.rounds.max + 1)
        schedules += [_schedule(experiment, index, known) for index in others]
    fewest, staying = (_fewest([_measured(each, staying=only) for each in schedules]) for only in (False, True))
    carried = check_sample(rules, _measured(schedule), fewest, staying, _taken(schedule))
    return [*carried, *check_windows(rules, _due(schedule), *span_s)]


def _taken(schedule: Schedule) -> dict[str, float]:
    """By class and of all: how many requests a turn that fails takes along, those of its session after it."""
    sessions: dict[str, list[float]] = {"all": []}
    for request in schedule.requests:
        if request.measured:
            session = math.nan if request.session is None else float(request.session)
            sessions.setdefault(request.class_, []).append(session)
            sessions["all"].append(session)
    return {name: mean_place(conversations([np.array(of_class)])) for name, of_class in sessions.items()}


def _fewest(counts: Sequence[dict[str, int]]) -> dict[str, int]:
    """By class and of all: those of the round that has fewest."""
    by_class = {name: min(each.get(name, 0) for each in counts) for name in counts[0]}
    return {**by_class, "all": min(sum(each.values()) for each in counts)}


def _measured(schedule: Schedule, *, staying: bool = False) -> dict[str, int]:
    """Measured requests by class, or those of them whose users stay to the end; a class may have none."""
    counts = dict.fromkeys((request.class_ for request in schedule.requests), 0)
    for request in schedule.requests:
        counts[request.class_] += request.measured and not (staying and request.aborts)
    return counts


def _due(schedule: Schedule) -> dict[str, list[float]]:
    """When measured requests are due, by class and of all; without those of which some follow an answer."""
    due: dict[str, list[float]] = {"all": []}
    follow = set()
    for request in schedule.requests:
        for name in ("all", request.class_) if request.measured else ():
            if request.intended_s is None:
                follow.add(name)
            else:
                due.setdefault(name, []).append(request.intended_s)
    return {name: times for name, times in due.items() if name not in follow}


def _capacities_tokens(experiment: Experiment) -> dict[str, int] | None:
    """As a run sizes its pools: by the baseline's device and the largest host tier among the arms."""
    baseline = experiment.baseline
    blocks = baseline.tiers.device.blocks
    if blocks is None:
        return None
    capacities = {"device": blocks * usual_block_tokens(baseline.engine)}
    per_token = kv_bytes_per_token(baseline)
    hosts = [arm.tiers.host.size for arm in experiment.arms if arm.tiers.host is not None]
    if hosts and per_token:
        capacities["host"] = max(hosts) // per_token
    return capacities


def _expected(profile: Profile, schedule: Schedule | None) -> dict[str, int] | None:
    blocks, host = profile.tiers.device.blocks, profile.tiers.host
    if schedule is None or blocks is None:
        return None
    return profile_sources(
        schedule,
        profile,
        block_tokens=usual_block_tokens(profile.engine),
        device_blocks=blocks,
        host_bytes=host.size if host is not None else 0,
        disk=profile.tiers.disk is not None,
    )


def _filling(summary: ScheduleSummary | None) -> str:
    """What is not in the time, since only the engine knows how fast it computes."""
    if summary is None:
        return ", filling the tiers not counted"
    if summary.prime_requests == 0:
        return ""
    prompts = f"{summary.prime_requests:,} prompts ({summary.prime_tokens:,} tokens)"
    return f", and for each arm and round what {prompts} take, which fill the tiers"


def show_plan(console: Console, plan: ComparisonPlan) -> None:
    """For people."""
    shortest, longest = plan.seconds
    count = (
        f"{plan.rounds_min}" if plan.rounds_min == plan.rounds_max else f"{plan.rounds_min} to {plan.rounds_max}"
    )
    console.print(f"{count} paired rounds of {len(plan.arms)} arms: {', '.join(plan.arms)}", markup=False)
    time = show_seconds(shortest) if shortest == longest else f"{show_seconds(shortest)} to {show_seconds(longest)}"
    console.print(f"takes about {time}{_filling(plan.summary)}; nothing was started")
    for trap in plan.traps:
        say(console, f"note: {trap}")
    show_differences(console, plan.differences)
    if plan.summary is None:
        console.print("the pool of prefixes is sized from the running engine, so its reuse is not known yet")
    else:
        if plan.replay is not None:
            _show_replay(console, plan.replay)
        _show_classes(console, plan.summary)
        _show_sources(console, plan)


def _show_replay(console: Console, replay: ReplaySummary) -> None:
    part = "all" if replay.requests == replay.trace_requests else f"{replay.requests:,} of"
    console.print(
        f"replay of {plain(replay.file)} ({replay.format}): {part} {replay.trace_requests:,} requests at "
        f"{replay.speed:g} × speed",
        markup=False,
    )
    if replay.reuse is None:
        console.print("the trace does not say which blocks are equal: every prompt is played as a new one")
        return
    group = f"every {replay.blocks_together} " if replay.blocks_together > 1 else ""
    console.print(
        f"{group}blocks of {replay.block_tokens} tokens are played as {replay.played_block_tokens} tokens"
    )
    reuse, total = replay.reuse, replay.reuse.total_blocks or 1
    by_tier = "".join(
        f", {hits / total:.1%} with a {tier} tier alone" for tier, hits in reuse.lru_hit_blocks.items()
    )
    console.print(
        f"reuse at the trace's own blocks: {reuse.ideal_hit_blocks / total:.1%} of {reuse.total_blocks:,} whole "
        f"blocks with an unlimited cache{by_tier}; the schedule has the same"
    )


def _show_classes(console: Console, summary: ScheduleSummary) -> None:
    table = Table(title="One round sends", title_justify="left")
    for heading in ("class", "requests", "measured", "prompt tokens", "output tokens", "distinct prefixes, tokens"):
        table.add_column(heading, justify="left" if heading == "class" else "right")
    for name, c in summary.classes.items():
        cells = (c.requests, c.measured, c.prompt_tokens, c.output_tokens, c.working_set_tokens)
        table.add_row(name, *(f"{cell:,}" for cell in cells))
    console.print(table)
    rate = "as fast as the engine answers" if summary.rate_per_s is None else f"{summary.rate_per_s:.2f} requests/s"
    console.print(f"measured rate: {rate}; {summary.prime_requests} requests fill the tiers first")
    if summary.branch_requests or summary.compactions or summary.aborts:
        console.print(
            f"of these, {summary.branch_requests:,} requests are in side branches, {summary.compactions:,} turns "
            f"begin with a compacted context, {summary.aborts:,} answers are left by their users"
        )
    console.print(f"reuse with an unlimited cache: {summary.ideal_reuse_share:.1%} of measured prompt tokens")


def _show_sources(console: Console, plan: ComparisonPlan) -> None:
    table = Table(title="Expected sources of measured prompt tokens", title_justify="left")
    for heading in ("arm", *SOURCES):
        table.add_column(heading, justify="left" if heading == "arm" else "right")
    for arm, sources in plan.sources.items():
        if sources is None:
            table.add_row(arm, *(["not known beforehand"] + [""] * 3))
            continue
        total = sum(sources.values()) or 1
        table.add_row(arm, *(f"{sources[name] / total:.1%}" for name in SOURCES))
    console.print(table)


def refuse(plan: ComparisonPlan) -> None:
    """InputError when the workload cannot carry a rule."""
    if plan.refused:
        raise InputError("\n".join(plan.refused), do="change the rule, the rate or the length of the phases")
