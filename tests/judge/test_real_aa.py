"""The proof on the real engine: its margins are wide enough, and it fails when it must."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.judge.judge import combine, judge
from kvbench.judge.verdict import Outcome, Verdict
from tests.judge.build import COPY, comparison, good_pairs, same_pairs
from tests.judge.change import died, with_candidate
from tests.proofs.real_aa import COMPARISONS, GUARDED, MARGIN, WANTED, Judged, Recorded, arm_of, faults_of, rules

NAMES = [*GUARDED, *WANTED]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0.001, 2.0), min_size=len(NAMES), max_size=len(NAMES)))
def test_margins_are_never_less_than_asked(spreads: list[float]) -> None:
    noise = dict(zip(NAMES, spreads, strict=True))
    asked = rules(noise)
    for rule in (*asked.guardrails, *asked.benefits):
        if rule.id in noise:
            assert rule.max_ratio is not None
            log = abs(math.log(rule.max_ratio))
            assert MARGIN * noise[rule.id] <= log + 1e-12 <= MARGIN * noise[rule.id] + 0.0011


def the_same() -> Verdict:
    return combine([judge(comparison(same_pairs(), candidate=COPY))])


def judged(verdicts: list[Verdict]) -> list[Judged]:
    return [
        Judged(cast(Recorded, SimpleNamespace(number=number, arm=arm_of(number))), verdict)
        for number, verdict in enumerate(verdicts)
    ]


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ([], []),
        ([combine([judge(comparison(good_pairs()))])], ["comparison 1 is a GO"]),
        (
            2 * [combine([judge(comparison(with_candidate(good_pairs(), 0, events=(died(),), complete=False)))])],
            ["2 guardrails were breached, at most 1 may be"],
        ),
        ([combine([judge(comparison(good_pairs(2)))])], ["comparison 1 is INVALID"]),
    ],
    ids=["nothing", "a GO", "two breaches", "an invalid one"],
)
def test_what_does_not_hold_is_said(odd: list[Verdict], words: list[str]) -> None:
    plain = the_same()
    assert plain.verdict in (Outcome.NO_GO, Outcome.INCONCLUSIVE)
    found = faults_of(judged([*odd, *[plain] * (COMPARISONS - len(odd))]))
    assert len(found) == len(words)
    assert all(text.startswith(start) for text, start in zip(found, words, strict=True))


def test_one_breach_may_be_and_a_missing_comparison_may_not() -> None:
    one = combine([judge(comparison(with_candidate(good_pairs(), 0, events=(died(),), complete=False)))])
    assert faults_of(judged([one, *[the_same()] * (COMPARISONS - 1)])) == []
    assert faults_of(judged([the_same()])) == ["1 of 20 comparisons were recorded"]
