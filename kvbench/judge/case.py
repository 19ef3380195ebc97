"""What the rules are applied to: the usable pairs of a comparison with their latencies and token sources.

A pair is usable when both rounds are complete and nothing happened to either engine; the others are spoken for by
validity and stability.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from kvbench.judge.evidence import ArmRound, Comparison, RoundPair
from kvbench.judge.latency import RoundLatencies
from kvbench.judge.ledger import arm_totals
from kvbench.judge.phases import measured_start
from kvbench.judge.quality import LedgerTotals
from kvbench.judge.round_ledger import RoundLedger
from kvbench.judge.tiers import Tier, newest_tier
from kvbench.judge.units import Units, independent_units
from kvbench.judge.verdict import Kind, RuleResult
from kvbench.spec.rules import Rule
from kvbench.spec.workload import Workload

__all__ = ["Case", "JudgedPair", "JudgedRound", "Question", "Ruling", "Stakes", "build_case"]


class JudgedRound:
    """A recorded round with what rules read from it; derived once, on first use."""

    def __init__(self, recorded: ArmRound, workload: Workload) -> None:
        self.recorded = recorded
        self.workload = workload

    @property
    def index(self) -> int:
        return self.recorded.index

    @cached_property
    def latencies(self) -> RoundLatencies:
        return RoundLatencies(self.recorded, self.workload.request_timeout)

    @cached_property
    def ledger(self) -> RoundLedger:
        """Where each request's prompt tokens came from."""
        return RoundLedger(self.recorded.ledger, self.latencies)

    @cached_property
    def sources(self) -> dict[str, float | None]:
        """Prompt tokens by source in the measured part."""
        return self.recorded.counters.by_source(measured_start(self.workload))


@dataclass(frozen=True)
class JudgedPair:
    """The two rounds that played one schedule."""

    baseline: JudgedRound
    candidate: JudgedRound


@dataclass(frozen=True)
class Stakes:
    """One-sided levels of a rule: what proving it kept takes, and what proving it broken takes."""

    kept: float
    broken: float


@dataclass(frozen=True)
class Ruling:
    """A rule's result, and what a report does not show but the verdict needs."""

    result: RuleResult
    needed_units: tuple[int, int] | None = None
    """How many independent units would settle it, where it is unknown and more of them would."""
    blocks: bool = True
    """False: the rule does not apply to this comparison, so that it is unknown stands in nobody's way."""


@dataclass(frozen=True, eq=False)
class Case:
    """One candidate against the baseline."""

    comparison: Comparison
    pairs: tuple[JudgedPair, ...]
    units: Units

    @property
    def workload(self) -> Workload:
        return self.comparison.workload

    @property
    def confidence(self) -> float:
        return self.comparison.rules.confidence

    @property
    def alpha(self) -> float:
        """One-sided level of a single rule."""
        return (1 - self.confidence) / 2

    @cached_property
    def ledgers(self) -> list[LedgerTotals]:
        """Of both arms, over whole rounds; nothing of an arm without a ledger."""
        arms = (
            (self.comparison.baseline.name, [pair.baseline.recorded for pair in self.pairs]),
            (self.comparison.candidate.name, [pair.candidate.recorded for pair in self.pairs]),
        )
        return [totals for arm, rounds in arms if (totals := arm_totals(arm, rounds)) is not None]

    @property
    def trusts_ledgers(self) -> bool:
        """Whether what they say of single requests is to be believed."""
        return not any(totals.distrusted for totals in self.ledgers)

    @cached_property
    def newest_tier(self) -> Tier | None:
        return newest_tier(self.comparison.baseline, self.comparison.candidate)

    @cached_property
    def added_tiers(self) -> tuple[str, ...]:
        """Tiers that the candidate has and the baseline lacks, hot to cold."""
        return tuple(
            tier for tier in self.comparison.candidate.tier_names if tier not in self.comparison.baseline.tier_names
        )


@dataclass(frozen=True, eq=False)
class Question:
    """A rule put to a case."""

    rule: Rule
    kind: Kind
    case: Case
    stakes: Stakes


def _usable(pair: RoundPair) -> bool:
    return all(
        side.complete and not side.events and not side.config_differences
        for side in (pair.baseline, pair.candidate)
    )


def build_case(comparison: Comparison) -> Case:
    """Read the usable pairs; what they hold is derived when a rule asks for it."""
    usable: list[RoundPair] = []
    judged: list[JudgedPair] = []
    for pair in comparison.pairs:
        both = JudgedPair(
            JudgedRound(pair.baseline, comparison.workload), JudgedRound(pair.candidate, comparison.workload)
        )
        if _usable(pair) and len(both.baseline.latencies) and len(both.candidate.latencies):
            usable.append(pair)
            judged.append(both)
    units = independent_units(usable, comparison.rules.rounds, attached=comparison.attached)
    return Case(comparison, tuple(judged), units)
