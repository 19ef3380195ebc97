"""Error rates: failed requests over offered ones, pooled over rounds, with exact binomial bounds.

Failures of one session are not independent: a turn that fails cancels those after it. The rate counts them all; the
bounds are those of so many independent requests as tell as much. The upper one heeds what a failure that was not
seen would have taken along, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from kvbench.judge import wording
from kvbench.judge.case import JudgedRound, Question, Ruling
from kvbench.judge.evaluation import DECIDED, Limit, limits, status_of, unknown, worst
from kvbench.judge.looks import Look, nominal_level
from kvbench.judge.needed import units_for_rate, units_until
from kvbench.judge.paired import Levels
from kvbench.judge.rates import ratio_bounds, share_lower, share_upper
from kvbench.judge.together import conversations, design_effect, mean_place
from kvbench.judge.verdict import RuleResult, Status

__all__ = ["evaluate_errors", "requests_for_error_rate"]

Interval = tuple[float, float]


@dataclass(frozen=True)
class _Counted:
    """Failed requests of one arm, and how many were offered: counts, or what so many rounds would hold."""

    failed: float
    offered: float
    seen: float
    """How many of the failures that were seen are worth one independent failure (`design_effect`)."""
    taken: float
    """How many requests a failing turn takes along, seen or not (`mean_place`)."""

    @property
    def rate(self) -> float:
        return self.failed / self.offered

    @property
    def at_most(self) -> float:
        """`seen` for an upper bound: few failures, or none, show too little of how many come together."""
        return max(self.seen, self.taken)

    def worth(self, together: float) -> tuple[float, float]:
        """The same share of so many requests as tell as much about it, independent of each other."""
        return self.failed / together, self.offered / together

    def times(self, factor: float) -> _Counted:
        """As many rounds more or less, at the same rate."""
        return replace(self, failed=self.failed * factor, offered=self.offered * factor)


@dataclass(frozen=True)
class _Failures:
    """Those of each arm."""

    baseline: _Counted
    candidate: _Counted

    def bounds(self, limit: Limit, lower: float, upper: float) -> Interval:
        """Exact bounds of the candidate's rate, or of its ratio to the baseline's.

        In a ratio, what comes together in either arm counts for both: an arm without a failure shows nothing of how
        its failures come, and were its requests all worth one each, the few of the other would outweigh them.
        """
        baseline, candidate = self.baseline, self.candidate
        if not limit.ratio:
            low = share_lower(*candidate.worth(candidate.seen), lower)
            return low, share_upper(*candidate.worth(candidate.at_most), upper)
        low, _ = self._ratio_bounds(max(baseline.seen, candidate.seen), lower, upper)
        _, high = self._ratio_bounds(max(baseline.at_most, candidate.at_most), lower, upper)
        return low, high

    def _ratio_bounds(self, together: float, lower: float, upper: float) -> Interval:
        return ratio_bounds(self.candidate.worth(together), self.baseline.worth(together), lower, upper)

    def effect(self, limit: Limit) -> float | None:
        """The rate or the ratio; None where the baseline had no failure to compare with."""
        if not limit.ratio:
            return self.candidate.rate
        return self.candidate.rate / self.baseline.rate if self.baseline.failed else None

    def times(self, factor: float) -> _Failures:
        return _Failures(self.baseline.times(factor), self.candidate.times(factor))


def requests_for_error_rate(limit: float, alpha: float, taken: float = 1.0) -> int:
    """Requests without a single failure that prove a rate of at most `limit` (0 < limit < 1).

    `taken`: how many of them a failing turn would take along (`mean_place`).
    """
    return math.ceil(taken * math.log(alpha) / math.log1p(-limit) - 1e-9)


def evaluate_errors(question: Question) -> Ruling:
    """Judge a rule on `error_rate`."""
    rule, pairs = question.rule, question.case.pairs
    bounds = limits(rule)
    if not bounds:
        return unknown(rule, question.kind, "has no limit to be held against")
    failures = _Failures(
        _count([pair.baseline for pair in pairs], rule.class_),
        _count([pair.candidate for pair in pairs], rule.class_),
    )
    if not (failures.baseline.offered and failures.candidate.offered):
        return unknown(rule, question.kind, "was not measured: no request in a complete pair of rounds")
    return worst([_against(question, limit, failures) for limit in bounds])


def _count(rounds: list[JudgedRound], class_: str) -> _Counted:
    members = [(round_.latencies, round_.latencies.of_class(class_)) for round_ in rounds]
    failed = np.concatenate([np.empty(0, np.bool_), *(latencies.failed[chosen] for latencies, chosen in members)])
    groups = conversations([latencies.column("session")[chosen] for latencies, chosen in members])
    return _Counted(int(failed.sum()), len(failed), design_effect(failed, groups), mean_place(groups))


def _against(question: Question, limit: Limit, failures: _Failures) -> Ruling:
    case, levels = question.case, limit.levels(question.stakes)
    lower, upper = nominal_level(levels.lower, case.units.look), nominal_level(levels.upper, case.units.look)
    decision = None if lower is None or upper is None else failures.bounds(limit, lower, upper)
    status = status_of(decision, limit.amount, upper=limit.upper)
    result = RuleResult(
        rule=question.rule.id,
        kind=question.kind,
        status=status,
        metric=question.rule.metric,
        class_=question.rule.class_,
        baseline=failures.baseline.rate,
        candidate=failures.candidate.rate,
        unit="fraction",
        effect=failures.effect(limit),
        ci=_finite(failures.bounds(limit, case.alpha, case.alpha)),
        decision_ci=_finite(decision),
        limit=limit.amount,
        text=_text(question, limit, failures, decision, status),
    )
    return Ruling(result, _needed(question, limit, failures) if status == "unknown" else None)


def _finite(interval: Interval | None) -> Interval | None:
    return interval if interval is not None and all(map(math.isfinite, interval)) else None


def _needed(question: Question, limit: Limit, failures: _Failures) -> tuple[int, int] | None:
    """Units after which as many failures a unit would settle it."""
    look, stakes = question.case.units.look, question.stakes
    if limit.ratio or not limit.upper:
        return _needed_by_bounds(limit, failures, look, limit.levels(stakes))
    candidate = failures.candidate
    kept = candidate.rate <= limit.amount
    level = nominal_level(stakes.kept if kept else stakes.broken, look.at_end)
    if not level:
        return None
    failed, offered = candidate.worth(candidate.at_most if kept else candidate.seen)
    return units_for_rate(failed, offered, look.done, limit.amount, alpha=level)


def _needed_by_bounds(limit: Limit, failures: _Failures, look: Look, levels: Levels) -> tuple[int, int] | None:
    lower, upper = nominal_level(levels.lower, look.at_end), nominal_level(levels.upper, look.at_end)
    if not (lower and upper):
        return None

    def settled(units: int) -> bool:
        bounds = failures.times(units / look.done).bounds(limit, lower, upper)
        return status_of(bounds, limit.amount, upper=limit.upper) != "unknown"

    return units_until(settled)


def _text(question: Question, limit: Limit, failures: _Failures, decision: Interval | None, status: Status) -> str:
    baseline, candidate = failures.baseline, failures.candidate
    words = f"{wording.what(question.rule.metric, None, question.rule.class_)}: {_so_many(candidate)} failed"
    show = wording.share
    if limit.ratio:
        words += f" instead of {_so_many(baseline)}, ratio"
        show = wording.ratio
    if decision is not None:
        words += f" [{show(decision[0])}, {show(decision[1]) if math.isfinite(decision[1]) else 'unbounded'}]"
    return f"{words}; {limit.words} {show(limit.amount)} asked for: {DECIDED[question.kind][status]}"


def _so_many(counted: _Counted) -> str:
    words = f"{counted.failed:,} of {counted.offered:,}"
    if counted.seen > 1:
        worth = f"{counted.failed / counted.seen:.3g} independent failures"
        return f"{words} (with the rest of their sessions; worth {worth})"
    if counted.taken > 1:
        worth = wording.count(round(counted.offered / counted.taken), "independent request")
        return f"{words} (a failure takes the rest of its session along; worth {worth})"
    return words
