"""What came of a rollback, at one look: is the tier off, is TTFT back, and what did it cost? Pure; Unix seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvbench.canary.health import clock
from kvbench.canary.recovery import Measure, ttft_measures
from kvbench.canary.series import Group
from kvbench.canary.switch_cost import Stretches, switch_cost
from kvbench.canary.tier_off import Switch, tier_evidence
from kvbench.canary.told import ServerSays
from kvbench.canary.verdict import ProofPart, Rollback, TierEvidence
from kvbench.judge import wording
from kvbench.spec.rules import Rules

__all__ = ["AfterHook", "judge_rollback", "progress_line"]


@dataclass(frozen=True, eq=False)
class AfterHook:
    """Everything that is known at a look after the hook."""

    rules: Rules
    candidate: Group
    baseline: Group | None
    told: Mapping[str, ServerSays]
    """What servers declare now."""
    asked: frozenset[str]
    """The servers that were asked for it."""
    now_s: float
    failure: str | None = None
    """Why series could not be read at this look."""


def judge_rollback(switch: Switch, seen: AfterHook, before: Rollback | None) -> Rollback:
    """`before` is what the look before this one said."""
    late = seen.now_s >= switch.until_s
    rows: list[TierEvidence] = []
    if seen.failure is not None:
        tier_off = baseline_back = _blind(seen.failure, late=late)
        since_s = None
    else:
        rows = tier_evidence(switch, seen.candidate, seen.told, seen.asked, seen.now_s)
        tier_off = _tier_off(switch, rows, seen.now_s, late=late)
        since_s = _changed_s(rows)
        baseline_back = _back(switch, seen, since_s, tier_off, before, late=late)
    # Unknown before the time is over: it will never be known.
    ended = late or (tier_off.status in ("proven", "unknown") and baseline_back.status == "proven")
    back_s = None if baseline_back.after_s is None else switch.fired_s + baseline_back.after_s
    stretches = Stretches(switch.before_s, switch.fired_s, since_s, back_s, seen.now_s)
    return Rollback(
        tier=switch.tier,
        hook_at=switch.fired_s,
        within_s=switch.until_s - switch.fired_s,
        at=seen.now_s,
        ended=ended,
        tier_off=tier_off,
        baseline_back=baseline_back,
        replicas=rows,
        cost=switch_cost(seen.candidate, seen.baseline, stretches) if ended else None,
    )


def _blind(failure: str, *, late: bool) -> ProofPart:
    return ProofPart(status="unknown" if late else "waiting", text=f"metrics cannot be read: {failure}")


def _changed_s(rows: Sequence[TierEvidence]) -> float | None:
    """When the last of the processes that serve now was first seen; None: all are those from before the hook."""
    return max((row.since for row in rows if row.since is not None), default=None)


def _tier_off(switch: Switch, rows: Sequence[TierEvidence], now_s: float, *, late: bool) -> ProofPart:
    name = f"the {switch.tier} tier" if switch.tier is not None else "the tier"
    on = [row for row in rows if row.status == "on"]
    unknown = [row for row in rows if row.status == "unknown"]
    if rows and not on and not unknown:
        since_s = _changed_s(rows)
        words = wording.listed([f"{row.replica}: {wording.listed(row.evidence, 5)}" for row in rows])
        after_s = (now_s if since_s is None else since_s) - switch.fired_s
        return ProofPart(status="proven", after_s=after_s, text=f"{name} is off; {words}")
    if on:
        words = wording.listed([f"{row.replica}: {row.evidence[0]}" for row in on])
        return ProofPart(status="failed" if late else "waiting", text=f"{name} is still on; {words}")
    words = wording.listed([f"{row.replica}: {wording.listed(row.unproven, 5)}" for row in unknown])
    text = f"it is not proven that {name} is off; {words or 'no replica answers'}"
    known = switch.tier in ("host", "disk")
    return ProofPart(status="waiting" if known and not late else "unknown", text=text)


def _back(
    switch: Switch,
    seen: AfterHook,
    since_s: float | None,
    tier_off: ProofPart,
    before: Rollback | None,
    *,
    late: bool,
) -> ProofPart:
    """Judged over the latest `steady_s`, all of it after the tier went off; at the end, after the hook at least."""
    began_s = since_s
    if began_s is None and (late or tier_off.status == "proven"):
        began_s = switch.fired_s
    start_s = seen.now_s - switch.steady_s
    if began_s is None:
        return ProofPart(status="waiting", text="TTFT is not looked at before anything has changed")
    if start_s < began_s and not late:
        left = wording.value(began_s - start_s, "s")
        return ProofPart(status="waiting", text=f"TTFT is looked at in {left}, from {clock(began_s)} on")
    start_s = max(start_s, began_s)
    measures = _measures(seen, start_s)
    span_s = seen.now_s - start_s
    words = f"{wording.listed([each.text for each in measures], 5)}; in the last {wording.value(span_s, 's')}"
    if measures and all(each.within for each in measures) and span_s >= switch.steady_s - 1e-6:
        held = before.baseline_back if before is not None and before.baseline_back.status == "proven" else None
        after_s = start_s - switch.fired_s if held is None else held.after_s
        return ProofPart(status="proven", after_s=after_s, text=f"TTFT is back: {words}")
    if not measures:
        text = "no rule has a budget for TTFT and there is no baseline, so there is nothing to hold it to"
        return ProofPart(status="unknown" if late else "waiting", text=text)
    over = any(each.within is False for each in measures)
    text = f"TTFT is {'not back' if over else 'not known'}: {words}"
    return ProofPart(status="waiting" if not late else "failed" if over else "unknown", text=text)


def _measures(seen: AfterHook, start_s: float) -> list[Measure]:
    def part(group: Group) -> Group:
        return group.each(lambda replica: replica.within(start_s, seen.now_s))

    baseline = None if seen.baseline is None else part(seen.baseline)
    return ttft_measures(seen.rules, part(seen.candidate), baseline)


def progress_line(rollback: Rollback, failure: str | None) -> str:
    """How it stands, in one line: what is still open."""
    parts = (rollback.tier_off, rollback.baseline_back)
    said = next((part.text for part in parts if part.status != "proven"), rollback.baseline_back.text)
    said = said if failure is None else f"cannot read: {failure}"
    return f"{wording.value(rollback.at - rollback.hook_at, 's')} after the hook: {said}"
