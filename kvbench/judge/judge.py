"""From evidence to a verdict: validity, then guardrails, then evidence, then benefit. Pure.

Comparison ─ check_validity ─→ findings ┐
           ─ build_case ─→ rulings ─────┴─→ CandidateVerdict ─ combine ─→ Verdict
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvbench.judge import wording
from kvbench.judge.benefits import judge_benefits
from kvbench.judge.case import Case, Ruling, build_case
from kvbench.judge.describe import latency_rows
from kvbench.judge.evidence import Comparison
from kvbench.judge.evidence_rules import judge_evidence, tier_was_used
from kvbench.judge.findings import FindingKind
from kvbench.judge.guardrails import judge_guardrails
from kvbench.judge.held_out import held_out
from kvbench.judge.hit_quality import hit_quality, losses
from kvbench.judge.host_path import host_paths
from kvbench.judge.instrument import instrument
from kvbench.judge.needed import BEYOND, MOST_UNITS
from kvbench.judge.predicted import source_predictions
from kvbench.judge.sources import SOURCES, add_sources
from kvbench.judge.tier_activity import tier_activity
from kvbench.judge.validity import Checked, check_validity
from kvbench.judge.verdict import Action, CandidateVerdict, Outcome, RoundCount, Verdict
from kvbench.judge.who_pays import who_pays
from kvbench.spec.rules import Rules

__all__ = ["combine", "decided", "judge"]

NOT_TESTED = (
    "restart of the engine with a filled tier",
    "loss of the tier while serving",
    "memory pressure on the host",
)
"""What no comparison under load shows; fault drills do."""


@dataclass(frozen=True)
class _Rulings:
    """All results, by stage."""

    validity: Checked
    guardrails: list[Ruling]
    evidence: list[Ruling]
    benefits: list[Ruling]

    @property
    def blocking(self) -> list[Ruling]:
        """Evidence that applies to this comparison."""
        return [ruling for ruling in self.evidence if ruling.blocks]


@dataclass(frozen=True)
class _Conclusion:
    """A verdict with its reasons, the deciding one first."""

    outcome: Outcome
    reasons: list[str]
    open_rulings: tuple[Ruling, ...] = ()
    """What stands between an INCONCLUSIVE and an answer."""


def judge(comparison: Comparison) -> CandidateVerdict:
    """The verdict on one candidate. Every rule is evaluated and listed, whichever stage decides."""
    comparison = comparison.in_order()
    case = build_case(comparison)
    latency = latency_rows(case)  # takes the most memory, so it comes before what is then kept for the rules
    rulings = _Rulings(
        check_validity(comparison), judge_guardrails(case), judge_evidence(case), judge_benefits(case)
    )
    conclusion = _conclude(rulings)
    needed = _needed(conclusion, case)
    hits = hit_quality(case)
    reasons = conclusion.reasons + losses(hits) + _needed_words(conclusion, case) + _caveats(case, conclusion)
    return CandidateVerdict(
        verdict=conclusion.outcome,
        exit_code=conclusion.outcome.exit_code,
        baseline=comparison.baseline.name,
        candidate=comparison.candidate.name,
        reasons=reasons,
        not_tested=list(NOT_TESTED) if conclusion.outcome is Outcome.GO else [],
        action=_action(conclusion, case),
        rules=[
            *rulings.validity.results(),
            *(ruling.result for ruling in (*rulings.guardrails, *rulings.evidence, *rulings.benefits)),
        ],
        sources=_sources(case),
        rounds=RoundCount(
            done=len(comparison.pairs), planned=comparison.rounds_planned, unit=case.units.kind, needed=needed
        ),
        instrument=instrument(comparison, case),
        latency=latency,
        who_pays=who_pays(case),
        ledger=case.ledgers,
        hits=hits,
        holdout=held_out(case),
        prediction=source_predictions(case),
        tier_activity=tier_activity(case),
        host=host_paths(comparison),
    )


def combine(verdicts: Sequence[CandidateVerdict]) -> Verdict:
    """The worst candidate's verdict on top (INVALID, NO_GO, INCONCLUSIVE, GO), all of them beneath when several."""
    if not verdicts:
        raise ValueError("there is no verdict to combine")
    worst = max(verdicts, key=lambda verdict: verdict.verdict.severity)
    fields = {name: getattr(worst, name) for name in CandidateVerdict.model_fields}
    return Verdict(**fields, candidates=list(verdicts) if len(verdicts) > 1 else None)


def decided(verdict: CandidateVerdict, rules: Rules) -> bool:
    """Whether more rounds would change nothing, so that the run may stop before its last one.

    GO and NO_GO are final. So is INVALID, which no further round makes good, unless all it lacks is rounds.
    """
    each = verdict.candidates if isinstance(verdict, Verdict) and verdict.candidates else [verdict]
    return all(_final(one, rules) for one in each)


def _final(verdict: CandidateVerdict, rules: Rules) -> bool:
    match verdict.verdict:
        case Outcome.GO | Outcome.NO_GO:
            return True
        case Outcome.INVALID:
            broken = {rule.rule for rule in verdict.rules if rule.kind == "validity" and rule.status == "fail"}
            return broken != {FindingKind.MISSING.value} or verdict.rounds.done >= rules.rounds.min
        case _:
            return False


def _conclude(rulings: _Rulings) -> _Conclusion:
    """The first stage that settles it. What is proven against the tier outweighs what is still unknown."""
    if rulings.validity.findings:
        return _Conclusion(Outcome.INVALID, [finding.text for finding in rulings.validity.findings])
    broken = _texts(rulings.guardrails, "fail") + _texts(rulings.blocking, "fail")
    if broken:
        return _Conclusion(Outcome.NO_GO, broken)
    refuted = _texts(rulings.benefits, "fail")
    if refuted and len(refuted) == len(rulings.benefits) and tier_was_used(rulings.evidence):
        return _Conclusion(Outcome.NO_GO, [f"no benefit: {refuted[0]}", *refuted[1:]])
    open_rulings = [ruling for ruling in (*rulings.guardrails, *rulings.blocking) if _is(ruling, "unknown")]
    proven = _texts(rulings.benefits, "pass")
    if not open_rulings and proven:
        return _Conclusion(
            Outcome.GO, [*proven, *_texts(rulings.guardrails, "pass"), *_texts(rulings.blocking, "pass")]
        )
    return _inconclusive(rulings, open_rulings, proven)


def _inconclusive(rulings: _Rulings, open_rulings: list[Ruling], proven: list[str]) -> _Conclusion:
    reasons = [ruling.result.text for ruling in open_rulings]
    if not rulings.benefits:
        reasons.append("the rules declare no benefit, and without a benefit there is no GO")
    elif not proven:
        undecided = [ruling for ruling in rulings.benefits if _is(ruling, "unknown")]
        reasons += [ruling.result.text for ruling in undecided] or [
            f"no benefit, but it is not known that the tier was used: {_texts(rulings.benefits, 'fail')[0]}"
        ]
        open_rulings = [*open_rulings, *_easiest(undecided)]
    return _Conclusion(Outcome.INCONCLUSIVE, reasons, tuple(open_rulings))


def _easiest(undecided: list[Ruling]) -> list[Ruling]:
    """Of benefits one is enough: the one that the fewest rounds would settle; all where rounds settle none."""
    known = [ruling for ruling in undecided if ruling.needed_units is not None]
    return [min(known, key=lambda ruling: ruling.needed_units or (0, 0))] if known else undecided


def _is(ruling: Ruling, status: str) -> bool:
    return ruling.result.status == status


def _texts(rulings: Sequence[Ruling], status: str) -> list[str]:
    return [ruling.result.text for ruling in rulings if _is(ruling, status)]


def _needed(conclusion: _Conclusion, case: Case) -> tuple[int, int] | None:
    """Rounds in all that would settle everything that is open; None when rounds alone would not, or nothing is."""
    ranges = [ruling.needed_units for ruling in conclusion.open_rulings]
    known = [range_ for range_ in ranges if range_ is not None and range_ != BEYOND]
    return _rounds(known, case) if known and len(known) == len(ranges) else None


def _rounds(ranges: Sequence[tuple[int, int]], case: Case) -> tuple[int, int]:
    """Rounds in all that would settle all of these, fewest and most."""
    least, most = (case.units.pairs_for(max(range_[end] for range_ in ranges)) for end in (0, 1))
    done = len(case.pairs)
    return max(least, done + 1), max(most, done + 1)


def _needed_words(conclusion: _Conclusion, case: Case) -> list[str]:
    """What more rounds would settle, what only very many would, and what they would not: a sentence each."""
    units = {ruling.result.rule: ruling.needed_units for ruling in conclusion.open_rulings}
    within = {rule: range_ for rule, range_ in units.items() if range_ is not None and range_ != BEYOND}
    beyond = [rule for rule, range_ in units.items() if range_ == BEYOND]
    never = [rule for rule, range_ in units.items() if range_ is None]
    words, done = [], len(case.pairs)
    if within:
        least, most = _rounds(list(within.values()), case)
        more = wording.count(most - done, "more round")
        if least < most:
            cut_off = max(high for _, high in within.values()) == MOST_UNITS
            more = f"{least - done:,} to {'more than ' if cut_off else ''}{more}"
        what = "it" if len(within) == len(units) else ", ".join(within)
        words.append(f"at the noise seen so far about {more} would settle {what}, after {done}")
    if beyond:
        most = case.units.pairs_for(MOST_UNITS)
        words.append(f"at the noise seen so far {', '.join(beyond)} would take more than {most:,} rounds")
    if never and case.units.look.done < 2:
        told = wording.count(
            case.units.look.done, case.units.kind, "launches" if case.units.kind == "launch" else None
        )
        words.append(f"after {told} it cannot be told how many rounds {', '.join(never)} would take")
    elif never:
        words.append(f"rounds alone do not settle {', '.join(never)}")
    return words


def _caveats(case: Case, conclusion: _Conclusion) -> list[str]:
    """What a reader must know about the figures above."""
    caveats = []
    if case.comparison.attached and conclusion.outcome is not Outcome.INVALID:
        caveats.append("the servers were already running: all intervals are conditional on their one launch")
    if case.units.kind == "launch":
        units = wording.count(len(case.units.groups), "launch", "launches")
        caveats.append(f"rounds that share an engine launch count as one: {units} of evidence")
    return caveats


def _action(conclusion: _Conclusion, case: Case) -> Action | None:
    tier = case.newest_tier
    if conclusion.outcome is not Outcome.NO_GO or tier is None:
        return None
    return Action(disable_tier=tier, why=conclusion.reasons[0])


def _sources(case: Case) -> dict[str, dict[str, float | None]]:
    """Prompt tokens by source of each arm, measured part, all usable rounds together."""
    arms = (
        (case.comparison.baseline.name, [pair.baseline.sources for pair in case.pairs]),
        (case.comparison.candidate.name, [pair.candidate.sources for pair in case.pairs]),
    )
    return {arm: add_sources(rounds) if rounds else dict.fromkeys(SOURCES) for arm, rounds in arms}
