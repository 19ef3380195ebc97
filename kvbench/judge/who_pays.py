"""Who pays: for each class and latency whether its users gained or lost, and by how much.

A tail of one class may get worse while the whole gets better. This describes; rules decide: the intervals are plain
ones, each at the confidence of one rule, so that among twenty of them one is wrong by chance. Where a comparison
stopped early they hold somewhat less often than that.
"""

from __future__ import annotations

import math

from kvbench.judge.case import Case
from kvbench.judge.evaluation import from_logs
from kvbench.judge.paired import Levels, estimate
from kvbench.judge.readings import carried_quantile
from kvbench.judge.verdict import ClassChange

__all__ = ["who_pays"]

METRICS = ("ttft", "itl", "e2e")
Quantiles = list[tuple[float, float]]
"""Baseline and candidate of every pair."""


def who_pays(case: Case) -> list[ClassChange]:
    """Class × latency × (p50, the highest usual quantile that every round carries); what was not measured in every
    round, or is not known because users left before their first token, has no row."""
    classes = sorted({name for pair in case.pairs for name in pair.baseline.latencies.classes})
    return [change for class_ in classes for metric in METRICS for change in _changes(case, class_, metric)]


def _changes(case: Case, class_: str, metric: str) -> list[ClassChange]:
    samples = [
        (pair.baseline.latencies.sample(metric, class_), pair.candidate.latencies.sample(metric, class_))
        for pair in case.pairs
    ]
    tail = carried_quantile(min(sample.requests for pair in samples for sample in pair))
    if tail is None:
        return []
    wanted = (0.5, tail) if tail > 0.5 else (0.5,)
    figures = [(baseline.quantiles(*wanted), candidate.quantiles(*wanted)) for baseline, candidate in samples]
    changes = []
    for place, quantile in enumerate(wanted):
        pairs = [(baseline[place], candidate[place]) for baseline, candidate in figures]
        if all(figure > 0 for pair in pairs for figure in pair):
            changes.append(_change(case, class_, metric, quantile, pairs))
    return changes


def _change(case: Case, class_: str, metric: str, quantile: float, pairs: Quantiles) -> ClassChange:
    logs = [(math.log(baseline), math.log(candidate)) for baseline, candidate in pairs]
    found = estimate(
        case.units.average([candidate - baseline for baseline, candidate in logs]),
        case.units.look,
        confidence=case.confidence,
        levels=Levels(case.alpha, case.alpha),
    )
    ci = from_logs(found.ci)
    return ClassChange(
        class_=class_,
        metric=metric,
        quantile=quantile,
        baseline=math.exp(sum(baseline for baseline, _ in logs) / len(logs)),
        candidate=math.exp(sum(candidate for _, candidate in logs) / len(logs)),
        effect=math.exp(found.mean),
        ci=ci,
        change="unclear" if ci is None or ci[0] <= 1 <= ci[1] else "gained" if ci[1] < 1 else "lost",
    )
