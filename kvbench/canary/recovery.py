"""Whether TTFT is back after a rollback: within the budgets of the rules, or no slower than the baseline. Pure.

A budget holds where the share over it is below that at which the rollback rule fires. Against the baseline the
candidate's quantile may lie in no higher bucket than the baseline's, which is as finely as histograms tell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvbench.canary.families import LATENCY_FAMILIES
from kvbench.canary.histogram import bucket_keys, counts_over, edges_of, quantile_bounds
from kvbench.canary.series import Group, Replica
from kvbench.canary.verdict import LatencySummary
from kvbench.judge import wording
from kvbench.judge.sustained import FEWEST_REQUESTS, firing_share
from kvbench.spec.rules import Rule, Rules

__all__ = ["Measure", "summary", "ttft_measures"]

TTFT = ("ttft", "ttft_service")
USUAL = 0.5
"""The quantile held against the baseline's where no rule names one: the median needs the fewest requests."""


@dataclass(frozen=True)
class Measure:
    """One limit of TTFT in a stretch. `within` None: too few requests to say."""

    within: bool | None
    text: str


def ttft_measures(rules: Rules, candidate: Group, baseline: Group | None) -> list[Measure]:
    """Every limit that the rules set, or the baseline where they set none; empty: there is none."""
    asked = [rule for rule in rules.guardrails if rule.metric in TTFT and rule.class_ == "all"]
    found = [_budget(rule, candidate) for rule in asked if rule.max is not None]
    if baseline is not None:
        compared = [rule.quantile or USUAL for rule in asked if rule.max_ratio is not None]
        if not compared and not found:
            compared = [USUAL]
        found += [_against(quantile, candidate, baseline) for quantile in compared]
    return found


def _budget(rule: Rule, group: Group) -> Measure:
    samples = over = 0.0
    budget, quantile = rule.max or 0.0, rule.quantile or USUAL
    for replica in group.replicas:
        counts = counts_over(replica, rule.metric, budget)
        if counts is not None:
            usual = ~np.isin(counts.t_s, counts.unusual)
            samples += float(counts.samples[usual].sum())
            over += float(counts.over_most[usual].sum())
    limit = firing_share(quantile)
    words = f"{wording.what(rule.metric, quantile)} at most {wording.value(budget, 's')}"
    if samples < FEWEST_REQUESTS:
        return Measure(None, f"{words}: only {wording.count(int(samples), 'request')} so far")
    share = over / samples
    seen = f"{wording.share(share)} of {samples:,.0f} requests over it"
    return Measure(share < limit, f"{words}: {seen}, less than {wording.share(limit)} asked for")


def _against(quantile: float, candidate: Group, baseline: Group) -> Measure:
    words = wording.what("ttft", quantile)
    bounds = []
    for side, group in (("candidate", candidate), ("baseline", baseline)):
        buckets = _buckets(group.replicas, gaps=False)
        count = buckets.get(math.inf, 0.0)
        found = quantile_bounds(buckets, quantile)
        if found is None or count < FEWEST_REQUESTS:
            return Measure(None, f"{words}: only {wording.count(int(count), 'request')} of the {side} so far")
        bounds.append(found)
    mine, theirs = bounds
    text = f"{words} {_range(mine)}, of the baseline {_range(theirs)}"
    return Measure(mine[1] <= theirs[1], text)


def _range(bounds: tuple[float, float]) -> str:
    low, high = (wording.value(edge, "s") for edge in bounds)
    return f"between {low} and {high}"


def _buckets(replicas: Sequence[Replica], *, gaps: bool) -> dict[float, float]:
    """Upper edge that all replicas have → requests at most there. Growth behind a gap of scrapes is of a time that
    is not known, and counts only with `gaps`."""
    each = [set(edges) for replica in replicas if (edges := edges_of(replica, "ttft"))]
    found: dict[float, float] = {}
    for edge in sorted(set.intersection(*each)) if each else []:
        growths = ((replica, replica.grown(bucket_keys(replica, "ttft", edge))) for replica in replicas)
        found[edge] = sum(float(np.nansum(g if gaps else g[~replica.after_gap])) for replica, g in growths)
    return found


def summary(group: Group) -> LatencySummary | None:
    """TTFT of a stretch; None without a request."""
    name = LATENCY_FAMILIES["ttft"]
    requests = group.grown(f"{name}_count")
    if not requests:
        return None
    seconds = group.grown(f"{name}_sum")
    buckets = _buckets(group.replicas, gaps=True)
    return LatencySummary(
        requests=requests,
        mean_s=None if seconds is None else seconds / requests,
        p50_s=quantile_bounds(buckets, 0.5),
        p90_s=quantile_bounds(buckets, 0.9),
    )
