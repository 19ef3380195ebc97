"""Rules on one figure a segment: ratios of quantiles, throughput, shares of sources, engine metrics. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kvbench.canary.families import (
    BY_SOURCE,
    CACHED,
    DISK_WRITTEN,
    GENERATED,
    HOST_STORED,
    LATENCY_FAMILIES,
    PROMPT,
    families_of,
)
from kvbench.canary.histogram import edges_of, quantile_bounds
from kvbench.canary.observed import Observed
from kvbench.canary.segments import Grid, buckets_in, growth_in, levels_in, rate_in
from kvbench.canary.sequential import interval, spread_of
from kvbench.canary.series import Floats, Group
from kvbench.canary.shares import Levels
from kvbench.judge import wording
from kvbench.judge.case import Ruling
from kvbench.judge.evaluation import DECIDED, Limit, from_logs, limits, status_of, unknown_rule, worst
from kvbench.judge.latency import CARRIES_BEYOND
from kvbench.judge.verdict import Kind, RuleResult, Status
from kvbench.spec.engine_metrics import ENGINE_METRICS
from kvbench.spec.rules import LATENCIES, Rule, metric_unit

__all__ = ["Comparison", "judge_levels", "judge_total"]

ELSEWHERE = {
    "output_parity": "compares answers, which metrics do not hold; `kvbench compare` does",
    "quote_recall": "compares answers, which metrics do not hold",
    "goodput": "needs the targets of each request's class, which metrics do not tell",
    "capacity": "is measured by `kvbench capacity`, not by watching",
    "host_memory": "is not among an engine's metrics",
}
"""Metrics that live series do not hold, and why."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """A rule put to the warm part of both groups."""

    rule: Rule
    kind: Kind
    seen: Observed
    candidate: Group
    baseline: Group | None
    grid: Grid
    levels: Levels


def judge_levels(asked: Comparison) -> RuleResult:
    """Hold a figure of each segment against the rule's limits; the worst of several limits counts."""
    rule = asked.rule
    if rule.metric in ELSEWHERE:
        return unknown_rule(rule, asked.kind, ELSEWHERE[rule.metric])
    return worst([Ruling(_against(asked, limit)) for limit in limits(rule)]).result


def _against(asked: Comparison, limit: Limit) -> RuleResult:
    rule, grid = asked.rule, asked.grid
    if limit.ratio and asked.baseline is None:
        return unknown_rule(rule, asked.kind, "is against a baseline, and there is none")
    if rule.metric in LATENCIES:
        grid = _carrying(asked)
        if not grid.count:
            return unknown_rule(rule, asked.kind, "has too few requests for its quantile so far")
    candidate = _figures(asked, asked.candidate, grid)
    baseline = _figures(asked, asked.baseline, grid) if asked.baseline is not None else None
    if candidate is None or (limit.ratio and baseline is None):
        return unknown_rule(rule, asked.kind, "is not told by these servers")
    return _decided(asked, limit, candidate, baseline)


Bounds = tuple[Floats, Floats]
"""Of each segment the least and the most that its figure can be; NaN where there is none."""


def _carrying(asked: Comparison) -> Grid:
    """Segments long enough for n (1 - q) >= 3 requests in each group."""
    name = LATENCY_FAMILIES["ttft"] + "_count"
    needed = CARRIES_BEYOND / (1 - (asked.rule.quantile or 0.0))
    counts = [
        growth_in(group.replicas, name, asked.grid)
        for group in (asked.candidate, asked.baseline)
        if group is not None
    ]
    usual = min((float(np.nanmean(each)) if not np.isnan(each).all() else 0.0 for each in counts), default=0.0)
    if usual <= 0:
        return Grid(asked.grid.start_s, asked.grid.length_s, 0)
    return asked.grid.merged(max(1, math.ceil(needed / usual)))


def _figures(asked: Comparison, group: Group, grid: Grid) -> Bounds | None:
    """The figure of each segment."""
    rule = asked.rule
    if rule.metric in LATENCIES:
        return _quantiles(group, rule, grid)
    values: Floats | None = None
    if rule.metric == "throughput_tokens" and group.has(GENERATED):
        values = rate_in(group.replicas, GENERATED, grid)
    elif rule.metric == "source_share" and rule.source is not None:
        tokens, everything = _source(group, rule.source, grid), growth_in(group.replicas, PROMPT, grid)
        if tokens is not None:
            with np.errstate(invalid="ignore", divide="ignore"):
                values = np.where(everything > 0, tokens / everything, np.nan)
    elif rule.metric in ENGINE_METRICS and ENGINE_METRICS[rule.metric].kind == "gauge":
        values = levels_in(group.replicas, rule.metric, grid) if group.has(rule.metric) else None
    return None if values is None else (values, values)


def _source(group: Group, source: str, grid: Grid) -> Floats | None:
    if group.has(BY_SOURCE, source=source):
        return growth_in(group.replicas, BY_SOURCE, grid, source=source)
    if source == "computed" and group.has(PROMPT) and group.has(CACHED):
        return growth_in(group.replicas, PROMPT, grid) - growth_in(group.replicas, CACHED, grid)
    return None


def _quantiles(group: Group, rule: Rule, grid: Grid) -> Bounds | None:
    if not any(edges_of(replica, rule.metric) for replica in group.replicas):
        return None
    buckets = buckets_in(group.replicas, rule.metric, grid)
    low, high = np.full(grid.count, np.nan), np.full(grid.count, np.nan)
    for i in range(grid.count):
        bounds = quantile_bounds({edge: float(counts[i]) for edge, counts in buckets.items()}, rule.quantile or 0.0)
        if bounds is not None:
            low[i], high[i] = bounds
    return low, high


def _decided(asked: Comparison, limit: Limit, candidate: Bounds, baseline: Bounds | None) -> RuleResult:
    """Where the mean of the figures (of their log ratios) lies, at least and at most."""
    low, high = candidate
    if limit.ratio and baseline is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            low, high = np.log(candidate[0] / baseline[1]), np.log(candidate[1] / baseline[0])
    known = ~(np.isnan(low) | np.isnan(high))
    low, high = low[known], high[known]
    plan, levels = asked.seen.plan, asked.levels
    below, above = (levels.broken, levels.kept) if limit.upper else (levels.kept, levels.broken)
    least = interval(spread_of(low), below, above, plan) if np.isfinite(low).all() else None
    most = interval(spread_of(high), below, above, plan) if np.isfinite(high).all() else None
    ends = (least[0] if least else -math.inf, most[1] if most else math.inf)
    bound = math.log(limit.amount) if limit.ratio else limit.amount
    decidable = (least is not None or most is not None) and len(low) > 0
    status: Status = status_of(ends, bound, upper=limit.upper) if decidable else "unknown"
    shown = from_logs(ends) if limit.ratio else ends
    exact = bool(len(low)) and bool(np.array_equal(low, high))
    effect = float(low.mean()) if exact else None
    if effect is not None and limit.ratio:
        effect = math.exp(effect)
    result = RuleResult(
        rule=asked.rule.id,
        kind=asked.kind,
        status=status,
        metric=asked.rule.metric,
        quantile=asked.rule.quantile,
        class_=asked.rule.class_,
        baseline=_single(baseline),
        candidate=_single(candidate),
        unit=metric_unit(asked.rule.metric),
        effect=effect,
        ci=shown if decidable else None,
        decision_ci=shown if decidable else None,
        limit=limit.amount,
        text="",
    )
    return result.model_copy(update={"text": _text(asked, limit, result, (candidate, baseline), len(low))})


def _single(bounds: Bounds | None) -> float | None:
    """The mean figure, where it is a number and not a bound."""
    if bounds is None or not np.array_equal(bounds[0], bounds[1], equal_nan=True):
        return None
    known = bounds[0][~np.isnan(bounds[0])]
    return float(known.mean()) if len(known) else None


def _range(bounds: Bounds | None, unit: str | None) -> str:
    """`0.25 s to 0.5 s`: between which figures most segments lie."""
    if bounds is None:
        return "unknown"
    low, high = (each[~np.isnan(each)] for each in bounds)
    if not len(low):
        return "unknown"
    ends = [wording.value(float(np.median(each)), unit) for each in (low, high)]
    return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


def _text(
    asked: Comparison, limit: Limit, result: RuleResult, figures: tuple[Bounds, Bounds | None], segments: int
) -> str:
    rule, unit = asked.rule, result.unit
    candidate, baseline = figures
    words = f"{wording.what(rule.metric, rule.quantile, rule.class_, rule.source)}: {_range(candidate, unit)}"
    if limit.ratio:
        words += f" instead of {_range(baseline, unit)}"
    if result.decision_ci is not None:
        show = wording.ratio if limit.ratio else lambda amount: wording.value(amount, unit)
        low, high = (show(end) if math.isfinite(end) else "unbounded" for end in result.decision_ci)
        words += f", {'ratio' if limit.ratio else 'mean'} between {low} and {high}"
        amount = show(limit.amount)
    else:
        amount = wording.ratio(limit.amount) if limit.ratio else wording.value(limit.amount, unit)
    words += f"; {limit.words} {amount} asked for"
    if result.decision_ci is None:
        return f"{words}; {wording.count(segments, 'segment')} cannot decide it yet"
    return f"{words}: {DECIDED[asked.kind][result.status]}"


def judge_total(asked: Comparison, source_tier: str | None) -> RuleResult:
    """A count over the whole watch: promoted tokens, or a counter of the engine. Exact, so one look is as good as
    many: beyond `max` at once, within it at the end; `min` reached at once."""
    rule = asked.rule
    total = _total(asked, source_tier)
    if total is None:
        return unknown_rule(rule, asked.kind, "is not told by these servers")
    if any(limit.ratio for limit in limits(rule)):
        return unknown_rule(rule, asked.kind, "is a count; give max or min, which need no baseline")
    status: Status = "pass"
    if rule.max is not None and not total <= rule.max:
        status = "fail"
    elif (rule.max is not None and not asked.seen.final) or (rule.min is not None and total < rule.min):
        status = "unknown"
    unit = metric_unit(rule.metric)
    limit = rule.max if rule.max is not None else rule.min
    words = f"{wording.what(rule.metric, source=rule.source)}: {wording.value(total, unit)} since the watch began"
    asked_for = f"{'at most' if rule.max is not None else 'at least'} {wording.value(limit or 0.0, unit)} asked for"
    return RuleResult(
        rule=rule.id,
        kind=asked.kind,
        status=status,
        metric=rule.metric,
        candidate=total,
        unit=unit,
        limit=limit,
        text=f"{words}; {asked_for}: {DECIDED[asked.kind][status]}",
    )


def _total(asked: Comparison, source_tier: str | None) -> float | None:
    rule, group = asked.rule, asked.candidate
    if rule.metric == "promoted_tokens":
        source = rule.source or source_tier
        if source is None or not group.has(BY_SOURCE, source=source):
            return None
        return group.grown(BY_SOURCE, source=source)
    if not group.has(rule.metric):
        return 0.0 if _silent_so_far(group, rule.metric) else None
    return group.grown(rule.metric)


def _silent_so_far(group: Group, metric: str) -> bool:
    """vLLM's tier counters have no sample before their first event; others of the tier show that it is on."""
    families = [mapping.family for mapping in families_of(metric)]
    if any(family.startswith("vllm:kv_offload_tiering_") for family in families):
        return group.has(DISK_WRITTEN)
    return any(family.startswith("vllm:kv_offload_") for family in families) and group.has(HOST_STORED)
