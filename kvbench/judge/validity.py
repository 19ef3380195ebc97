"""Whether a measurement can be trusted: one check a finding, and the results that the verdict lists.

What cannot be checked is unknown, is said, and does not block. Whatever a dying or frozen engine causes in its own
round is not held against the measurement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kvbench.judge import wording
from kvbench.judge.canaries import leaked
from kvbench.judge.client import lateness, without_socket
from kvbench.judge.evidence import ArmRound, Comparison, RoundPair
from kvbench.judge.findings import NOT_PROVEN, Finding, FindingKind, clean, uncounted
from kvbench.judge.instrument import contention_cores, scrape_coverage, swap_growth, swap_moved
from kvbench.judge.integrity import clock_faults, identity_faults, source_faults, sources_checked
from kvbench.judge.lengths import lengths
from kvbench.judge.offered import load_differences, never_sent, prompt_differences
from kvbench.judge.priming import priming
from kvbench.judge.verdict import RuleResult
from kvbench.spec.rules import Rules
from kvbench.spec.workload import Workload

__all__ = ["Checked", "check_validity", "spoiled", "unforgiven", "unforgiven_alone"]

BASELINE_EVENTS = {
    "died": FindingKind.DIED,
    "frozen": FindingKind.FROZEN,
    "restarted": FindingKind.RESTARTED,
    "refusing": FindingKind.REFUSING,
}
SWAPPED_BYTES = 64 * 2**20
"""A kernel moves a few idle pages out at any time; more than that takes memory that the round touches."""


@dataclass(frozen=True)
class Checked:
    """All findings of a comparison, and what could not be checked."""

    findings: tuple[Finding, ...]
    unknown: dict[FindingKind, str]

    def results(self) -> list[RuleResult]:
        """One result for every kind of finding, in their order."""
        return [self._result(kind) for kind in FindingKind]

    def _result(self, kind: FindingKind) -> RuleResult:
        found = [finding.text for finding in self.findings if finding.kind is kind]
        if found:
            return RuleResult(rule=kind.value, kind="validity", status="fail", text=wording.listed(found))
        if kind in self.unknown:
            return RuleResult(rule=kind.value, kind="validity", status="unknown", text=self.unknown[kind])
        return RuleResult(rule=kind.value, kind="validity", status="pass", text=clean(kind))


def spoiled(pair: RoundPair, rules: Rules, workload: Workload) -> list[Finding]:
    """Why a pair of rounds does not count although the engines are not to blame: findings of kinds that pass.

    None where a repeat would hide what is not forgiven.
    """
    return [] if unforgiven(pair, rules, workload) else _pair_findings(pair, rules, workload)


def unforgiven(pair: RoundPair, rules: Rules, workload: Workload) -> bool:
    """Whether something happened to an engine, text of another tenant came out, or anything is wrong that does not
    pass."""
    if pair.baseline.events or pair.candidate.events or leaked([pair.candidate]):
        return True
    return not all(finding.passes for finding in _pair_findings(pair, rules, workload))


def unforgiven_alone(recorded: ArmRound, rules: Rules, workload: Workload) -> bool:
    """The same of one round, whatever it is paired with."""
    if recorded.events or leaked([recorded]):
        return True
    return not all(finding.passes for finding in _round_findings(recorded, rules, workload))


def check_validity(comparison: Comparison) -> Checked:
    """Run every check over all recorded pairs of rounds."""
    findings = [*_comparison_findings(comparison)]
    for pair in comparison.pairs:
        findings += _pair_findings(pair, comparison.rules, comparison.workload)
    if not findings:
        findings += _missing(comparison)
    order = list(FindingKind)
    findings.sort(key=lambda finding: order.index(finding.kind))
    return Checked(tuple(dict.fromkeys(findings)), _unknown(comparison))


def _missing(comparison: Comparison) -> Iterable[Finding]:
    """Too few rounds, unless something else ended the run early: a finding, the candidate's own end, or a leak."""
    done, fewest = len(comparison.pairs), comparison.rules.rounds.min
    ended = any(pair.candidate.events for pair in comparison.pairs) or leaked(_by_arm(comparison)[1])
    if done < fewest and not ended:
        pairs = wording.count(done, "pair")
        yield Finding(FindingKind.MISSING, f"{pairs} of rounds recorded, the rules ask for at least {fewest}")


def _comparison_findings(comparison: Comparison) -> Iterable[Finding]:
    if comparison.arm_differences:
        yield Finding(FindingKind.ARMS, wording.listed(comparison.arm_differences))
    indexes = [pair.index for pair in comparison.pairs]
    for index in sorted({index for index in indexes if indexes.count(index) > 1}):
        yield Finding(FindingKind.INCOMPLETE, "it was recorded more than once", round=index)
    yield from _vanished(comparison)


def _vanished(comparison: Comparison) -> Iterable[Finding]:
    """Metrics that some rounds of an arm have and others lack."""
    for rounds in _by_arm(comparison):
        scraped = [recorded for recorded in rounds if recorded.scrapes.expected > 0]
        if len({recorded.scrapes.supported for recorded in scraped}) > 1:
            without = next(recorded for recorded in scraped if not recorded.scrapes.supported)
            yield Finding(FindingKind.VANISHED, arm=without.arm, round=without.index)


def _by_arm(comparison: Comparison) -> tuple[list[ArmRound], list[ArmRound]]:
    return [pair.baseline for pair in comparison.pairs], [pair.candidate for pair in comparison.pairs]


def _pair_findings(pair: RoundPair, rules: Rules, workload: Workload) -> list[Finding]:
    findings: list[Finding] = []
    for event in pair.baseline.events:
        kind = BASELINE_EVENTS[event.kind]
        at = wording.value(event.t_s, "s")
        findings.append(Finding(kind, event.detail, at, pair.baseline.arm, pair.index))
    for side in (pair.baseline, pair.candidate):
        findings += _round_findings(side, rules, workload)
    findings += _priming_findings(pair, rules)
    if all(_was_driven(side) for side in (pair.baseline, pair.candidate)):
        findings += [
            Finding(FindingKind.OFFERED_LOAD, what, round=pair.index)
            for what in load_differences(pair.baseline, pair.candidate, workload)
        ]
    return findings + _length_findings(pair, rules)


def _priming_findings(pair: RoundPair, rules: Rules) -> Iterable[Finding]:
    """Tiers that were not filled as planned. A candidate that goes on failing requests is judged by its errors."""
    for side in (pair.baseline, pair.candidate):
        told = priming(side)
        forgiven = side is pair.candidate and told.goes_on and _counts_errors(rules)
        if told.failed and _was_driven(side) and not forgiven:
            yield Finding(FindingKind.PRIMING, told.text, arm=side.arm, round=side.index)


def _counts_errors(rules: Rules) -> bool:
    return any(rule.metric == "error_rate" for rule in rules.guardrails)


def _was_driven(recorded: ArmRound) -> bool:
    """Whether the whole schedule was played at an engine that lived."""
    return recorded.complete and not recorded.events and not recorded.config_differences


def _round_findings(recorded: ArmRound, rules: Rules, workload: Workload) -> list[Finding]:
    """Findings that one round of one arm shows by itself."""

    def found(kind: FindingKind, what: str, at: str = "") -> Finding:
        return Finding(kind, what, at, recorded.arm, recorded.index)

    findings = [found(FindingKind.CONFIG, what) for what in recorded.config_differences]
    findings += [found(FindingKind.RESIDUE, what) for what in recorded.residue]
    if recorded.scrapes.vanished:
        findings.append(found(FindingKind.VANISHED, ""))
    if recorded.config_differences or recorded.events:
        return findings
    if recorded.load_faults:  # rows are missing, so nothing can be said of those that are there
        return findings + [found(FindingKind.WORKER, what) for what in recorded.load_faults]
    if not recorded.complete:
        findings.append(found(FindingKind.INCOMPLETE, "it was not played to its end"))
    elif not len(recorded.requests):
        findings.append(found(FindingKind.INCOMPLETE, "it has no requests"))
    findings += [found(FindingKind.RESET, name, wording.value(at, "s")) for name, at in recorded.counters.resets()]
    checks: tuple[tuple[FindingKind, Callable[[], Sequence[str]]], ...] = (
        (FindingKind.CLIENT_LATE, lambda: lateness(recorded, rules, workload)),
        (FindingKind.CLIENT_LIMIT, lambda: without_socket(recorded)),
        (FindingKind.SCHEDULE, lambda: never_sent(recorded, workload)),
        (FindingKind.PROMPT_TOKENS, lambda: prompt_differences(recorded, rules.validity.token_mismatch)),
        (FindingKind.SOURCES, lambda: [*source_faults(recorded), *identity_faults(recorded)]),
        (FindingKind.SCRAPE_GAP, lambda: _scrape_gap(recorded, rules)),
        (FindingKind.CONTENTION, lambda: _contention(recorded, rules, workload)),
        (FindingKind.SWAP, lambda: _swap(recorded, workload)),
        (FindingKind.CLOCK, lambda: clock_faults(recorded)),
    )
    return findings + [found(kind, what) for kind, check in checks for what in check()]


def _scrape_gap(recorded: ArmRound, rules: Rules) -> list[str]:
    coverage, budget = scrape_coverage(recorded), rules.validity
    faults = []
    if coverage is not None and coverage < budget.scrape_coverage:
        faults.append(
            f"{wording.share(coverage)} of the measured part covered, at least "
            f"{wording.share(budget.scrape_coverage)} asked for"
        )
    gap = recorded.scrapes.longest_gap_ours_s
    if coverage is not None and gap > budget.scrape_gap:
        faults.append(f"none for {wording.value(gap, 's')}, {wording.value(budget.scrape_gap, 's')} allowed")
    return faults


def _contention(recorded: ArmRound, rules: Rules, workload: Workload) -> list[str]:
    cores, budget = contention_cores(recorded, workload), rules.validity.contention
    if cores is None or cores <= budget:
        return []
    return [f"{wording.value(cores, 'cores')} stolen or used by other processes, {budget:g} allowed"]


def _swap(recorded: ArmRound, workload: Workload) -> list[str]:
    """By what swap holds more, else by what went out and came back, which leaves it as full as it was."""
    grown, moved = swap_growth(recorded, workload), swap_moved(recorded, workload)
    if grown is not None and grown > SWAPPED_BYTES:
        return [f"{wording.value(grown, 'bytes')} more in use than at the start of the measured part"]
    if moved is not None and moved > SWAPPED_BYTES:
        return [f"{wording.value(moved, 'bytes')} went out or came back in the measured part"]
    return []


def _length_findings(pair: RoundPair, rules: Rules) -> list[Finding]:
    """Answers too long in either arm or too short in the baseline; the candidate's short ones are instability."""
    tolerated = rules.validity.token_mismatch
    findings = []
    for side in (pair.baseline, pair.candidate):
        seen = lengths([side])
        wrong = seen.long + (seen.short if side is pair.baseline else 0)
        if wrong > tolerated * seen.completed:
            completed = wording.count(seen.completed, "completed request")
            what = f"{seen.short:,} short and {seen.long:,} long of {completed}"
            findings.append(Finding(FindingKind.OUTPUT_TOKENS, what, arm=side.arm, round=side.index))
    return findings


def _unknown(comparison: Comparison) -> dict[FindingKind, str]:
    """What could not be proven, by the finding that it might have been."""
    rounds = [side for pair in comparison.pairs for side in (pair.baseline, pair.candidate)]
    unproven = list(dict.fromkeys(f"{side.arm}: {what}" for side in rounds for what in side.config_unknown))
    unknown: dict[FindingKind, str] = {}
    if unproven:
        unknown[FindingKind.CONFIG] = f"could not be proven: {wording.listed(unproven)}"
    silent = sorted({side.arm for side in rounds if not side.scrapes.supported})
    unknown |= _sources_unknown([side for side in rounds if side.scrapes.supported])
    if silent:
        text = NOT_PROVEN["silent"].format(arms=", ".join(silent))
        kinds = (FindingKind.SCRAPE_GAP, FindingKind.RESET, FindingKind.SOURCES, FindingKind.RESIDUE)
        unknown |= dict.fromkeys(kinds, text)
    untold = list(dict.fromkeys(f"{side.arm}: {what}" for side in rounds for what in side.residue_unknown))
    if untold:
        unknown[FindingKind.RESIDUE] = NOT_PROVEN["residue"].format(what=wording.listed(untold))
    if comparison.attached:
        unknown[FindingKind.RESIDUE] = "attached servers were not restarted, so what their tiers held is unknown"
    told = [(pair.candidate, priming(pair.candidate)) for pair in comparison.pairs if _was_driven(pair.candidate)]
    forgiven = [f"round {side.index} of {side.arm}: {begun.text_later}" for side, begun in told if begun.goes_on]
    if forgiven:
        unknown[FindingKind.PRIMING] = NOT_PROVEN["priming"].format(what=wording.listed(forgiven))
    if any(contention_cores(side, comparison.workload) is None for side in rounds):
        unknown[FindingKind.CONTENTION] = "what else used the host was not recorded in every round"
    if any(swap_growth(side, comparison.workload) is None for side in rounds):
        unknown[FindingKind.SWAP] = "the swap in use was not recorded in every round"
    if any(side.requests["prompt_tokens_engine"].isna().all() for side in rounds if len(side.requests)):
        unknown[FindingKind.PROMPT_TOKENS] = "an engine does not tell how many prompt tokens it counted"
    if not rounds:
        unknown |= {kind: "no pair of rounds was recorded" for kind in FindingKind if kind is not FindingKind.ARMS}
    return unknown


def _sources_unknown(rounds: Sequence[ArmRound]) -> dict[FindingKind, str]:
    """What the counters of a round did not see, else arms whose metrics tell nothing that could be checked."""
    lost: dict[str, dict[str, float]] = {}
    for side in rounds:
        for name, amount in side.counters.lost().items():
            arm = lost.setdefault(side.arm, {})
            arm[name] = arm.get(name, 0.0) + amount
    if lost:
        texts = [NOT_PROVEN["lost"].format(arms=arm, what=uncounted(grown)) for arm, grown in lost.items()]
        return {FindingKind.SOURCES: wording.listed(texts)}
    played = [side for side in rounds if _was_driven(side) and len(side.requests)]
    unchecked: dict[str, list[str]] = {}
    for side in played:
        if not sources_checked(side):
            unchecked.setdefault(side.arm, []).append(str(side.index))
    counts = Counter(side.arm for side in played)
    arms = [
        arm if len(indices) == counts[arm] else f"{arm} in round {wording.listed(indices)}"
        for arm, indices in sorted(unchecked.items())
    ]
    return {FindingKind.SOURCES: NOT_PROVEN["unchecked"].format(arms=", ".join(arms))} if arms else {}
