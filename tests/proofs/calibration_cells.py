"""Comparisons drawn from a bank of paired rounds, an effect put into each, and what the judge makes of them.

Exercised are the parts of `kvbench.judge` that decide on a rule: quantiles of a round, levels, looks, intervals,
statuses (`Sample`, `Limit.levels`, `estimate`, `status_of`). The order of the stages is written down here again,
because whole tables for a thousand comparisons would take hours; `calibration_check` shows that both agree.
Not exercised: validity, stability, error rates, parity, evidence. Effects are logarithms of ratios.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvbench.judge.case import Stakes
from kvbench.judge.evaluation import limits, status_of
from kvbench.judge.latency import Sample
from kvbench.judge.looks import Look
from kvbench.judge.paired import Estimate, Levels, estimate
from kvbench.judge.verdict import Outcome, Status
from kvbench.spec.rules import Rule, Rules
from tests.proofs.calibration_bank import TIMEOUT_S, Bank, PlayedRound

__all__ = [
    "BENEFIT",
    "EFFECTS",
    "FIRST",
    "HALF_AGAIN",
    "LAST",
    "Compared",
    "Effect",
    "IntervalOf",
    "Judge",
    "Share",
    "Values",
    "covered",
    "draw",
    "log_ratios",
    "resolved",
    "rules",
    "share",
    "values_of",
]

Floats = npt.NDArray[np.float64]
IntervalOf = Callable[[Estimate], tuple[float, float] | None]

FIRST, LAST = 3, 12
"""Looks of the shipped rules."""
GROUPS = 10
"""Parts of the bank that share no round; a comparison is drawn within one."""
BENEFIT = 0.8
"""Of the shipped rules."""
HALF_AGAIN = 1.5
"""Of the threshold, on log scale: a benefit that must be found."""
PROVEN_IN = 0.9
"""Share of comparisons of an unchanged arm that must prove it safe for a margin to count as resolved."""


def rules(margin: float) -> Rules:
    """Two guardrails with that `max_ratio`, one benefit, and the rounds of the shipped rules."""
    return Rules.model_validate(
        {
            "confidence": 0.95,
            "guardrails": [
                {"id": "short-ttft-p99", "metric": "ttft", "class": "short", "quantile": 0.99, "max_ratio": margin},
                {"id": "itl-p99", "metric": "itl", "quantile": 0.99, "max_ratio": margin},
            ],
            "benefits": [
                {"id": "long-ttft-p50", "metric": "ttft", "class": "long", "quantile": 0.5, "max_ratio": BENEFIT}
            ],
            "rounds": {"min": FIRST, "max": LAST},
        }
    )


@dataclass(frozen=True)
class Effect:
    """What is done to the candidate, as multiples of the log of each rule's limit, in the order of the rules."""

    name: str
    short_ttft: float
    itl: float
    long_ttft: float

    def logs(self, judge: Judge) -> Floats:
        """The true log ratio of each rule's figure."""
        return np.array([self.short_ttft, self.itl, self.long_ttft]) * judge.bounds


EFFECTS = (
    Effect("unchanged", 0, 0, 0),
    Effect("one guardrail at its margin", 1, 0, 1.5),
    Effect("all guardrails at their margins", 1, 1, 1.5),
    Effect("one guardrail at 1.5 x margin", 1.5, 0, 1.5),
    Effect("one guardrail at 2 x margin", 2, 0, 1.5),
    Effect("benefit at its threshold", 0, 0, 1),
    Effect("benefit at 1.5 x threshold", 0, 0, 1.5),
)
"""On log scale. One guardrail beyond its margin is harder to find than all of them."""


def log_ratios(bank: Bank, arm: str = "candidate") -> Floats:
    """Log ratios of the rules' figures, one row a round of the bank: short TTFT p99, ITL p99, long TTFT p50."""
    both = zip(bank.rounds["baseline"], bank.rounds[arm], strict=True)
    return np.log([[c / b for b, c in zip(_figures(base), _figures(cand), strict=True)] for base, cand in both])


def _figures(played: PlayedRound) -> tuple[float, float, float]:
    def quantile(values: npt.NDArray[np.float32], wanted: float) -> float:
        return Sample(values.astype(np.float64), 0, len(values), TIMEOUT_S).quantiles(wanted)[0]

    return quantile(played.short_ttft, 0.99), quantile(played.gaps, 0.99), quantile(played.long_ttft, 0.5)


@dataclass(frozen=True)
class Values:
    """Comparisons before an effect is put in. n comparisons, LAST rounds each."""

    groups: npt.NDArray[np.int64]
    """The part of the bank that each was drawn from."""
    places: npt.NDArray[np.int64]
    """n x LAST places in the bank, distinct within a comparison."""
    swapped: npt.NDArray[np.bool_]
    """n x LAST: the two launches have changed places, which an arm with itself allows."""
    logs: Floats
    """n x LAST x rules."""


def draw(rounds: int, comparisons: int, seed: Sequence[int]) -> tuple[npt.NDArray[np.int64], ...]:
    """Group, places and swaps of each comparison. Every group has rounds for two; there are at most GROUPS."""
    count = min(GROUPS, rounds // (2 * LAST))
    if count < 1:
        raise ValueError(f"{rounds} rounds are too few: {2 * LAST} are the least")
    rng = np.random.default_rng(list(seed))
    parts = np.array_split(rng.permutation(rounds), count)
    groups = np.arange(comparisons) % count
    places = np.array([rng.permutation(parts[group])[:LAST] for group in groups])
    swapped = rng.random(places.shape) < 0.5
    return groups, places, swapped


def values_of(logs: Floats, comparisons: int, seed: Sequence[int], *, swap: bool = True) -> Values:
    """Draw comparisons from the log ratios of a bank. `swap`: the arms are the same, either may be candidate."""
    groups, places, swapped = draw(len(logs), comparisons, seed)
    swapped = swapped.astype(np.bool_) & swap
    return Values(groups, places, swapped, np.where(swapped[:, :, None], -1.0, 1.0) * logs[places])


@dataclass(frozen=True)
class Compared:
    """What one comparison ended in."""

    outcome: Outcome
    breach: bool
    """A guardrail proven broken."""
    rounds: int
    """At the stop."""
    estimates: tuple[Estimate, ...]
    """At the stop, in the order of the rules."""


class Judge:
    """The verdict on log ratios, look after look, for one set of rules that are all ratios of latencies."""

    def __init__(self, the_rules: Rules) -> None:
        self.rules = the_rules
        alpha = (1 - the_rules.confidence) / 2
        guardrails, benefits = the_rules.guardrails, the_rules.benefits
        self._guardrails = len(guardrails)
        stakes = [Stakes(alpha, alpha / len(guardrails))] * len(guardrails)
        stakes += [Stakes(alpha / len(benefits), alpha)] * len(benefits)
        asked: list[Rule] = [*guardrails, *benefits]
        self._levels: list[Levels] = [
            limits(rule)[0].levels(stake) for rule, stake in zip(asked, stakes, strict=True)
        ]
        self.bounds: Floats = np.log([limits(rule)[0].amount for rule in asked])

    def run(self, logs: Floats) -> Compared:
        """Stop at the first look that decides. `logs`: LAST x rules, the effect included."""
        first, last = self.rules.rounds.min, self.rules.rounds.max
        for done in range(first, last + 1):
            found = self.estimates(logs[:done], Look(done, first, last))
            statuses = [
                status_of(one.decision, bound, upper=True) for one, bound in zip(found, self.bounds, strict=True)
            ]
            outcome = self._outcome(statuses)
            if outcome is not Outcome.INCONCLUSIVE:
                break
        return Compared(outcome, "fail" in statuses[: self._guardrails], done, tuple(found))

    def estimates(self, logs: Floats, look: Look) -> list[Estimate]:
        """One a rule."""
        confidence = self.rules.confidence
        return [
            estimate(column.tolist(), look, confidence=confidence, levels=levels)
            for column, levels in zip(logs.T, self._levels, strict=True)
        ]

    def _outcome(self, statuses: Sequence[Status]) -> Outcome:
        """The stages of `kvbench.judge.judge` where no tier is added and nothing else happened."""
        guardrails, benefits = statuses[: self._guardrails], statuses[self._guardrails :]
        if "fail" in guardrails or all(status == "fail" for status in benefits):
            return Outcome.NO_GO
        safe = all(status == "pass" for status in guardrails)
        return Outcome.GO if safe and "pass" in benefits else Outcome.INCONCLUSIVE


@dataclass(frozen=True)
class Share:
    """A share of comparisons and its standard error."""

    value: float
    error: float

    def __str__(self) -> str:
        return f"{100 * self.value:.2f} ± {100 * self.error:.2f}"


def share(hits: Sequence[float] | Floats, groups: npt.NDArray[np.int64]) -> Share:
    """A mean of values from 0 to 1, one a comparison, with its standard error.

    Comparisons of one group reuse its rounds, those of different groups share none: the error is that of a
    delete-a-group jackknife over the bank, at least the one that independent comparisons would have.
    """
    values = np.asarray(hits, dtype=np.float64)
    mean, names = float(values.mean()), np.unique(groups)
    independent = math.sqrt(mean * (1 - mean) / len(values))
    if len(names) < 2:
        return Share(mean, independent)
    without = np.array([values[groups != name].mean() for name in names])
    count = len(names)
    jackknife = math.sqrt((count - 1) / count * float(((without - without.mean()) ** 2).sum()))
    return Share(mean, max(jackknife, independent))


def resolved(judge: Judge, values: Values, look: Look) -> list[float]:
    """The ratio, one a rule, that an unchanged arm is proven to lie below at this look in 9 of 10 comparisons.

    `Look(12, 12, 12)` is of a plan of twelve rounds (the plain t), `Look(12, 3, 12)` the last look of the shipped
    rules: looks before it have taken some of the level, and so it resolves less.
    """
    ends = [[_upper(one) for one in judge.estimates(logs[: look.done], look)] for logs in values.logs]
    return [float(end) for end in np.exp(np.quantile(np.array(ends), PROVEN_IN, axis=0))]


def _upper(found: Estimate) -> float:
    return math.inf if found.decision is None else found.decision[1]


def covered(interval: IntervalOf, found: Sequence[Estimate], truth: Floats) -> list[bool]:
    """Whether each rule's interval holds its true log ratio; one that is not there holds nothing."""
    known = [(interval(one), true) for one, true in zip(found, truth, strict=True)]
    return [ends is not None and bool(ends[0] <= true <= ends[1]) for ends, true in known]
