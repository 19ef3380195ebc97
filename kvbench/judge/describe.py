"""Figures that describe a comparison without deciding it: latencies pooled over rounds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from kvbench.judge.case import Case, JudgedRound
from kvbench.judge.latency import Sample
from kvbench.spec.rules import LATENCIES

__all__ = ["latency_rows"]

Row = dict[str, float | str | int | None]


def latency_rows(case: Case) -> list[Row]:
    """Arm × class × latency: requests, values, p50, p90, p99; None where users who left before their first token
    leave it open. A class of one is not repeated as "all"."""
    arms = (
        (case.comparison.baseline.name, [pair.baseline for pair in case.pairs]),
        (case.comparison.candidate.name, [pair.candidate for pair in case.pairs]),
    )
    return [row for arm, rounds in arms if rounds for row in _arm_rows(arm, rounds)]


def _arm_rows(arm: str, rounds: list[JudgedRound]) -> Iterator[Row]:
    classes = sorted({name for round_ in rounds for name in round_.latencies.classes})
    named = ["all", *classes] if len(classes) > 1 else classes
    rows = {metric: _metric_rows(arm, metric, rounds, named) for metric in LATENCIES}
    for class_ in named:
        yield from (rows[metric][class_] for metric in LATENCIES if class_ in rows[metric])


def _metric_rows(arm: str, metric: str, rounds: list[JudgedRound], classes: Sequence[str]) -> dict[str, Row]:
    """By class; none of a class that has no value."""
    samples = [round_.latencies.by_class(metric) for round_ in rounds]
    rows: dict[str, Row] = {}
    for class_ in classes:
        pooled = Sample.pooled([sample(class_) for sample in samples])
        if len(pooled):
            p50, p90, p99 = (None if math.isnan(figure) else figure for figure in pooled.quantiles(0.5, 0.9, 0.99))
            rows[class_] = {
                "arm": arm,
                "class": class_,
                "metric": metric,
                "count": pooled.requests,
                "values": len(pooled),
                "p50": p50,
                "p90": p90,
                "p99": p99,
            }
    return rows
