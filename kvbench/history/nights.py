"""The newest run against the nights before it: may what changed since then stay?

A comparison sees what a candidate does to its baseline of the same night. What slows both arms alike, such as a new
engine, it cannot see; the nights before can. Candidates' own values are compared, on the log scale.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import t as student

from kvbench.history.trend import Comparison, Point, Series, comparisons
from kvbench.judge.verdict import Outcome

__all__ = ["FEWEST_NIGHTS", "METHOD", "Night", "NightRule", "judge_night", "prediction_interval"]

FEWEST_NIGHTS = 5
"""With fewer the scatter of the nights is anybody's guess."""
METHOD = "prediction interval of one further night, log scale (Hahn and Meeker, Statistical Intervals, 1991, ch. 4)"


@dataclass(frozen=True)
class NightRule:
    """One guardrail with a `max_ratio` or `min_ratio`, which here bounds tonight / the nights before."""

    candidate: str
    rule: str
    what: str
    status: str
    """pass: the interval lies within the limit; fail: beyond it; unknown: neither, or too few nights."""
    tonight: float | None
    unit: str | None
    nights: float | None
    """Geometric mean of the nights before."""
    count: int
    ratio: float | None
    interval: tuple[float, float] | None
    limit: float
    baseline_ratio: float | None
    """The same of the baseline arm: what moved both is the engine or the host, not the tier."""
    text: str


@dataclass(frozen=True)
class Night:
    """`verdict` is the worse of the run's own and the one over the nights."""

    run: str
    own: Outcome
    verdict: Outcome
    asked: int
    confidence: float
    rules: tuple[NightRule, ...]
    text: str


def judge_night(rows: pd.DataFrame, nights: int) -> Night | None:
    """The newest run in `rows` (columns of `HISTORY`) against the `nights` before it; None when there is no run.

    Only nights with the same workload count, and no INVALID ones. A breach needs its level divided by the number of
    rules judged; within the limit is safe at the level of each alone, as in a comparison.
    """
    if rows.empty:
        return None
    newest = rows.sort_values(["created", "run"], kind="stable").iloc[-1]
    tonight = rows[rows["run_digest"] == newest["run_digest"]]
    workload = str(tonight["workload_digest"].fillna("").iloc[0])
    same = rows[rows["workload_digest"].fillna("") == workload]
    judged = [
        (each, series)
        for each in comparisons(same, None)
        if each.candidate in set(tonight["candidate"]) and each.baseline == newest["baseline"]
        for series in each.series
        if _is_judged(series, str(newest["run"]))
    ]
    confidence = float(newest["confidence"])
    levels = ((1 - confidence) / 2 / max(len(judged), 1), (1 - confidence) / 2)
    rules = tuple(_judge(each, series, nights, levels) for each, series in judged)
    own = max((Outcome(verdict) for verdict in tonight["verdict"]), key=lambda outcome: outcome.severity)
    outcome, text = _outcome(rules)
    worse = max(own, outcome, key=lambda each: each.severity)
    return Night(str(newest["run"]), own, worse, nights, confidence, rules, text)


def _is_judged(series: Series, run: str) -> bool:
    newest = series.points[-1]
    return series.kind == "guardrail" and series.ratio and newest.limit is not None and newest.run.name == run


def _outcome(rules: Sequence[NightRule]) -> tuple[Outcome, str]:
    failed = [rule for rule in rules if rule.status == "fail"]
    if failed:
        return Outcome.NO_GO, failed[0].text
    if rules and all(rule.status == "pass" for rule in rules):
        return Outcome.GO, f"all {len(rules)} rules keep their limits against the nights before"
    if not rules:
        return Outcome.INCONCLUSIVE, "no guardrail has a max_ratio or min_ratio that nights could be held to"
    return Outcome.INCONCLUSIVE, next(rule.text for rule in rules if rule.status == "unknown")


def _judge(each: Comparison, series: Series, nights: int, levels: tuple[float, float]) -> NightRule:
    newest = series.points[-1]
    before = [point for point in series.points[:-1] if point.run.verdict is not Outcome.INVALID]
    values = _positive([point.candidate_value for point in before])[-nights:]
    tonight, limit = newest.candidate_value, newest.limit
    assert limit is not None  # noqa: S101 - `_is_judged` chose it
    told = (each.candidate, series.rule, series.what)
    if tonight is None or tonight <= 0 or len(values) < FEWEST_NIGHTS:
        what = "tonight's value is missing" if tonight is None else f"{len(values)} nights, {FEWEST_NIGHTS} needed"
        text = f"{series.rule} of {each.candidate}: {what}"
        return NightRule(
            *(*told, "unknown", tonight, series.unit, None, len(values), None, None, limit, None, text)
        )
    middle = float(np.exp(np.log(values).mean()))
    breach, safe = (prediction_interval(tonight, values, level) for level in levels)
    status = _status(breach, safe, limit, upper=series.upper)
    baseline = _baseline_ratio(newest, before[-nights:])
    text = _text(series, each.candidate, tonight / middle, safe, status, len(values), baseline)
    return NightRule(
        *(*told, status, tonight, series.unit, middle, len(values), tonight / middle, safe, limit, baseline, text)
    )


def _positive(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None and value > 0]


def prediction_interval(tonight: float, values: Sequence[float], level: float) -> tuple[float, float]:
    """Of tonight's ratio to the level of the nights; `level` is one-sided."""
    logs = np.log(values)
    spread = float(student.ppf(1 - level, len(logs) - 1) * logs.std(ddof=1) * math.sqrt(1 + 1 / len(logs)))
    ratio = math.log(tonight) - float(logs.mean())
    return math.exp(ratio - spread), math.exp(ratio + spread)


def _status(breach: tuple[float, float], safe: tuple[float, float], limit: float, *, upper: bool) -> str:
    if upper:
        return "fail" if breach[0] > limit else "pass" if safe[1] <= limit else "unknown"
    return "fail" if breach[1] < limit else "pass" if safe[0] >= limit else "unknown"


def _baseline_ratio(newest: Point, before: Sequence[Point]) -> float | None:
    values = _positive([point.baseline_value for point in before])
    tonight = newest.baseline_value
    return None if not values or not tonight or tonight < 0 else tonight / float(np.exp(np.log(values).mean()))


def _text(
    series: Series,
    candidate: str,
    ratio: float,
    interval: tuple[float, float],
    status: str,
    count: int,
    baseline: float | None,
) -> str:
    limit, said = series.points[-1].limit, {"pass": "within", "fail": "beyond", "unknown": "cannot be told from"}
    text = (
        f"{series.rule} of {candidate}: ×{ratio:.3g} [{interval[0]:.3g}, {interval[1]:.3g}] of the {count} nights "
        f"before, {said[status]} the limit ×{limit:.3g}"
    )
    if status != "fail" or baseline is None:
        return text
    return f"{text}; the baseline moved by ×{baseline:.3g}"
