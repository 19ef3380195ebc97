"""What tests ask: one rule against some pairs of rounds, the findings of a run, one result of a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvbench.judge.case import Ruling, build_case
from kvbench.judge.evidence import Comparison, RoundPair
from kvbench.judge.evidence_rules import judge_evidence
from kvbench.judge.findings import FindingKind
from kvbench.judge.guardrails import judge_guardrails
from kvbench.judge.instrument import instrument
from kvbench.judge.validity import check_validity
from kvbench.judge.verdict import CandidateVerdict, Instrument, RuleResult
from tests.judge.build import (
    arm_round,
    comparison,
    pair,
    request_rows,
    rules,
    ttfts,
)

RATIO = {"id": "r", "metric": "ttft", "quantile": 0.5, "max_ratio": 1.2}
SLOWER = {"id": "slower", "metric": "ttft", "quantile": 0.5, "max_ratio": 0.1}


def guardrail(
    pairs: Sequence[RoundPair],
    rule: dict[str, Any],
    *others: dict[str, Any],
    rounds: tuple[int, int] = (3, 3),
    **more: Any,
) -> RuleResult:
    """What becomes of a guardrail, among others or alone."""
    written = {"id": "r", **rule}
    run = comparison(pairs, rules(guardrails=[written, *others], rounds=rounds), **more)
    return guarded(run, "r")


def guarded(run: Comparison, rule: str) -> RuleResult:
    """What becomes of a guardrail of a run."""
    return _the(judge_guardrails(build_case(run)), rule)


def evidence(run: Comparison, rule: str) -> RuleResult:
    """What becomes of a rule on evidence."""
    return _the(judge_evidence(build_case(run)), rule)


def _the(rulings: list[Ruling], rule: str) -> RuleResult:
    (found,) = (ruling.result for ruling in rulings if ruling.result.rule == rule)
    return found


def figures(run: Comparison) -> Instrument:
    """What the measurement says about itself."""
    return instrument(run, build_case(run))


def result_of(verdict: CandidateVerdict, rule: str) -> RuleResult:
    found = [result for result in verdict.rules if result.rule == rule]
    assert len(found) == 1, f"{rule}: {[result.rule for result in verdict.rules]}"
    return found[0]


def about(found: RuleResult) -> tuple[object, ...]:
    """What a result is about: rule, kind, metric, quantile, class, unit, limit."""
    return found.rule, found.kind, found.metric, found.quantile, found.class_, found.unit, found.limit


def kinds(run: Comparison) -> set[FindingKind]:
    return {finding.kind for finding in check_validity(run).findings}


def exact_pairs(ratios: Sequence[float], n: int = 40, median: float = 1.0) -> list[RoundPair]:
    """Pairs whose TTFT ratio is exactly the one given, at every quantile."""
    return [
        RoundPair(
            index,
            arm_round("base", index, *request_rows(ttfts(n, median, seed=index))),
            arm_round("tiered", index, *request_rows(ttfts(n, median, seed=index) * ratio)),
        )
        for index, ratio in enumerate(ratios, start=1)
    ]


def noisy_pairs(k: int = 3, **more: Any) -> list[RoundPair]:
    """So noisy that nothing can be told at these margins."""
    return [pair(index, **{"ratio": 0.6, "hits": 0.5, "noise": 0.8} | more) for index in range(1, k + 1)]
