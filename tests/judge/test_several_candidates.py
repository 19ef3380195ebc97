"""Several candidates in one verdict, and when more rounds would change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest

from kvbench.judge.evidence import Comparison
from kvbench.judge.judge import combine, decided, judge
from kvbench.judge.verdict import CandidateVerdict, Outcome
from tests.judge.ask import noisy_pairs
from tests.judge.build import comparison, good_pairs, rules


@cache
def outcome(of: str) -> CandidateVerdict:
    runs: dict[str, Comparison] = {
        "GO": comparison(good_pairs()),
        "NO_GO": comparison(good_pairs(ratio=3.0, hits=0.0)),
        "INCONCLUSIVE": comparison(noisy_pairs()),
        "INVALID": comparison(good_pairs(), arm_differences=("model",)),
    }
    found = judge(runs[of])
    assert found.verdict == of
    return found


class TestCombine:
    @pytest.mark.parametrize(
        ("several", "worst"),
        [
            (["GO", "GO"], "GO"),
            (["GO", "INCONCLUSIVE"], "INCONCLUSIVE"),
            (["NO_GO", "INCONCLUSIVE", "GO"], "NO_GO"),
            (["NO_GO", "INVALID"], "INVALID"),
        ],
    )
    def test_the_worst_is_on_top(self, several: Sequence[str], worst: str) -> None:
        verdicts = [outcome(of) for of in several]
        combined = combine(verdicts)
        assert (combined.verdict, combined.exit_code) == (worst, Outcome(worst).exit_code)
        assert combined.candidates == verdicts
        assert combined.reasons == next(v for v in verdicts if v.verdict == worst).reasons

    def test_one_candidate_stands_alone(self) -> None:
        assert combine([outcome("GO")]).candidates is None

    def test_none_is_an_error(self) -> None:
        with pytest.raises(ValueError, match=r"^there is no verdict to combine$"):
            combine([])

    @pytest.mark.parametrize(("of", "code"), [("GO", 0), ("NO_GO", 1), ("INCONCLUSIVE", 3), ("INVALID", 4)])
    def test_exit_codes(self, of: str, code: int) -> None:
        assert outcome(of).exit_code == code


class TestDecided:
    @pytest.mark.parametrize(
        ("of", "final"), [("GO", True), ("NO_GO", True), ("INCONCLUSIVE", False), ("INVALID", True)]
    )
    def test_more_rounds_change_nothing_about_these(self, of: str, final: bool) -> None:
        assert decided(outcome(of), rules()) is final
        assert decided(combine([outcome(of)]), rules()) is final

    def test_too_few_rounds_so_far_are_made_good_by_more(self) -> None:
        verdict = judge(comparison(good_pairs(2)))
        assert verdict.verdict == "INVALID"
        assert not decided(verdict, rules())
        broken = judge(comparison(good_pairs(2), arm_differences=("model",)))
        assert decided(broken, rules())

    def test_every_candidate_must_be_decided(self) -> None:
        assert not decided(combine([outcome("GO"), outcome("INCONCLUSIVE")]), rules())
        assert not decided(combine([outcome("NO_GO"), outcome("INCONCLUSIVE")]), rules())
        assert decided(combine([outcome("GO"), outcome("NO_GO")]), rules())
