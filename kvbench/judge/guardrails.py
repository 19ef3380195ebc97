"""Guardrails: what must not get worse. All must be proven safe for a GO; one proven breach is a NO_GO."""

from __future__ import annotations

from collections.abc import Sequence

from kvbench.judge import wording
from kvbench.judge.canaries import judge_canaries
from kvbench.judge.case import Case, Question, Ruling, Stakes
from kvbench.judge.evaluation import each_bound
from kvbench.judge.evidence import ArmRound
from kvbench.judge.lengths import Lengths, lengths
from kvbench.judge.rulings import rule_on
from kvbench.judge.sustained_rule import evaluate_sustained
from kvbench.judge.verdict import RuleResult, Status
from kvbench.spec.rules import Guardrail

__all__ = ["STABILITY", "breach_level", "event_words", "judge_guardrails"]

STABILITY = "stability"
HAPPENED = {"died": "died", "frozen": "froze", "restarted": "restarted", "refusing": "stopped serving"}


def judge_guardrails(case: Case) -> list[Ruling]:
    """Every guardrail of the rules; stability, which always holds; and canaries, where the workload has them.

    Safe needs the level of a single rule, because all must be; a breach needs its share (`breach_level`), because
    one is enough. Stability, canaries and sustained rules have no level.
    """
    rules = case.comparison.rules.guardrails
    rulings = [_stability(case), *judge_canaries(case)]
    for rule in rules:
        if rule.sustained is not None:
            rulings.append(evaluate_sustained(rule, rule.sustained, case))
        else:
            stakes = Stakes(kept=case.alpha, broken=breach_level(rule, rules, case.alpha))
            rulings.append(rule_on(Question(rule, "guardrail", case, stakes)))
    return rulings


def breach_level(rule: Guardrail, among: Sequence[Guardrail], alpha: float) -> float:
    """One-sided level at which each bound of a guardrail is proven broken, of `alpha` for all guardrails together.

    It is divided by the number of guardrails that are decided by an interval, since any breach is a NO_GO, and what
    falls on one by its bounds (`each_bound`), since any of them beyond is a breach of it.
    """
    family = sum(other.sustained is None for other in among)
    return each_bound(rule, alpha / max(family, 1))


def _stability(case: Case) -> Ruling:
    """Death, freeze, refusal of everything or short answers in the candidate only. Exact: one is enough.

    What the baseline suffers as well is a matter of validity.
    """
    pairs = case.comparison.pairs
    baseline, candidate = [pair.baseline for pair in pairs], [pair.candidate for pair in pairs]
    status: Status = "pass"
    text = f"no death, freeze or short answer in {wording.count(len(pairs), 'round')}"
    faults, shared = _faults(baseline, candidate, case.comparison.rules.validity.token_mismatch)
    if not pairs:
        status, text = "unknown", "no pair of rounds was recorded"
    elif faults:
        status, text = "fail", wording.listed(faults)
    elif shared:
        status, text = "unknown", f"{wording.listed(shared)}; the baseline was no better"
    return Ruling(RuleResult(rule=STABILITY, kind="guardrail", status=status, text=text))


def _faults(
    baseline: Sequence[ArmRound], candidate: Sequence[ArmRound], tolerated: float
) -> tuple[list[str], list[str]]:
    """What happened to the candidate alone, and what happened to both."""
    alone: list[str] = []
    shared: list[str] = []
    events = [event_words(recorded) for recorded in candidate if recorded.events]
    (shared if any(recorded.events for recorded in baseline) else alone).extend(events)
    seen = lengths(candidate)
    if _too_short(seen, tolerated):
        words = (
            f"{seen.short:,} of {wording.count(seen.completed, 'completed answer')} of {candidate[0].arm} too short"
        )
        (shared if _too_short(lengths(baseline), tolerated) else alone).append(words)
    return alone, shared


def event_words(recorded: ArmRound) -> str:
    """The first of what happened to the engine in a round, as a sentence."""
    event = recorded.events[0]
    return (
        f"the engine of {recorded.arm} {HAPPENED[event.kind]} {wording.value(event.t_s, 's')} into round "
        f"{recorded.index}: {event.detail}"
    )


def _too_short(seen: Lengths, tolerated: float) -> bool:
    return seen.short > tolerated * seen.completed
