"""Plays truths in virtual time, judges them, and says of each whether the verdict is right. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from kvbench.engine.emulated.virtual import simulate
from kvbench.errors import KvbenchError
from kvbench.judge.evidence import ArmRound, Comparison, RoundPair
from kvbench.judge.judge import judge
from kvbench.judge.verdict import CandidateVerdict, Outcome, Status
from kvbench.selftest.setting import BLOCK_TOKENS, MAX_MODEL_LEN, RULES, WORKLOAD, profile
from kvbench.selftest.truths import Truth
from kvbench.spec.profile import Profile
from kvbench.workload.build import build_schedule
from kvbench.workload.schedule import Schedule

__all__ = ["Checked", "check", "check_all", "exit_code", "judged"]

STANDS_FOR: dict[Outcome, Status] = {
    Outcome.GO: "pass",
    Outcome.INCONCLUSIVE: "unknown",
    Outcome.NO_GO: "fail",
    Outcome.INVALID: "fail",
}
"""The status of the rule that a verdict of this kind rests on."""


@dataclass(frozen=True)
class Checked:
    """A truth and what the judge made of it."""

    truth: Truth
    got: Outcome
    rule: str | None
    """The expected rule or finding that led to the expected verdict; None: none of them did."""
    reasons: tuple[str, ...]

    @property
    def right(self) -> bool:
        """Whether the verdict is an expected one, and an expected rule led to it."""
        return self.rule is not None

    @property
    def expected(self) -> str:
        """`NO_GO|INCONCLUSIVE`."""
        return "|".join(outcome.value for outcome in self.truth.expected)

    @property
    def text(self) -> str:
        """The truth, and what is wrong with what came of it."""
        if self.right:
            return self.truth.text
        why = f": {self.reasons[0]}" if self.reasons else ""
        named = " or ".join(self.truth.rules)
        return f"{self.truth.text}; must be {self.expected} by {named}, but is {self.got.value}{why}"


def check_all(truths: Iterable[Truth]) -> Iterator[Checked]:
    """One result after the other, as soon as it is known."""
    return map(check, truths)


def check(truth: Truth) -> Checked:
    """Judge one truth and look for its rule."""
    verdict = judged(truth)
    rule = _named_by(truth, verdict) if verdict.verdict in truth.expected else None
    return Checked(truth, verdict.verdict, rule, tuple(verdict.reasons))


def _named_by(truth: Truth, verdict: CandidateVerdict) -> str | None:
    statuses = {rule.rule: rule.status for rule in verdict.rules}
    wanted = STANDS_FOR[verdict.verdict]
    return next((name for name in truth.rules if statuses.get(name) == wanted), None)


def exit_code(results: Sequence[Checked]) -> int:
    """0 when every verdict is right; else 4, as for any measurement that cannot be trusted."""
    return 0 if results and all(result.right for result in results) else KvbenchError.exit_code


def judged(truth: Truth) -> CandidateVerdict:
    """The verdict on a comparison in virtual time. The same truth always gets the same one."""
    baseline, candidate = profile("base", (), truth.in_baseline), profile("tier", truth.tiers, truth.inject)
    pairs = [
        RoundPair(
            index, _played(baseline, index) if truth.in_baseline else _sound(index), _played(candidate, index)
        )
        for index in range(1, truth.rounds + 1)
    ]
    rounds = RULES.rounds.model_copy(update={"min": truth.rounds, "max": truth.rounds})
    return judge(
        Comparison(
            baseline=baseline,
            candidate=candidate,
            workload=WORKLOAD,
            rules=RULES.model_copy(update={"rounds": rounds}),
            pairs=tuple(pairs),
            rounds_planned=truth.rounds,
        )
    )


def _played(arm: Profile, index: int) -> ArmRound:
    return simulate(_schedule(index), arm, label=f"{arm.name}-{index}").arm_round(arm.name, index)


@lru_cache
def _schedule(index: int) -> Schedule:
    return build_schedule(
        WORKLOAD, index, block_tokens=BLOCK_TOKENS, capacities_tokens=None, max_model_len=MAX_MODEL_LEN
    )


@lru_cache
def _sound(index: int) -> ArmRound:
    """A round of the baseline into which nothing is injected: the same for every truth."""
    return _played(profile("base", (), {}), index)
