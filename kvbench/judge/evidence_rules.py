"""Evidence: that the new tier was really used, and that its hits were worth it.

Retained bytes and hit counts are never a benefit; here they only show that a benefit can be the tier's doing.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvbench.judge import wording
from kvbench.judge.case import Case, Question, Ruling, Stakes
from kvbench.judge.evaluation import each_bound, unknown
from kvbench.judge.hits import judge_hits
from kvbench.judge.needed import units_until
from kvbench.judge.readings import never_counted
from kvbench.judge.rulings import rule_on
from kvbench.judge.sources import add_sources
from kvbench.judge.verdict import RuleResult, Status
from kvbench.spec.rules import EvidenceRule

__all__ = ["TIER_USED", "judge_evidence", "tier_was_used"]

TIER_USED = "tier-used"
"""The rule on tokens promoted from the newest tier that holds where the user wrote none."""
COUNTED = "promoted_tokens"
PREDICTED_WITHIN = 0.02
"""Share of all prompt tokens within which those of a source are predicted: what the test against the embedded
engine allows the emulated one (`tests/engine/emulated/test_sources.py`). So few may as well not come at all."""


def judge_evidence(case: Case) -> list[Ruling]:
    """Every evidence rule, use of the newest tier where no rule asks for it, and whether hits beat recomputing.

    A candidate that adds no tier (the same arm, another KV data type) has nothing to show: benefits decide.

    Any piece of evidence that is refuted is a NO_GO, so that those which chance may refute are a family: rules that
    are decided by an interval, and the tests of hits (two, where there are several new tiers). A rule is refuted at
    the level divided by their number, and by its bounds (`each_bound`). Shown must be all of them, each at the
    level of one. Promoted tokens are counted and held against what the schedule asks for: no chance, no level.
    """
    rules = case.comparison.rules.evidence
    if not case.added_tiers:
        return [
            unknown(rule, "evidence", "does not apply: the candidate adds no tier", blocks=False) for rule in rules
        ]
    asked = list(rules)
    if not any(_asks_for_use(rule, case.newest_tier) for rule in rules):
        asked.insert(0, EvidenceRule(id=TIER_USED, metric=COUNTED, min=1))
    refuted = case.alpha / _refutable(asked, case)
    questions = [
        Question(rule, "evidence", case, Stakes(kept=case.alpha, broken=each_bound(rule, refuted)))
        for rule in asked
    ]
    rulings = [
        _promoted(question) if question.rule.metric == COUNTED else rule_on(question) for question in questions
    ]
    return [*rulings, judge_hits(case, refuted)]


def _refutable(asked: Sequence[EvidenceRule], case: Case) -> int:
    """How many pieces of evidence chance may refute."""
    tests_of_hits = 2 if len(case.added_tiers) > 1 else 1
    return sum(rule.metric != COUNTED for rule in asked) + tests_of_hits


def _asks_for_use(rule: EvidenceRule, newest_tier: str | None) -> bool:
    """Tokens from the host say nothing about a disk behind it."""
    return rule.metric == COUNTED and rule.source in (None, newest_tier)


def tier_was_used(rulings: list[Ruling]) -> bool:
    """Whether every rule on promoted tokens that applies is kept."""
    return all(
        ruling.result.status == "pass" for ruling in rulings if ruling.blocks and ruling.result.metric == COUNTED
    )


def _promoted(question: Question) -> Ruling:
    """Tokens promoted from the newest tier (or `source`), over all rounds; counted, so without an interval."""
    rule, case = question.rule, question.case
    tier = rule.source or case.newest_tier or "device"
    if rule.class_ != "all":
        return unknown(rule, "evidence", "is not known by class")
    if not case.pairs:
        return unknown(rule, "evidence", "was not measured: there is no complete pair of rounds")
    tokens = add_sources(pair.candidate.sources for pair in case.pairs)[tier]
    if tokens is None:
        lost = next(filter(None, (never_counted(pair.candidate) for pair in case.pairs)), None)
        apart = f"is unknown: the engine does not tell tokens from {tier} apart"
        return unknown(rule, "evidence", lost.why if lost is not None else apart)
    least = max(1.0, rule.min or 0.0)
    status, words = _use(tokens, least, _expected(tier, case), tier)
    result = RuleResult(
        rule=rule.id,
        kind="evidence",
        status=status,
        metric=rule.metric,
        candidate=tokens,
        unit="tokens",
        effect=tokens,
        limit=least,
        text=f"{tokens:,.0f} prompt tokens were promoted from {tier}; {words}",
    )
    return Ruling(result, _needed(tokens, least, case) if status == "unknown" else None)


def _expected(tier: str, case: Case) -> tuple[float, float] | None:
    """Tokens from a tier that the schedule's reuse predicts at its size, and from all sources together; None when
    the size is unknown."""
    expected = [pair.candidate.recorded.expected_sources for pair in case.pairs]
    known = [sources for sources in expected if sources is not None and tier in sources]
    if len(known) < len(expected):
        return None
    return sum(sources[tier] for sources in known), sum(sum(sources.values()) for sources in known)


def _use(tokens: float, least: float, expected: tuple[float, float] | None, tier: str) -> tuple[Status, str]:
    """Promotions that were to be expected and of which none came mean that the tier does not work. Some, but fewer
    than the rule asks for, refute nothing: more come with every round."""
    if tokens >= least:
        return "pass", f"at least {least:,.0f} asked for: the tier was used"
    if tokens > 0:
        return "unknown", f"the tier was used, but {least:,.0f} are asked for"
    if expected is None:
        return "unknown", f"how many were to be expected is unknown, because the size of {tier} is"
    from_tier, in_all = expected
    if from_tier > PREDICTED_WITHIN * in_all:
        return "fail", f"the schedule's reuse asks for about {from_tier:,.0f}: the tier does not work"
    if from_tier > 0:
        share = wording.share(from_tier / in_all)
        return "unknown", (
            f"the workload hardly reaches the tier, about {from_tier:,.0f} ({share}) were to be expected: reuse "
            "further apart or a smaller tier above it would"
        )
    return "unknown", "the workload never reaches the tier: reuse further apart or a smaller tier above it would"


def _needed(tokens: float, least: float, case: Case) -> tuple[int, int] | None:
    """Units after which there would be enough promotions, at as many a unit; None where there are none."""
    per_unit = tokens / len(case.units.groups)
    return units_until(lambda units: per_unit * units >= least) if tokens else None
