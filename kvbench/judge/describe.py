"""Figures that describe a comparison without deciding it: latencies pooled over rounds."""

from __future__ import annotations

import math
from collections.abc import Iterator

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
    for class_ in ["all", *classes] if len(classes) > 1 else classes:
        for metric in LATENCIES:
            pooled = Sample.pooled([round_.latencies.sample(metric, class_) for round_ in rounds])
            if not len(pooled):
                continue
            p50, p90, p99 = (None if math.isnan(figure) else figure for figure in pooled.quantiles(0.5, 0.9, 0.99))
            yield {
                "arm": arm,
                "class": class_,
                "metric": metric,
                "count": pooled.requests,
                "values": len(pooled),
                "p50": p50,
                "p90": p90,
                "p99": p99,
            }
