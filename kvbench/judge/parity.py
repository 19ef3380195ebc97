"""Output parity: whether answers change when KV comes from a tier instead of being computed.

Answers are compared where prompts are equal. What the engine changes by itself (near-ties, other batches) is its
noise, taken from answers to equal prompts that were both computed. Shares of compared answers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from kvbench.judge import wording
from kvbench.judge.case import Case, JudgedPair, Question, Ruling, Stakes
from kvbench.judge.columns import Bools, Ids, Rows, common, flag, numbers, rows
from kvbench.judge.evaluation import DECIDED, status_of, unknown
from kvbench.judge.evidence import ArmRound
from kvbench.judge.looks import nominal_level
from kvbench.judge.needed import BEYOND, units_until
from kvbench.judge.rates import share_lower, share_upper
from kvbench.judge.verdict import RuleResult

__all__ = ["DEFAULT_MARGIN", "Compared", "compare_outputs", "evaluate_parity"]

DEFAULT_MARGIN = 0.005
"""Divergence beyond the engine's own noise that is tolerated unless the rule sets `max`."""
PER_CLASS = 2**32
"""More prefixes than a class has."""


@dataclass(frozen=True)
class Compared:
    """Pairs of answers to equal prompts, and how many of them differ: counts, or what so many rounds would hold."""

    pairs: float = 0
    diverged: float = 0
    prefixes: float = field(default=0, compare=False)
    """How many prefixes the answers under test come from; one without a prefix stands for itself. Told, not judged
    by."""

    def times(self, factor: float) -> Compared:
        """As many rounds more or less, at the same rate."""
        return Compared(self.pairs * factor, self.diverged * factor, self.prefixes * factor)

    def __add__(self, other: Compared) -> Compared:
        return Compared(self.pairs + other.pairs, self.diverged + other.diverged, self.prefixes + other.prefixes)

    @property
    def rate(self) -> float | None:
        return self.diverged / self.pairs if self.pairs else None


class _Answers:
    """Completed requests of a round, with what their answers are compared by."""

    def __init__(self, recorded: ArmRound) -> None:
        table = recorded.requests
        kept = rows(((table["status"] == "ok") & table["output_digest"].notna()).to_numpy(dtype=bool))
        self.ids: Ids = table["id"].to_numpy(dtype=np.int64)[kept]
        self.measured = flag(table, "measured")[kept]
        self.cached = numbers(table, "cached_tokens")[kept]
        self.received = numbers(table, "output_tokens_received")[kept]
        self.repeat_of = numbers(table, "repeat_of")[kept]
        self.prefixes = self._prefixes(table, kept)
        self.prompts = table["prompt_digest"].iloc[kept]
        self.outputs = table["output_digest"].iloc[kept]

    def _prefixes(self, table: pd.DataFrame, kept: Rows) -> Ids:
        """A number for each answer, equal for those of one prefix of a class; negative without a shared prefix."""
        places = numbers(table, "prefix")[kept]
        classes = pd.factorize(table["class"])[0][kept].astype(np.int64)
        alone = np.where(np.isnan(self.repeat_of), self.ids, self.repeat_of).astype(np.int64)
        return np.where(np.isnan(places), -1 - alone, classes * PER_CLASS + np.nan_to_num(places).astype(np.int64))


def evaluate_parity(question: Question) -> Ruling:
    """Judge a rule on `output_parity`: divergence beyond noise, at most `max` (default: `DEFAULT_MARGIN`).

    Compared answers are taken as independent. Where one corrupt block spoils every answer that is served from it,
    they tell less than their number, and the interval is too narrow: prefixes count then, not answers. The sentence
    says so, and how many they are. A bound over prefixes cannot be asked of the shipped rules: twelve rounds of the
    `mixed` workload have at most 432 prefixes, which prove 0.85 % where none diverged, and 0.5 % is asked for.
    """
    rule, kind, case, stakes = question.rule, question.kind, question.case, question.stakes
    if rule.class_ != "all":
        return unknown(rule, kind, "is judged over all classes together")
    tested, noise = compare_outputs(case)
    if not tested.pairs:
        return unknown(rule, kind, "was not measured: no answers to equal prompts to compare")
    margin = DEFAULT_MARGIN if rule.max is None else rule.max
    kept, broken = (nominal_level(level, case.units.look) for level in (stakes.kept, stakes.broken))
    decision = None if kept is None or broken is None else _bounds(tested, noise, broken, kept)
    status = status_of(decision, margin, upper=True)
    rate = tested.diverged / tested.pairs
    known_noise = (
        f"{noise.diverged:,} of {noise.pairs:,} computed twice" if noise.pairs else "its noise was not measured"
    )
    between = f" [{wording.share(decision[0])}, {wording.share(decision[1])}]" if decision else ""
    result = RuleResult(
        rule=rule.id,
        kind=kind,
        status=status,
        metric=rule.metric,
        baseline=noise.rate,
        candidate=rate,
        unit="fraction",
        effect=None if noise.rate is None else rate - noise.rate,
        ci=_bounds(tested, noise, case.alpha, case.alpha),
        decision_ci=decision,
        limit=margin,
        text=(
            f"output parity: {tested.diverged:,} of {tested.pairs:,} answers differ ({known_noise}), beyond the "
            f"engine's own noise{between}; at most {wording.share(margin)} asked for: {DECIDED[kind][status]}"
            f"{_caveat(tested)}"
        ),
    )
    needed = _needed(tested, noise, margin, case, stakes) if status == "unknown" else None
    return Ruling(result, needed)


def _caveat(tested: Compared) -> str:
    if tested.prefixes >= tested.pairs:
        return ""
    prefixes = wording.count(int(tested.prefixes), "prefix", "prefixes")
    return (
        f"; answers are taken as independent, though they come from {prefixes}: where one bad block spoils all "
        "answers from its prefix, the interval is too narrow"
    )


def _needed(tested: Compared, noise: Compared, margin: float, case: Case, stakes: Stakes) -> tuple[int, int] | None:
    """Units after which as many answers a unit, differing as often, would be proven on their side of the margin.

    None where no number of them would: noise that is not measured may hide any breach.
    """
    look = case.units.look
    kept, broken = (nominal_level(level, look.at_end) for level in (stakes.kept, stakes.broken))
    if not (kept and broken and look.done):
        return None

    def settled(units: int) -> bool:
        grown = units / look.done
        bounds = _bounds(tested.times(grown), noise.times(grown), broken, kept)
        return status_of(bounds, margin, upper=True) != "unknown"

    found = units_until(settled)
    return None if found == BEYOND and not noise.pairs else found


def _bounds(tested: Compared, noise: Compared, lower: float, upper: float) -> tuple[float, float]:
    """Bounds of the divergence beyond noise, each from two exact bounds that share the level.

    Noise that was not measured may be anything from none to all: then a breach cannot be proven, a pass can. Noise
    that was never seen has the bound 0 for certain, so that the answers under test get the whole level.
    """
    least_noise = 0.0
    if noise.diverged:
        upper /= 2
        least_noise = share_lower(noise.diverged, noise.pairs, upper)
    low = share_lower(tested.diverged, tested.pairs, lower / 2) - share_upper(
        noise.diverged, noise.pairs, lower / 2
    )
    return low, share_upper(tested.diverged, tested.pairs, upper) - least_noise


def compare_outputs(case: Case) -> tuple[Compared, Compared]:
    """Answers under test and answers that show the engine's own noise, over all usable pairs."""
    tested, noise = Compared(), Compared()
    for pair in case.pairs:
        more_tested, more_noise = _compare_pair(pair, case)
        tested, noise = tested + more_tested, noise + more_noise
    return tested, noise


def _compare_pair(pair: JudgedPair, case: Case) -> tuple[Compared, Compared]:
    """Between the arms by request, and within each arm by prompts that were sent again.

    With a new tier the answers under test are those it may have touched: cached beyond what the baseline had, or of
    unknown source. Without one (another KV data type, or the same arm) they are all of them, and then the arms'
    computed answers cannot serve as noise.
    """
    baseline, candidate = _Answers(pair.baseline.recorded), _Answers(pair.candidate.recorded)
    left, right = common(baseline.ids, candidate.ids)
    equal = _same_prompt(baseline, left, candidate, right)
    differ = _differ(baseline, left, candidate, right)
    measured = candidate.measured[right]
    again, first = _repeats(baseline)
    noise = _count(
        _computed(baseline, again) & _computed(baseline, first), _differ(baseline, again, baseline, first)
    )
    if not case.added_tiers:
        prefixes = _distinct(candidate.prefixes[right][equal & measured])
        return replace(_count(equal & measured, differ), prefixes=prefixes), noise
    untouched = candidate.cached[right] <= baseline.cached[left]
    computed = _computed(candidate, right) & _computed(baseline, left)
    touched = equal & measured & ~untouched
    again, first = _repeats(candidate)
    from_cache = np.asarray((candidate.cached[again] > 0) & _computed(candidate, first))
    tested = _count(touched, differ) + _count(from_cache, _differ(candidate, again, candidate, first))
    prefixes = _distinct(candidate.prefixes[right][touched], candidate.prefixes[again][from_cache])
    same_numbers = case.comparison.baseline.tiers.device.kv_dtype == case.comparison.candidate.tiers.device.kv_dtype
    return replace(tested, prefixes=prefixes), noise + _count(equal & computed & same_numbers, differ)


def _distinct(*prefixes: Ids) -> int:
    return len(np.unique(np.concatenate(prefixes)))


def _count(chosen: Bools, differ: Bools) -> Compared:
    return Compared(int(chosen.sum()), int((chosen & differ).sum()))


def _computed(answers: _Answers, chosen: Rows) -> Bools:
    return np.asarray(answers.cached[chosen] == 0)


def _same_prompt(one: _Answers, left: Rows, other: _Answers, right: Rows) -> Bools:
    """Equal prompts with answers of equal length."""
    prompts = _equal(one.prompts.iloc[left], other.prompts.iloc[right])
    return np.asarray(prompts & (one.received[left] == other.received[right]))


def _differ(one: _Answers, left: Rows, other: _Answers, right: Rows) -> Bools:
    return np.asarray(~_equal(one.outputs.iloc[left], other.outputs.iloc[right]))


def _equal(one: pd.Series[str], other: pd.Series[str]) -> Bools:
    same = one.reset_index(drop=True) == other.reset_index(drop=True)
    return same.to_numpy(dtype=bool, na_value=False)


def _repeats(answers: _Answers) -> tuple[Rows, Rows]:
    """Prompts that were sent again, and what they repeat; only equal prompts with a known original."""
    again = np.flatnonzero(~np.isnan(answers.repeat_of))
    originals = pd.Index(answers.ids).get_indexer(pd.Index(answers.repeat_of[again].astype(np.int64)))
    again, originals = again[originals >= 0], originals[originals >= 0]
    same = _same_prompt(answers, again, answers, originals)
    return again[same], originals[same]
