"""A plan: what tiers would do with a workload or a trace, before any GPU-hour is spent. One document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from kvbench.errors import InputError, Where
from kvbench.plan.alternatives import alternatives
from kvbench.plan.break_even import break_even_rows, break_even_tokens
from kvbench.plan.endurance import endurance, written_bytes
from kvbench.plan.made_for import made_for
from kvbench.plan.planned_arm import PlannedArm
from kvbench.plan.prediction import Prediction, predict
from kvbench.plan.references import ratio
from kvbench.plan.reuse import expected_sources
from kvbench.plan.sweep import Sweep, SweepPoint, host_sweep, knee, usual_sweep
from kvbench.spec.bounds import LONGEST_S
from kvbench.spec.emulation import Costs
from kvbench.spec.profile import Profile
from kvbench.spec.quantity import show_bytes, show_seconds
from kvbench.spec.workload import Workload
from kvbench.workload.build import build_replay, build_schedule
from kvbench.workload.schedule import Schedule
from kvbench.workload.traces.bad_lines import BadLines

__all__ = ["MOST_REQUESTS", "Traffic", "make_plan", "plan_arm", "planned_schedule", "whole_plan"]

MOST_REQUESTS = 5_000
"""Of a trace, unless another limit is asked for: the emulated core takes some milliseconds a request."""
SMALL_GAIN = 0.05
"""Of the prefill that is left, and of its time; less drowns in the spread between launches."""


@dataclass(frozen=True)
class Traffic:
    """A workload or a trace, one of the two; the rest is about a trace."""

    workload: Workload | None = None
    trace: Path | None = None
    format_: str | None = None
    limit: int | None = None
    """Requests that are played; None: `MOST_REQUESTS`."""
    block_tokens: int | None = None
    """Tokens that one id stands for; None: the file says, or it follows from the lengths."""
    bad: BadLines = field(default_factory=BadLines)
    """How many lines may be left out because they cannot be read, and which were."""
    rounds: int = 1
    """Of a workload: the rounds of a comparison draw requests of their own, and so many of them are predicted."""


def whole_plan(traffic: Traffic, arm: PlannedArm, sweep: Sweep | None) -> dict[str, object]:
    """The document, and whom it was made for. InputError: see `planned_schedule`."""
    schedule, left_out = planned_schedule(traffic, arm)
    document = make_plan(schedule, arm, sweep, left_out=left_out, further=_further(traffic, arm))
    workload = traffic.workload if traffic.trace is None else None
    skipped = {} if traffic.trace is None else {"skipped_lines": traffic.bad.document()}
    return document | skipped | {"made_for": made_for(arm.asked, workload).model_dump()}


def plan_arm(
    workload: Workload, arm: PlannedArm, capacities: Mapping[str, int], rounds: int = 1
) -> dict[str, object]:
    """Of one arm what a comparison of so many rounds needs: no sizes are swept. `capacities` in tokens by tier size
    its pools."""
    traffic = Traffic(workload, rounds=rounds)
    schedule, left_out = planned_schedule(traffic, arm, capacities)
    asked = _predicted([schedule, *_further(traffic, arm, capacities)], arm, arm.profile)
    document = _head(schedule, arm, left_out) | {"prediction": asked.document()}
    return document | {"made_for": made_for(arm.asked, workload).model_dump()}


def _further(traffic: Traffic, arm: PlannedArm, capacities: Mapping[str, int] | None = None) -> list[Schedule]:
    """What rounds after the first send. A recorded trace is the same in each, but for who is held out."""
    workload = traffic.workload
    if traffic.trace is not None or workload is None:
        return []
    if workload.arrivals.trace is not None and not workload.tier_holdout:
        return []
    return [planned_schedule(traffic, arm, capacities, index)[0] for index in range(2, traffic.rounds + 1)]


def planned_schedule(
    traffic: Traffic, arm: PlannedArm, capacities: Mapping[str, int] | None = None, index: int = 1
) -> tuple[Schedule, int]:
    """What is sent in a round, and how many requests of a trace are left out because the engine would refuse their
    length.

    `capacities` in tokens by tier take the place of the arm's own. InputError when a prompt does not fit the
    device, or the trace cannot be read.
    """
    workload = traffic.workload if traffic.trace is None else _of_trace(traffic)
    if workload is None:
        raise InputError("a plan needs traffic", do="name a workload (--workload) or a trace (--trace)")
    told = arm.profile.engine.args.get("max-model-len")
    longest_taken = told if isinstance(told, int) else None
    holding = arm.capacities_tokens if capacities is None else capacities
    if traffic.trace is None:
        schedule = build_schedule(
            workload,
            index,
            block_tokens=arm.block_tokens,
            capacities_tokens=holding,
            max_model_len=longest_taken,
        )
    else:
        schedule = build_replay(
            workload, 1, capacities_tokens=holding, max_model_len=None, bad_lines=traffic.bad.limit
        ).schedule
    schedule, left_out = _taken(schedule, longest_taken)
    sent = zip(schedule.prompt_tokens(), schedule.in_order(), strict=True)
    longest = max((tokens + request.output_tokens for tokens, request in sent), default=0)
    holds = (arm.device_blocks - 1) * arm.block_tokens
    if longest > holds:
        raise InputError(
            f"the longest request has {longest:,} tokens, and the device holds {holds:,}",
            where=None if traffic.trace is None else Where(traffic.trace),
            do="give the device more (--device-kv), or a model with smaller KV",
        )
    return schedule, left_out


def _taken(schedule: Schedule, longest: int | None) -> tuple[Schedule, int]:
    """Without requests that are too long, and without the turns that wait for them."""
    if longest is None:
        return schedule, 0
    sent = zip(schedule.in_order(), schedule.prompt_tokens(), strict=True)
    refused = {request.id for request, tokens in sent if tokens + request.output_tokens > longest}
    kept = []
    for request in schedule.requests:
        if request.continues in refused:
            refused.add(request.id)
        if request.id not in refused:
            kept.append(request)
    if schedule.requests and not kept:
        raise InputError(f"every request is longer than the engine takes, {longest:,} tokens")
    return replace(schedule, requests=tuple(kept)), len(schedule.requests) - len(kept)


def _of_trace(traffic: Traffic) -> Workload:
    """The whole of a trace, or its first requests, at its own times."""
    from kvbench.workload.traces.reading import read_trace

    path = traffic.trace or Path()
    limit = traffic.limit or MOST_REQUESTS
    read = read_trace(path, format_=traffic.format_, block_tokens=traffic.block_tokens, bad_lines=traffic.bad)
    if not read.has_identity:
        raise InputError(
            "this trace has lengths only: it does not say which prompts begin alike, and so nothing of what tiers "
            "would serve",
            where=Where(path),
            do="plan with a trace that has block ids, token ids or messages, or with a workload",
        )
    played_s = float(read.times_s[min(limit, len(read)) - 1]) + 1.0
    if played_s > LONGEST_S:
        raise InputError(
            "its requests come over more than 365d, so its times are none of one service",
            where=Where(path),
            do="leave out what does not belong to it, or plan with fewer requests (--limit)",
        )
    source = {
        "path": str(path.resolve()),
        "format": traffic.format_,
        "block_tokens": traffic.block_tokens,
        "limit": limit,
        "spread": "batch",
    }
    return Workload.model_validate(
        {"name": "trace", "arrivals": {"trace": source}, "phases": [{"name": "all", "for": played_s}]}
    )


def make_plan(
    schedule: Schedule,
    arm: PlannedArm,
    sweep: Sweep | None,
    *,
    left_out: int = 0,
    further: Sequence[Schedule] = (),
) -> dict[str, object]:
    """The document. `prediction` and `device_only` are of the schedules of `further` rounds as well, all else
    is the serial replay's."""
    points = host_sweep(schedule, arm, sweep or usual_sweep(arm))
    base = points[0] if points[0].size_bytes == 0 else host_sweep(schedule, arm, Sweep("host", (0,)))[0]
    bend = knee([base, *points])
    every = [schedule, *further]
    asked = _predicted(every, arm, arm.profile)
    alone = asked if arm.profile.tiers.host is None else _predicted(every, arm, arm.without_tiers())
    written = written_bytes(schedule, arm)
    costs = arm.costs.costs
    rate = costs.load_block and arm.block_bytes / costs.load_block
    return _head(schedule, arm, left_out) | {
        "prediction": asked.document(),
        "device_only": alone.document(),
        "path": {
            "bytes_per_s": rate or None,
            "mean_use": ratio(asked.promoted_bytes_per_s, rate),
            "peak_use": ratio(asked.promoted_peak_bytes_per_s, rate),
        },
        "sweep": [
            {"tier": "host", "size_bytes": point.size_bytes, "shares": point.shares, "served": point.served}
            for point in points
        ],
        "knee": None if bend is None else {"tier": "host", "size_bytes": bend.size_bytes, "served": bend.served},
        "recommendation": _recommended(schedule, arm, base, points, bend, written),
        "break_even": _break_even(arm),
        "disk_writes": endurance(schedule, arm, written),
        "alternatives": [asdict(each) for each in alternatives(schedule, arm)],
    }


def _head(schedule: Schedule, arm: PlannedArm, left_out: int) -> dict[str, object]:
    """What was planned, and on what the plan rests."""
    return {
        "schema": 1,
        "profile": arm.profile.name,
        "workload": schedule.workload,
        "requests": len(schedule.requests),
        "left_out": left_out,
        "duration_s": schedule.duration_s,
        "costs": {"source": arm.costs.source, **arm.costs.costs.model_dump()},
        "assumptions": list(arm.assumptions),
        "sizes": {
            "gpus": arm.setting.ranks,
            "block_tokens": arm.block_tokens,
            "bytes_per_token": arm.token_bytes,
            "device_bytes": arm.device_blocks * arm.block_bytes,
            "host_bytes": arm.host_blocks * arm.block_bytes,
            "host_policy": arm.host_rules.policy,
            "disk": arm.disk,
        },
    }


def _predicted(schedules: Sequence[Schedule], arm: PlannedArm, profile: Profile) -> Prediction:
    return predict(schedules, profile, arm.emulation, arm.token_bytes)


def _recommended(
    schedule: Schedule,
    arm: PlannedArm,
    base: SweepPoint,
    points: list[SweepPoint],
    bend: SweepPoint | None,
    written: int,
) -> dict[str, object]:
    """Sizes with the reason, or none with the reason. `base` is the device alone."""
    costs = arm.costs.costs
    host = _Loads(arm, schedule.prompt_tokens(), costs.load_block, costs.transfer)
    if host.never_pay:
        return _nothing("loading from the host takes longer than computing, for every prompt of this traffic")
    left = base.shares["computed"]
    if bend is None or not left or (bend.served - base.served) / left < SMALL_GAIN:
        return _nothing(
            f"the device serves {base.served:.1%} of the prompt tokens, and the largest host tier of the sweep "
            f"{max(point.served for point in points):.1%}"
        )
    gain = (bend.served - base.served) / left
    if gain * host.saved < SMALL_GAIN:
        return _nothing(f"the host would take away {gain:.0%} of the prefill that is left, but {host.words}")
    reason = (
        f"host: {show_bytes(bend.size_bytes)} serve {bend.served:.1%} of the prompt tokens, nine tenths of what "
        f"the largest size of the sweep adds to the device's {base.served:.1%}"
    )
    disk, words = _disk(schedule, arm, bend, written)
    return {"host_bytes": bend.size_bytes, "disk_bytes": disk, "reason": f"{reason}; {words}"}


def _nothing(why: str) -> dict[str, object]:
    return {"host_bytes": 0, "disk_bytes": 0, "reason": f"none: {why}"}


def _disk(schedule: Schedule, arm: PlannedArm, bend: SweepPoint, written: int) -> tuple[int, str]:
    """Whether a disk behind the recommended host tier adds enough, and pays."""
    tokens = expected_sources(
        schedule,
        block_tokens=arm.block_tokens,
        device_blocks=arm.device_blocks,
        host_blocks=bend.size_bytes // arm.block_bytes,
        disk=True,
        host_rules=arm.host_rules,
    )
    served = 1.0 - tokens["computed"] / (sum(tokens.values()) or 1)
    left = bend.shares["computed"]
    if not left or (served - bend.served) / left < SMALL_GAIN:
        return 0, f"disk: none, it would raise that to {served:.1%} only"
    costs = arm.costs.costs
    disk = _Loads(arm, schedule.prompt_tokens(), costs.load_block + costs.read_block, _disk_base_s(costs))
    if disk.never_pay:
        return 0, f"disk: none, it could serve {served:.1%}, but reading takes longer than computing"
    if (served - bend.served) / left * disk.saved < SMALL_GAIN:
        return 0, f"disk: none, it could serve {served:.1%}, but {disk.words}"
    return written, f"disk: {show_bytes(written)} (every block of this traffic once) raise that to {served:.1%}"


class _Loads:
    """What loads from one tier are worth to prompts of these lengths, in tokens."""

    def __init__(self, arm: PlannedArm, prompts: list[int], block_s: float, base_s: float) -> None:
        costs = arm.costs.costs
        rate = arm.block_bytes / block_s if block_s else float("inf")
        even = break_even_tokens(costs, arm.token_bytes, rate, base_s=base_s)
        self.never_pay = even is None or even > max(prompts, default=0)
        count = len(prompts) or 1
        self._computed_s = sum((costs.token + costs.token_context * n / 2) * n for n in prompts) / count
        self._loaded_s = base_s + sum(prompts) / count * arm.token_bytes / rate

    @property
    def saved(self) -> float:
        """Share of the time to compute prompts that loading them saves."""
        return max(0.0, 1.0 - self._loaded_s / self._computed_s) if self._computed_s else 0.0

    @property
    def words(self) -> str:
        """The same for people."""
        return (
            f"a prompt takes {show_seconds(self._loaded_s)} to load instead of {show_seconds(self._computed_s)} to "
            "compute, on average"
        )


def _break_even(arm: PlannedArm) -> dict[str, object]:
    costs = arm.costs.costs
    longest = arm.profile.engine.args.get("max-model-len")
    rows = break_even_rows(
        costs,
        arm.token_bytes,
        block_tokens=arm.block_tokens,
        longest=longest if isinstance(longest, int) else None,
        ranks=arm.setting.ranks,
    )
    return {
        "own": {
            "host": _own(arm, costs.load_block, costs.transfer),
            "disk": _own(arm, costs.load_block + costs.read_block, _disk_base_s(costs)),
        },
        "paths": [asdict(row) for row in rows],
    }


def _disk_base_s(costs: Costs) -> float:
    """Of a hit on disk, however long: it goes through the host."""
    return costs.lookup + costs.disk_transfer + costs.transfer


def _own(arm: PlannedArm, block_s: float, base_s: float) -> int | None:
    rate = arm.block_bytes / block_s if block_s else float("inf")
    return break_even_tokens(arm.costs.costs, arm.token_bytes, rate, base_s=base_s, unit=arm.block_tokens)
