"""One rule against the evidence: a figure for each round, an interval over the rounds, a status.

Kept is proven when the interval that decides lies within the limit, broken when it lies beyond; between is unknown.
The interval of a latency budget (`max`) is that of the typical round, the geometric mean of the rounds' quantiles,
in which good rounds hide a terrible one: the sentence names each round whose own figure exceeds the budget.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvbench.judge import wording
from kvbench.judge.case import Case, JudgedPair, Question, Ruling, Stakes
from kvbench.judge.looks import nominal_level
from kvbench.judge.needed import units_needed
from kvbench.judge.paired import Estimate, Levels, estimate, sign_flip
from kvbench.judge.readings import Missing, Reading, counted, read
from kvbench.judge.verdict import Kind, RuleResult, Status
from kvbench.judge.within_round import within_round
from kvbench.spec.rules import LATENCIES, Rule, metric_unit

__all__ = [
    "DECIDED",
    "Limit",
    "each_bound",
    "evaluate",
    "from_logs",
    "limits",
    "status_of",
    "unknown",
    "unknown_rule",
    "worst",
]

SEVERITY: dict[Status, int] = {"pass": 0, "unknown": 1, "fail": 2}
DECIDED: dict[Kind, dict[Status, str]] = {
    "guardrail": {"pass": "safe", "fail": "breach", "unknown": "neither safe nor a breach yet"},
    "benefit": {"pass": "proven", "fail": "refuted", "unknown": "neither proven nor refuted yet"},
    "evidence": {"pass": "shown", "fail": "refuted", "unknown": "neither shown nor refuted yet"},
}
LARGEST_LOG = 700.0
"""Beyond this a float, and so JSON, cannot hold the ratio."""

Interval = tuple[float, float]
Pair = tuple[Reading, Reading]
"""Baseline and candidate."""


@dataclass(frozen=True)
class Limit:
    """One bound of a rule; `upper`: the figure must not exceed it."""

    amount: float
    upper: bool
    ratio: bool

    def levels(self, stakes: Stakes) -> Levels:
        """The end that must stay within the limit gets the level for kept, the other one that for broken."""
        return Levels(stakes.broken, stakes.kept) if self.upper else Levels(stakes.kept, stakes.broken)

    def holds(self, amount: float, bound: float) -> bool:
        """Whether a figure lies within `bound`."""
        return amount <= bound if self.upper else amount >= bound

    @property
    def words(self) -> str:
        return "at most" if self.upper else "at least"


def limits(rule: Rule) -> list[Limit]:
    """The bounds that a rule sets, ratios first."""
    written = (
        (rule.max_ratio, True, True),
        (rule.min_ratio, False, True),
        (rule.max, True, False),
        (rule.min, False, False),
    )
    return [Limit(amount, upper, ratio) for amount, upper, ratio in written if amount is not None]


def each_bound(rule: Rule, level: float) -> float:
    """What falls on each bound of a rule that any one of them refutes, so that all of them together err at `level`
    at most (Bonferroni's inequality; Dunn, 1961)."""
    return level / max(len(limits(rule)), 1)


def worst(rulings: Sequence[Ruling]) -> Ruling:
    """The worst of several bounds of one rule: broken before unknown before kept."""
    return max(rulings, key=lambda ruling: SEVERITY[ruling.result.status])


def status_of(interval: Interval | None, limit: float, *, upper: bool) -> Status:
    """Where an interval lies with respect to a limit."""
    if interval is None:
        return "unknown"
    low, high = interval
    if high <= limit if upper else low >= limit:
        return "pass"
    return "fail" if (low > limit if upper else high < limit) else "unknown"


def from_logs(interval: Interval | None) -> Interval | None:
    """Ratios from their logarithms."""
    if interval is None:
        return None
    low, high = (math.exp(min(max(end, -LARGEST_LOG), LARGEST_LOG)) for end in interval)
    return low, high


def unknown_rule(rule: Rule, kind: Kind, why: str) -> RuleResult:
    """A rule about which nothing can be said."""
    return RuleResult(
        rule=rule.id,
        kind=kind,
        status="unknown",
        metric=rule.metric,
        quantile=rule.quantile,
        class_=rule.class_,
        unit=metric_unit(rule.metric),
        limit=next((limit.amount for limit in limits(rule)), None),
        text=f"{wording.what(rule.metric, rule.quantile, rule.class_, rule.source)} {why}",
    )


def unknown(rule: Rule, kind: Kind, why: str, *, blocks: bool = True) -> Ruling:
    """`unknown_rule` as a ruling; `blocks`: it stands against GO."""
    return Ruling(unknown_rule(rule, kind, why), blocks=blocks)


def evaluate(question: Question) -> Ruling:
    """Judge a rule whose metric is one figure a round."""
    bounds = limits(question.rule)
    if not bounds:
        return unknown(question.rule, question.kind, "has no limit to be held against")
    readings = _readings(question.rule, question.case)
    if isinstance(readings, Missing):
        return unknown(question.rule, question.kind, readings.why)
    return worst([_bounded(question, limit, readings) for limit in bounds])


def _readings(rule: Rule, case: Case) -> list[Pair] | Missing:
    """Both arms' figures for every pair; for a budget the baseline's may be missing and is then NaN."""
    compared = any(limit.ratio for limit in limits(rule))
    pairs: list[Pair] = []
    for pair in case.pairs:
        both = _pair(rule, pair, case.newest_tier, compared=compared)
        if isinstance(both, Missing):
            return both
        pairs.append(both)
    return pairs or Missing("was not measured: there is no complete pair of rounds")


def _pair(rule: Rule, pair: JudgedPair, newest_tier: str | None, *, compared: bool) -> Pair | Missing:
    baseline, candidate = read(rule, pair.baseline, newest_tier), read(rule, pair.candidate, newest_tier)
    if isinstance(candidate, Missing):
        return candidate
    if not math.isfinite(candidate.value):
        return Missing(f"is not a number in round {pair.candidate.index}")
    if isinstance(baseline, Missing):
        return baseline if compared else (Reading(math.nan), candidate)
    if not compared:
        return baseline, candidate
    if not math.isfinite(baseline.value):
        return Missing(f"is not a number in round {pair.baseline.index} of {pair.baseline.recorded.arm}")
    return _without_zero(rule, baseline, candidate, pair.candidate.index)


def _without_zero(rule: Rule, baseline: Reading, candidate: Reading, index: int) -> Pair | Missing:
    """A ratio needs both figures above zero. A count of nothing in one arm is moved by half a count in both."""
    if baseline.value > 0 and candidate.value > 0:
        return baseline, candidate
    by = [side.step / 2 if counted(rule.metric) else 0.0 for side in (baseline, candidate)]
    moved = [Reading(side.value + more, side.step) for side, more in zip((baseline, candidate), by, strict=True)]
    if max(baseline.value, candidate.value) <= 0 or not min(side.value for side in moved) > 0:
        return Missing(f"has no ratio: it is not above zero in round {index}")
    return moved[0], moved[1]


def _bounded(question: Question, limit: Limit, readings: list[Pair]) -> Ruling:
    """Kept when it is kept at the worst that the figures can be, broken when it is broken at the best."""
    if all(side.most is None for pair in readings for side in (pair if limit.ratio else pair[1:])):
        return _against(question, limit, readings)
    larger = [(baseline, candidate.at_most) for baseline, candidate in readings]
    smaller = [(baseline.at_most, candidate) for baseline, candidate in readings]
    worst_case, best_case = (larger, smaller) if limit.upper else (smaller, larger)
    at_worst, at_best = (_against(question, limit, figures) for figures in (worst_case, best_case))
    if at_worst.result.status == "pass":
        return _also(at_worst, "counting whoever left before a first token against the candidate")
    if at_best.result.status == "fail":
        return _also(at_best, "counting whoever left before a first token in the candidate's favour")
    left_open = unknown(question.rule, question.kind, _left_open(question, limit, readings))
    return replace(left_open, needed_units=at_worst.needed_units)


def _also(ruling: Ruling, words: str) -> Ruling:
    return replace(ruling, result=ruling.result.model_copy(update={"text": f"{ruling.result.text}, {words}"}))


def _left_open(question: Question, limit: Limit, readings: list[Pair]) -> str:
    """Where users who left before a first token leave a figure open, and what to do about it."""
    unit = metric_unit(question.rule.metric)
    sides = [
        (pair.candidate.recorded, candidate)
        for pair, (_, candidate) in zip(question.case.pairs, readings, strict=True)
    ]
    if limit.ratio:
        sides += [
            (pair.baseline.recorded, baseline)
            for pair, (baseline, _) in zip(question.case.pairs, readings, strict=True)
        ]
    recorded, figure = next((recorded, figure) for recorded, figure in sides if figure.most is not None)
    return (
        f"lies between {wording.value(figure.value, unit)} and {wording.value(figure.at_most.value, unit)} in "
        f"round {recorded.index} of {recorded.arm}, because users left before their first token; judge a lower "
        "quantile, or let them wait longer (`abort: after`)"
    )


def _against(question: Question, limit: Limit, readings: list[Pair]) -> Ruling:
    rule, case = question.rule, question.case
    logs = limit.ratio or rule.metric in LATENCIES
    if logs and not limit.ratio and any(candidate.value <= 0 for _, candidate in readings):
        return unknown(rule, question.kind, "is zero in a round: take a higher quantile")
    each, resolution = _values(readings, ratio=limit.ratio, logs=logs)
    values = case.units.average(each)
    found = estimate(
        values,
        case.units.look,
        confidence=case.confidence,
        levels=limit.levels(question.stakes),
        resolution=resolution,
    )
    bound = limit.amount
    if logs:
        bound = math.log(limit.amount) if limit.amount > 0 else -math.inf
    status = status_of(found.decision, bound, upper=limit.upper)
    if _at_timeout(question, limit, readings):
        status = "fail"
    beyond = _rounds_beyond(question, limit, readings) if limit.holds(found.mean, bound) else []
    cut_off = bool(beyond) and limit.amount >= case.workload.request_timeout
    if cut_off and status == "pass":
        status = "unknown"
    result = _result(question, limit, readings, found, status)
    result = result.model_copy(update={"text": _text(question, limit, result, found, beyond)})
    if limit.ratio:
        result = result.model_copy(update={"sign_flip_p": sign_flip(values)})
    more_would_tell = status == "unknown" and not cut_off
    return Ruling(result, _needed(question, limit, found, bound) if more_would_tell else None)


def _is_latency_budget(rule: Rule, limit: Limit) -> bool:
    return rule.metric in LATENCIES and limit.upper and not limit.ratio


def _rounds_beyond(question: Question, limit: Limit, readings: list[Pair]) -> list[str]:
    """Rounds whose own figure exceeds a latency budget, or may: at the time-out it tells of no budget beyond."""
    if not _is_latency_budget(question.rule, limit):
        return []
    timeout_s = question.case.workload.request_timeout
    return [
        f"round {pair.candidate.index} alone had {wording.value(candidate.value, 's')}"
        + (" or more, the request time-out" if candidate.value >= timeout_s else "")
        for pair, (_, candidate) in zip(question.case.pairs, readings, strict=True)
        if candidate.value > limit.amount or candidate.value >= timeout_s
    ]


def _values(readings: list[Pair], *, ratio: bool, logs: bool) -> tuple[list[float], float]:
    """One value a pair, and the least spread that its counts allow."""
    if ratio:
        values = [math.log(candidate.value / baseline.value) for baseline, candidate in readings]
        return values, max(side.step / side.value for pair in readings for side in pair)
    if logs:
        return [math.log(candidate.value) for _, candidate in readings], 0.0
    return [candidate.value for _, candidate in readings], max(candidate.step for _, candidate in readings)


def _at_timeout(question: Question, limit: Limit, readings: list[Pair]) -> bool:
    """Whether a latency budget is exceeded in every round by requests that never came back: no spread, no doubt."""
    timeout_s = question.case.workload.request_timeout
    return (
        _is_latency_budget(question.rule, limit)
        and limit.amount < timeout_s
        and question.case.units.look.decides
        and all(candidate.value >= timeout_s for _, candidate in readings)
    )


def _needed(question: Question, limit: Limit, found: Estimate, bound: float) -> tuple[int, int] | None:
    """At the level that the looks before the last one leave: that is what the last one decides at."""
    stakes, case = question.stakes, question.case
    at_stake = stakes.kept if limit.holds(found.mean, bound) else stakes.broken
    level = nominal_level(at_stake, case.units.look.at_end)
    if not level:
        return None
    return units_needed(found.mean - bound, found.spread, found.units, alpha=level, confidence=case.confidence)


def _result(question: Question, limit: Limit, readings: list[Pair], found: Estimate, status: Status) -> RuleResult:
    rule = question.rule
    logs = limit.ratio or rule.metric in LATENCIES
    effect = math.exp(found.mean) if logs else found.mean
    return RuleResult(
        rule=rule.id,
        kind=question.kind,
        status=status,
        metric=rule.metric,
        quantile=rule.quantile,
        class_=rule.class_,
        baseline=_typical([baseline.value for baseline, _ in readings], logs=logs),
        candidate=_typical([candidate.value for _, candidate in readings], logs=logs),
        unit=metric_unit(rule.metric),
        effect=effect,
        ci=from_logs(found.ci) if logs else found.ci,
        decision_ci=from_logs(found.decision) if logs else found.decision,
        limit=limit.amount,
        windows=_windows(question, readings, ratio=limit.ratio),
        text="",
    )


def _typical(values: Sequence[float], *, logs: bool) -> float | None:
    """Geometric mean where ratios are judged, so that candidate / baseline is the effect; else the plain mean."""
    if not all(math.isfinite(value) for value in values):
        return None
    if logs and all(value > 0 for value in values):
        return math.exp(sum(map(math.log, values)) / len(values))
    return sum(values) / len(values)


def _windows(question: Question, readings: list[Pair], *, ratio: bool) -> list[dict[str, float | str | None]]:
    rows: list[dict[str, float | str | None]] = []
    for pair, (baseline, candidate) in zip(question.case.pairs, readings, strict=True):
        row: dict[str, float | str | None] = {
            "round": float(pair.candidate.index),
            "baseline": baseline.value if math.isfinite(baseline.value) else None,
            "candidate": candidate.value,
        }
        if ratio:
            row["ratio"] = candidate.value / baseline.value
        row.update(_ends_within(question.rule, pair, question.case.confidence))
        rows.append(row)
    return rows


def _ends_within(rule: Rule, pair: JudgedPair, confidence: float) -> dict[str, float]:
    """What each round by itself knows of its quantile; a description."""
    ends: dict[str, float] = {}
    if rule.metric in LATENCIES and rule.quantile is not None:
        for name, side in (("baseline", pair.baseline), ("candidate", pair.candidate)):
            found = within_round(side.latencies, rule.metric, rule.class_, rule.quantile, confidence=confidence)
            if found is not None:
                ends[f"{name}_low_s"], ends[f"{name}_high_s"] = found
    return ends


def _text(question: Question, limit: Limit, result: RuleResult, found: Estimate, beyond: Sequence[str]) -> str:
    rule, unit = question.rule, result.unit

    def show(amount: float) -> str:
        return wording.ratio(amount) if limit.ratio else wording.value(amount, unit)

    budget = _is_latency_budget(rule, limit)
    words = wording.what(rule.metric, rule.quantile, rule.class_, rule.source)
    words += f" {wording.TYPICAL_ROUND}: " if budget else ": "
    if limit.ratio:
        words += f"{_figure(result.candidate, unit)} instead of {_figure(result.baseline, unit)}, ratio "
    words += show(result.effect if result.effect is not None else math.nan)
    if result.decision_ci is not None:
        words += f" [{show(result.decision_ci[0])}, {show(result.decision_ci[1])}]"
    words += f"; {limit.words} {show(limit.amount)} asked for"
    if result.status == "unknown" and beyond and limit.amount >= question.case.workload.request_timeout:
        return f"{words}: not {DECIDED[question.kind]['pass']}, since {wording.listed(beyond)}"
    if result.status == "unknown" and found.degenerate:
        return f"{words}; all rounds agree to the last digit, which no measurement does"
    if result.status == "unknown" and result.decision_ci is None:
        return f"{words}; {wording.count(found.units, 'independent round')} cannot decide it yet"
    words += f": {DECIDED[question.kind][result.status]}"
    if not budget or result.status != "pass":
        return words
    return f"{words}, though {wording.listed(beyond)}" if beyond else f"{words}, in each single round as well"


def _figure(amount: float | None, unit: str | None) -> str:
    return "unknown" if amount is None else wording.value(amount, unit)
