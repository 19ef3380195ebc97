"""Budgets as shares: "p99 at most 2 s" is "at most 1 % over 2 s", which adds up over replicas and time. Pure.

A budget between two bucket edges is judged at both: broken only if it is so at the far edge, kept only if it is so
at the near one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kvbench.canary.families import FINISHED, REFUSED
from kvbench.canary.histogram import Counts, counts_over
from kvbench.canary.observed import Observed
from kvbench.canary.segments import Grid, SegmentCounts, counts_in
from kvbench.canary.sequential import Plan, Spread, boundary, spread_of
from kvbench.canary.series import Group, Replica
from kvbench.judge import wording
from kvbench.judge.evaluation import DECIDED
from kvbench.judge.sustained import FEWEST_OVER
from kvbench.judge.verdict import RuleResult, Status
from kvbench.spec.rules import LATENCIES, Rule, metric_unit

__all__ = ["Levels", "Share", "allowed_share", "budget_counts", "judge_share", "share_of"]


@dataclass(frozen=True)
class Levels:
    """One-sided levels: what proving a rule kept takes, and what proving it broken takes."""

    kept: float
    broken: float


@dataclass(frozen=True)
class Share:
    """A share over budget, its interval and what it says of the rule."""

    status: Status
    seen: tuple[float, float] | None
    """Least and most; the same where the budget is a bucket's edge. None: nothing was seen."""
    ci: tuple[float, float] | None
    segments: int
    needed_s: float | None = None
    """How long a watch would have to be, at what was seen so far, to settle it."""

    @property
    def share(self) -> float | None:
        """A number, where it is one and not a bound."""
        return self.seen[0] if self.seen is not None and self.seen[0] == self.seen[1] else None


def allowed_share(rule: Rule) -> float:
    """What may be over: 1 - q of a latency, the budget itself of an error rate."""
    if rule.metric in LATENCIES and rule.quantile is not None:
        return 1 - rule.quantile
    return rule.max or 0.0


def budget_counts(rule: Rule, replica: Replica) -> Counts | None:
    """What of a replica counts for a rule with a budget; None where its series are not there."""
    if rule.metric in LATENCIES:
        return counts_over(replica, rule.metric, rule.max or 0.0)
    return _errors(replica)


def _errors(replica: Replica) -> Counts | None:
    """Failed and refused of all that ended. Clients that left (abort) are not the server's errors."""
    if not replica.has(FINISHED):
        return None
    ended = replica.grown(replica.keys(FINISHED))
    failed = replica.grown(replica.keys(FINISHED, reason="error"))
    refused = np.nan_to_num(replica.grown(replica.keys(REFUSED)))
    over = np.nan_to_num(failed) + refused
    known = ~np.isnan(ended)
    samples = (ended + refused)[known]
    return Counts(
        replica.name,
        replica.t_s[known],
        replica.steps_s[known],
        samples,
        over[known],
        over[known],
        samples,
        (0.0, 0.0),
        tuple(replica.t_s[known & replica.after_gap].tolist()),
    )


def share_of(counts: SegmentCounts, allowed: float, levels: Levels, plan: Plan, length_s: float) -> Share:
    """Hold the share over budget, segment by segment, against what is allowed.

    In each segment the excess is `over - allowed * samples`; its mean is compared with zero. Counting alone spreads
    it by n p (1 - p), which is the least that is believed, because a stretch without any excess has no spread.
    Samples of one request (ITL) count as one there.
    """
    if counts.n == 0 or not counts.samples.sum():
        return Share("unknown", None, None, counts.n)
    requests = max(float(counts.requests.sum()), 1.0)
    clumped = max(float(counts.samples.sum()) / requests, 1.0)
    floor = math.sqrt(float(counts.samples.mean()) * clumped * allowed * (1 - allowed))
    least = spread_of(counts.over_least - allowed * counts.samples, floor)
    most = spread_of(counts.over_most - allowed * counts.samples, floor)
    per_segment = float(counts.samples.mean())
    above, below = boundary(levels.kept, counts.n, plan), boundary(levels.broken, counts.n, plan)
    total = float(counts.samples.sum())
    shown = (float(counts.over_least.sum()) / total, float(counts.over_most.sum()) / total)
    if above is None or below is None:
        return Share("unknown", shown, None, counts.n)
    high, low = most.mean + above * most.error, least.mean - below * least.error
    status: Status = "unknown"
    if high <= 0:
        status = "pass"
    elif low > 0 and counts.over_least.sum() >= FEWEST_OVER * clumped:
        status = "fail"
    ci = (max(low / per_segment + allowed, 0.0), min(high / per_segment + allowed, 1.0))
    needed = _needed_s(least, most, (above, below), length_s) if status == "unknown" else None
    return Share(status, shown, ci, counts.n, needed)


def _needed_s(least: Spread, most: Spread, ends: tuple[float, float], length_s: float) -> float | None:
    """The length at which the nearer end would reach zero, as errors shrink with the root of time."""
    if most.mean < 0:
        times = (ends[0] * most.error / most.mean) ** 2
    elif least.mean > 0:
        times = (ends[1] * least.error / least.mean) ** 2
    else:
        return None
    return times * most.n * length_s if math.isfinite(times) else None


def judge_share(
    rule: Rule, seen: Observed, candidate: Group, baseline: Group | None, levels: Levels, grid: Grid
) -> RuleResult:
    """A rule with a budget and without `sustained`. A baseline that breaks it as well leaves it unknown."""
    allowed = allowed_share(rule)
    found: list[tuple[Share, list[Counts]]] = []
    for group in (candidate, baseline):
        several = [] if group is None else [budget_counts(rule, replica) for replica in group.replicas]
        known = [counts for counts in several if counts is not None]
        found.append((share_of(counts_in(known, grid), allowed, levels, seen.plan, grid.length_s), known))
    (share, counts), (control, _) = found
    if allowed == 0 and share.seen is not None:
        share = replace(share, status="fail" if share.seen[0] > 0 else "pass" if seen.final else "unknown")
    status: Status = "unknown" if share.status == "fail" and control.status == "fail" else share.status
    text = _text(rule, share, control, status, counts)
    return RuleResult(
        rule=rule.id,
        kind="guardrail",
        status=status,
        metric=rule.metric,
        quantile=rule.quantile,
        class_=rule.class_,
        baseline=control.share,
        candidate=share.share,
        unit="fraction",
        effect=share.share,
        ci=share.ci,
        decision_ci=share.ci,
        limit=allowed,
        text=text,
    )


def _text(rule: Rule, share: Share, control: Share, status: Status, counts: Sequence[Counts]) -> str:
    words = wording.what(rule.metric, rule.quantile)
    if rule.metric in LATENCIES:
        words += f" at most {wording.value(rule.max or 0.0, metric_unit(rule.metric))}"
    if share.seen is None:
        return f"{words}: there is nothing to judge it by yet"
    over = "over budget" if rule.metric in LATENCIES else "failed"
    words += f": {_between(share.seen)} {over}"
    if share.ci is not None:
        words += f" [{wording.share(share.ci[0])}, {wording.share(share.ci[1])}]"
    words += f", {wording.share(allowed_share(rule))} allowed"
    uneven = next((each for each in counts if not each.exact), None)
    if uneven is not None:
        below, above = (wording.value(edge, "s") for edge in uneven.edges)
        words += f"; the budget lies between the bucket edges {below} and {above}, so this is a bound"
    if status != share.status:
        control_share = "" if control.seen is None else f" with {_between(control.seen)}"
        return f"{words}; the baseline breaks it as well{control_share}, so it is sick itself"
    words += f": {DECIDED['guardrail'][status]}"
    if share.needed_s is not None:
        words += f"; it would take about {wording.value(share.needed_s, 's')} in all"
    return words


def _between(seen: tuple[float, float]) -> str:
    low, high = (wording.share(each) for each in seen)
    return low if low == high else f"{low} to {high}"
