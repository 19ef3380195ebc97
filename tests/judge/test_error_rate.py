"""Rules on the error rate: exact bounds of failures pooled over rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
from scipy import stats

from kvbench.judge.boundary_table import BOUNDARIES
from kvbench.judge.case import build_case
from kvbench.judge.evidence import RoundPair
from kvbench.judge.guardrails import judge_guardrails
from kvbench.judge.rates import ratio_bounds, share_upper
from tests.judge.ask import about, guardrail
from tests.judge.build import comparison, good_pairs, rules
from tests.judge.change import (
    fail,
    with_baseline,
    with_candidate,
)


class TestErrorRate:
    RULE: ClassVar = {"metric": "error_rate", "max": 0.02}

    def failing(self, failed: Sequence[int], n: int = 170) -> list[RoundPair]:
        pairs = good_pairs(len(failed), n=n)
        for place, count in enumerate(failed):
            pairs = with_candidate(pairs, place, requests=fail(pairs[place].candidate.requests, slice(0, count)))
        return pairs

    def test_without_a_failure_in_five_hundred_two_per_cent_are_safe(self) -> None:
        found = guardrail(self.failing([0, 0, 0]), self.RULE)
        assert found.status == "pass"
        assert found.decision_ci == pytest.approx((0.0, share_upper(0, 510, 0.025)))
        assert (found.baseline, found.candidate, found.effect, found.unit) == (0.0, 0.0, 0.0, "fraction")
        assert found.text == "error rate: 0 of 510 failed [0 %, 0.721 %]; at most 2 % asked for: safe"

    def test_says_what_it_is_about(self) -> None:
        found = guardrail(self.failing([0, 0, 0]), self.RULE | {"class": "long"})
        assert about(found) == ("r", "guardrail", "error_rate", None, "long", "fraction", 0.02)

    @pytest.mark.parametrize(
        ("failed", "status"), [((2, 0, 1), "pass"), ((3, 3, 2), "unknown"), ((9, 9, 9), "fail")]
    )
    def test_is_pooled_over_rounds(self, failed: Sequence[int], status: str) -> None:
        found = guardrail(self.failing(failed), self.RULE)
        assert found.status == status
        exact = stats.binomtest(sum(failed), 510).proportion_ci(0.95, method="exact")
        assert found.ci == pytest.approx((exact.low, exact.high))

    def test_while_looking_early_takes_a_wider_bound(self) -> None:
        found = guardrail(self.failing([0, 0, 0]), self.RULE, rounds=(3, 12))
        level = stats.t.sf(BOUNDARIES[0.025, 3, 12][0], 2)
        assert found.decision_ci == pytest.approx((0.0, share_upper(0, 510, level)))
        assert level == pytest.approx(0.025 / 16, rel=1e-3)

    def test_before_the_first_look_nothing_is_decided(self) -> None:
        found = guardrail(self.failing([0, 0]), self.RULE)
        assert (found.status, found.decision_ci) == ("unknown", None)

    def test_of_one_class(self) -> None:
        pairs = self.failing([9, 9, 9])
        pairs = [
            replace(
                p,
                candidate=replace(
                    p.candidate, requests=p.candidate.requests.assign(**{"class": ["a"] * 9 + ["b"] * 161})
                ),
            )
            for p in pairs
        ]
        pairs = [
            replace(p, baseline=replace(p.baseline, requests=p.baseline.requests.assign(**{"class": "b"})))
            for p in pairs
        ]
        found = guardrail(pairs, self.RULE | {"class": "b"})
        assert (found.status, found.candidate, found.class_) == ("pass", 0.0, "b")
        assert guardrail(pairs, self.RULE | {"class": "none"}).status == "unknown"

    def test_against_the_baseline(self) -> None:
        pairs = self.failing([30, 30, 30])
        for place in range(3):
            pairs = with_baseline(pairs, place, requests=fail(pairs[place].baseline.requests, slice(0, 10)))
        found = guardrail(pairs, {"metric": "error_rate", "max_ratio": 1.1})
        assert (found.status, found.effect) == ("fail", pytest.approx(3.0))
        assert "90 of 510 failed instead of 30 of 510, ratio [" in found.text

    def test_against_a_baseline_without_failures_is_unbounded(self) -> None:
        found = guardrail(self.failing([1, 0, 0]), {"metric": "error_rate", "max_ratio": 1.1})
        assert (found.status, found.effect, found.decision_ci, found.ci) == ("unknown", None, None, None)
        assert "unbounded" in found.text

    def test_how_many_more_rounds_an_open_ratio_asks_for(self) -> None:
        """As many failures a round in either arm."""
        pairs = self.failing([30, 30, 30])
        for place in range(3):
            pairs = with_baseline(pairs, place, requests=fail(pairs[place].baseline.requests, slice(0, 10)))
        run = comparison(pairs, rules(guardrails=[{"id": "r", "metric": "error_rate", "max_ratio": 2.0}]))
        (ruling,) = (found for found in judge_guardrails(build_case(run)) if found.result.rule == "r")
        assert ruling.result.status == "unknown"
        assert ruling.needed_units is not None
        least, most = ruling.needed_units
        assert 3 < least == most
        for rounds, proven in ((least - 1, False), (least, True)):
            low, _ = ratio_bounds((30 * rounds, 170 * rounds), (10 * rounds, 170 * rounds), 0.025, 0.025)
            assert (low > 2.0) is proven


class TestSessions:
    """A turn that fails cancels those after it: however many requests that are, it is one failure."""

    RULE: ClassVar = {"metric": "error_rate", "max": 0.02}

    def failing(self, sessions: int, *, turns: int = 10) -> list[RoundPair]:
        """In each of three rounds of 170 requests in sessions of ten turns, the last `turns` of some sessions."""
        pairs = good_pairs(3, n=170)
        for place, pair in enumerate(pairs):
            table = pair.candidate.requests.assign(session=np.arange(170) // 10)
            lost = (table["session"] < sessions) & (np.arange(170) % 10 >= 10 - turns)
            pairs = with_candidate(pairs, place, requests=fail(table, lost.to_numpy()))
        return pairs

    def test_a_failed_session_in_each_round_is_three_failures_and_not_thirty(self) -> None:
        found = guardrail(self.failing(1), self.RULE)
        assert found.status == "unknown"
        assert found.candidate == pytest.approx(30 / 510), "the rate is of all that failed"
        # As three failed sessions of fifty-one tell.
        exact = stats.binomtest(3, 51).proportion_ci(0.95, method="exact")
        assert found.ci == pytest.approx((exact.low, exact.high), rel=0.07)
        assert found.text.startswith("error rate: 30 of 510 (with the rest of their sessions; worth 3")

    def test_the_same_number_of_requests_each_for_itself_is_proof(self) -> None:
        found = guardrail(TestErrorRate().failing([10, 10, 10]), self.RULE)
        assert (found.status, found.candidate) == ("fail", pytest.approx(30 / 510))

    def test_many_failed_sessions_are_proof(self) -> None:
        assert guardrail(self.failing(8), self.RULE).status == "fail"

    def test_one_failure_each_is_as_many_failures_and_may_have_been_more(self) -> None:
        found = guardrail(self.failing(3, turns=1), self.RULE)
        exact = stats.binomtest(9, 510).proportion_ci(0.95, method="exact")
        assert found.ci == pytest.approx((exact.low, share_upper(9 / 5.5, 510 / 5.5, 0.025)))
        assert found.text.startswith(
            "error rate: 9 of 510 (a failure takes the rest of its session along; worth 93 independent requests) "
            "failed [0.81 %, 6.97 %]"
        )

    def test_no_failure_in_five_hundred_is_as_none_in_a_hundred_where_turns_take_others_along(self) -> None:
        found = guardrail(self.failing(0), self.RULE)
        assert (found.status, found.candidate) == ("unknown", 0.0)
        assert found.decision_ci == pytest.approx((0.0, share_upper(0, 510 / 5.5, 0.025)))

    def test_of_a_rate_of_exactly_the_limit_hardly_any_draw_is_safe(self) -> None:
        """Each turn fails with 0.37 % and takes those after it along: two per cent of requests fail. In 15 % of
        such runs nothing fails, and then as many independent requests would prove at most 0.72 %."""
        rng, draws, safe, clean = np.random.default_rng(11), 120, 0, 0
        pairs = self.failing(0)
        for _ in range(draws):
            drawn, failures = pairs, 0
            for place, pair in enumerate(pairs):
                lost = np.maximum.accumulate(rng.random((17, 10)) < 0.003676, axis=1).ravel()
                failures += int(lost.sum())
                drawn = with_candidate(drawn, place, requests=fail(pair.candidate.requests, lost))
            clean += not failures
            safe += guardrail(drawn, self.RULE).status == "pass"
        assert clean / draws == pytest.approx(0.155, abs=0.1)
        assert safe / draws <= 0.025 + 3 * (0.025 / draws) ** 0.5

    def test_how_many_more_rounds_heeds_them_as_well(self) -> None:
        """2 % take 183 independent requests without a failure, 1,005 in sessions of ten: six rounds of 170."""
        pairs = self.failing(0)
        run = comparison(pairs, rules(guardrails=[{"id": "r"} | self.RULE]))
        (ruling,) = (found for found in judge_guardrails(build_case(run)) if found.result.rule == "r")
        assert ruling.needed_units == (6, 6)

    def test_a_ratio_heeds_them_in_either_arm(self) -> None:
        pairs = self.failing(1)
        for place, pair in enumerate(pairs):
            pairs = with_baseline(pairs, place, requests=fail(pair.baseline.requests, slice(0, 3)))
        found = guardrail(pairs, {"metric": "error_rate", "max_ratio": 1.1})
        assert (found.status, found.effect) == ("unknown", pytest.approx(30 / 9))
        assert "worth 3" in found.text

    def test_a_few_failed_sessions_against_none_are_no_breach_of_a_ratio(self) -> None:
        """Three sessions of fifty-one against none of fifty-one is what chance does every eighth time."""
        found = guardrail(self.failing(1), {"metric": "error_rate", "max_ratio": 1.1})
        assert found.status == "unknown"
        assert found.ci is None
        low, _ = ratio_bounds((3, 51), (0, 51), 0.025, 0.025)
        assert f", ratio [{low:.2g}" in found.text
