"""Canary text of one tenant in an answer to another: exact, one is enough, whatever else is known by then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from kvbench.judge import wording
from kvbench.judge.case import Case, Ruling
from kvbench.judge.columns import numbers
from kvbench.judge.evidence import ArmRound
from kvbench.judge.verdict import RuleResult, Status

__all__ = ["CANARIES", "judge_canaries", "leaked"]

CANARIES = "canaries"
COLUMN = "foreign_canary"


@dataclass(frozen=True)
class _Looked:
    """What an arm's answers showed, all rounds and phases together."""

    answers: int = 0
    """Those that were looked through."""
    leaks: int = 0
    first: str = ""
    """Where the first leak is."""


def judge_canaries(case: Case) -> list[Ruling]:
    """The rule of every workload that has canaries; none without. It has no level and belongs to no family."""
    if case.workload.canaries is None:
        return []
    pairs = case.comparison.pairs
    candidate = _look([pair.candidate for pair in pairs])
    baseline = _look([pair.baseline for pair in pairs])
    name = case.comparison.candidate.name
    status, text = _status(candidate, baseline, name)
    return [Ruling(RuleResult(rule=CANARIES, kind="guardrail", status=status, text=text))]


def _status(candidate: _Looked, baseline: _Looked, name: str) -> tuple[Status, str]:
    if candidate.leaks:
        told = f"{candidate.leaks:,} of {wording.count(candidate.answers, 'answer')} of {name}"
        too = f"; so have {baseline.leaks:,} of {baseline.answers:,} of the baseline" if baseline.leaks else ""
        have = "has" if candidate.leaks == 1 else "have"
        return "fail", f"{told} {have} text of another tenant in it: {candidate.first}{too}"
    if not candidate.answers:
        return "unknown", f"no answer of {name} could be looked through for text of other tenants"
    clean = f"no text of another tenant in {wording.count(candidate.answers, 'answer')} of {name}"
    if baseline.leaks:
        told = f"{baseline.leaks:,} of {wording.count(baseline.answers, 'answer')}"
        return "unknown", f"{clean}, but the baseline leaked in {told}: {baseline.first}"
    return "pass", clean


def leaked(rounds: Sequence[ArmRound]) -> bool:
    """Whether text of another tenant came out in them. No further round would change that."""
    return _look(rounds).leaks > 0


def _look(rounds: Sequence[ArmRound]) -> _Looked:
    answers = leaks = 0
    first = ""
    for recorded in rounds:
        table = recorded.requests
        if COLUMN not in table:
            continue
        owners = numbers(table, COLUMN)
        answers += int(np.sum(~np.isnan(owners)))
        found = np.flatnonzero(owners >= 0)
        leaks += len(found)
        if len(found) and not first:
            first = _place(table.iloc[int(found[0])], recorded)
    return _Looked(answers, leaks, first)


def _place(row: pd.Series, recorded: ArmRound) -> str:
    return (
        f"request {row['id']} of tenant {row['tenant']:.0f} in round {recorded.index} was told that of tenant "
        f"{row[COLUMN]:.0f}"
    )
