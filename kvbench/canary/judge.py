"""From what a gate has seen to a verdict: guardrails, evidence, benefit; what is not known stays unknown. Pure.

Observed ─ warm parts ─→ rules ┐
         ─ health ─→ findings ─┴─→ CanaryVerdict
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kvbench.canary.families import BY_SOURCE, FINISHED, GENERATED, LATENCY_FAMILIES, RUNNING, WAITING
from kvbench.canary.findings import CanaryFinding, results
from kvbench.canary.health import check_health, clock
from kvbench.canary.levels import Comparison, judge_levels, judge_total
from kvbench.canary.observed import Observed
from kvbench.canary.odd import odd_replicas, replica_rows
from kvbench.canary.rollback_rule import judge_sustained
from kvbench.canary.segments import Grid, choose_grid, growth_in
from kvbench.canary.series import Group, Replica
from kvbench.canary.shares import Levels, judge_share
from kvbench.canary.verdict import CanaryAction, CanaryVerdict, WatchState, Window
from kvbench.canary.warm import Warmth, warmth
from kvbench.judge import wording
from kvbench.judge.evaluation import SEVERITY, unknown_rule
from kvbench.judge.guardrails import breach_level
from kvbench.judge.sources import SOURCES
from kvbench.judge.verdict import Instrument, Kind, Outcome, RoundCount, RuleResult
from kvbench.spec.engine_metrics import ENGINE_METRICS
from kvbench.spec.rules import LATENCIES, Guardrail, Rule

__all__ = ["judge_canary"]

STABILITY = "stability"
FROZEN_S = 120.0
"""Requests in the engine and not one token for so long: longer than any prompt takes to prefill."""


class _Judged:
    """The warm part of what was seen, and where it begins."""

    def __init__(self, seen: Observed) -> None:
        self.seen = seen
        self.warm: dict[tuple[str, str], Warmth] = {}
        self.candidate = self._warm_part(seen.candidate, "candidate", seen.host_bytes)
        self.baseline = None if seen.baseline is None else self._warm_part(seen.baseline, "baseline", None)
        groups = [group for group in (self.candidate, self.baseline) if group is not None]
        starts = [first for group in groups if (first := self._start(group)) is not None]
        self.start_s = max([seen.start_s, *starts])
        interval_s = max(group.interval_s for group in seen.groups)
        self.grid: Grid = choose_grid(
            self.start_s,
            seen.end_s,
            interval_s,
            once=seen.once,
            planned_s=seen.planned_end_s - seen.start_s,
        )

    def _warm_part(self, group: Group, side: str, host_bytes: int | None) -> Group:
        def part(replica: Replica) -> Replica:
            start_s = self.seen.start_s
            if self.seen.warm_up:
                found = warmth(replica.within(-np.inf, self.seen.end_s), host_bytes)
                self.warm[side, replica.name] = found
                start_s = self.seen.end_s if found.since_s is None else max(start_s, found.since_s)
            return replica.within(start_s, self.seen.end_s)

        return group.each(part)

    def _start(self, group: Group) -> float | None:
        """When the first replica of a group begins to count."""
        return group.first_s

    @property
    def groups(self) -> list[Group]:
        return [group for group in (self.candidate, self.baseline) if group is not None]


def judge_canary(seen: Observed) -> CanaryVerdict:
    """The verdict at this moment. INCONCLUSIVE before the end of a watch means: keep watching."""
    seen = seen.present()
    judged = _Judged(seen)
    findings = check_health(seen, judged.groups, judged.warm)
    findings += odd_replicas(seen.rules, judged.groups)
    guardrails = [_stability(seen), *(_guardrail(rule, judged) for rule in seen.rules.guardrails)]
    evidence = [judge_total(_asked(rule, "evidence", judged), seen.newest_tier) for rule in seen.rules.evidence]
    benefits = [_benefit(rule, judged) for rule in seen.rules.benefits]
    outcome, reasons = _conclude(findings, guardrails, evidence, benefits)
    names = seen.names
    return CanaryVerdict(
        verdict=outcome,
        exit_code=outcome.exit_code,
        baseline=names[0],
        candidate=names[1],
        reasons=[*reasons, *_caveats(outcome)],
        action=_action(seen, outcome, reasons),
        rules=[*results(findings), *guardrails, *evidence, *benefits],
        sources=_sources(seen, judged),
        rounds=RoundCount(done=1, planned=1, unit="launch"),
        instrument=Instrument(scrape_coverage=_coverage(seen)),
        window=Window(start=seen.start_s, end=seen.end_s),
        watch=WatchState(
            segments=judged.grid.count,
            segments_seen=_segments_seen(judged),
            segment_s=judged.grid.length_s,
            planned_end=seen.planned_end_s,
            final=seen.final,
            scrape_interval_s=max(group.interval_s for group in seen.groups),
        ),
        replicas=replica_rows(seen, judged.groups, judged.warm),
    )


def _segments_seen(judged: _Judged) -> int:
    requests = growth_in(judged.candidate.replicas, LATENCY_FAMILIES["ttft"] + "_count", judged.grid)
    return int(np.sum(~np.isnan(requests)))


def _levels(rule: Rule, kind: Kind, seen: Observed) -> Levels:
    """Safe at the level of one, because all must be; a breach at its share of that, as in a comparison. With
    benefits it is the other way round."""
    alpha = (1 - seen.rules.confidence) / 2
    if kind == "benefit":
        return Levels(kept=alpha / max(len(seen.rules.benefits), 1), broken=alpha)
    broken = breach_level(rule, seen.rules.guardrails, alpha) if isinstance(rule, Guardrail) else alpha
    return Levels(kept=alpha, broken=broken)


def _asked(rule: Rule, kind: Kind, judged: _Judged) -> Comparison:
    seen = judged.seen
    return Comparison(rule, kind, seen, judged.candidate, judged.baseline, judged.grid, _levels(rule, kind, seen))


def _guardrail(rule: Rule, judged: _Judged) -> RuleResult:
    if rule.class_ != "all":
        return unknown_rule(rule, "guardrail", "is not known by class: metrics do not tell classes apart")
    sustained = getattr(rule, "sustained", None)
    if sustained is not None:
        return judge_sustained(rule, sustained, judged.seen, judged.candidate, judged.baseline, judged.start_s)  # type: ignore[arg-type]
    parts: list[RuleResult] = []
    asked = _asked(rule, "guardrail", judged)
    budget = rule.max is not None and (rule.metric in LATENCIES or rule.metric == "error_rate")
    if budget:
        parts.append(judge_share(rule, judged.seen, judged.candidate, judged.baseline, asked.levels, judged.grid))
    if rule.metric == "error_rate":
        if judged.candidate.has(FINISHED) and not judged.candidate.has(FINISHED, reason="error"):
            return unknown_rule(rule, "guardrail", "is not told: these servers do not count what failed")
        if rule.max_ratio is not None:
            parts.append(unknown_rule(rule, "guardrail", "is rare, so no ratio of it is judged here; give max"))
    elif _is_total(rule):
        parts.append(judge_total(asked, judged.seen.newest_tier))
    elif not budget or rule.max_ratio is not None:
        rest = rule.model_copy(update={"max": None}) if budget else rule
        parts.append(judge_levels(replace(asked, rule=rest)))
    return max(parts, key=lambda result: SEVERITY[result.status])


def _is_total(rule: Rule) -> bool:
    known = ENGINE_METRICS.get(rule.metric)
    return rule.metric == "promoted_tokens" or (known is not None and known.kind == "counter")


def _benefit(rule: Rule, judged: _Judged) -> RuleResult:
    if rule.class_ != "all":
        return unknown_rule(rule, "benefit", "is not known by class: metrics do not tell classes apart")
    if _is_total(rule) or rule.metric == "error_rate":
        return unknown_rule(rule, "benefit", "is a count, of which no ratio is judged here")
    return judge_levels(_asked(rule, "benefit", judged))


def _stability(seen: Observed) -> RuleResult:
    """Frozen in the candidate only is a breach. Exact: one is enough. Restarts and silence are findings."""
    frozen = [[words for r in group.replicas if (words := _frozen(r, seen))] for group in seen.groups]
    mine, theirs = frozen[0], [words for group in frozen[1:] for words in group]
    text = "no replica held requests without progress"
    status = "pass"
    if mine:
        status = "unknown" if theirs else "fail"
        text = wording.listed(mine) + ("; the baseline is no better" if theirs else "")
    elif not any(replica.has(GENERATED) and replica.has(RUNNING) for replica in seen.candidate.replicas):
        status, text = "unknown", "the candidate does not tell its requests and tokens"
    return RuleResult.model_validate({"rule": STABILITY, "kind": "guardrail", "status": status, "text": text})


def _frozen(replica: Replica, seen: Observed) -> str | None:
    """Since when it has held requests and made no token, if that is too long."""
    tokens = replica.grown(replica.keys(GENERATED))
    held = np.nan_to_num(replica.level([*replica.keys(RUNNING), *replica.keys(WAITING)]))
    inside = (replica.t_s > seen.start_s) & (replica.t_s <= seen.end_s)
    still = inside & (tokens == 0) & (held > 0)
    began: float | None = None
    for t_s, is_still in zip(replica.t_s, still, strict=True):
        if not is_still:
            began = None
        elif began is None:
            began = float(t_s)
        elif t_s - began >= FROZEN_S:
            return f"{replica.name} has held requests since {clock(began)} and not made one token"
    return None


def _conclude(
    findings: Sequence[CanaryFinding],
    guardrails: Sequence[RuleResult],
    evidence: Sequence[RuleResult],
    benefits: Sequence[RuleResult],
) -> tuple[Outcome, list[str]]:
    """What is proven against the tier outweighs what is still unknown; nothing unknown is ever a pass."""
    broken = [rule.text for rule in (*guardrails, *evidence) if rule.status == "fail"]
    if broken:
        return Outcome.NO_GO, broken
    blocking = [finding.text for finding in findings if finding.blocks]
    unknown = [rule.text for rule in (*guardrails, *evidence) if rule.status == "unknown"]
    refuted = [rule.text for rule in benefits if rule.status == "fail"]
    proven = [rule.text for rule in benefits if rule.status == "pass"]
    if benefits and len(refuted) == len(benefits) and not blocking:
        return Outcome.NO_GO, [f"no benefit: {refuted[0]}", *refuted[1:]]
    if benefits and not proven:
        unknown += [rule.text for rule in benefits if rule.status == "unknown"]
    if blocking or unknown:
        return Outcome.INCONCLUSIVE, [*blocking, *unknown]
    if benefits and not proven:
        return Outcome.INCONCLUSIVE, refuted
    return Outcome.GO, [*proven, *(rule.text for rule in (*guardrails, *evidence))]


def _caveats(outcome: Outcome) -> list[str]:
    if outcome is Outcome.GO:
        return ["one launch of each side was watched: this holds for these processes"]
    return []


def _action(seen: Observed, outcome: Outcome, reasons: Sequence[str]) -> CanaryAction | None:
    if outcome is not Outcome.NO_GO or seen.newest_tier is None:
        return None
    return CanaryAction(disable_tier=seen.newest_tier, why=reasons[0])


def _sources(seen: Observed, judged: _Judged) -> dict[str, dict[str, float | None]]:
    names = {"candidate": seen.names[1], "baseline": seen.names[0]}
    found: dict[str, dict[str, float | None]] = {}
    for group in judged.groups:
        side = "candidate" if group is judged.candidate else "baseline"
        tokens: dict[str, float | None] = {source: group.grown(BY_SOURCE, source=source) for source in SOURCES}
        tokens["computed"] = group.computed_tokens
        found[names[side]] = tokens
    return found


def _coverage(seen: Observed) -> float | None:
    """The share of the candidate's time that lies between scrapes one step apart."""
    span_s = seen.end_s - seen.start_s
    shares = []
    for replica in seen.candidate.replicas:
        inside = (replica.t_s > seen.start_s) & (replica.t_s <= seen.end_s) & ~replica.after_gap
        shares.append(min(float(replica.steps_s[inside].sum()) / span_s, 1.0) if span_s > 0 else 0.0)
    return min(shares, default=None)
