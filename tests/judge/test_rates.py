"""Goodput, throughput, and exact bounds of counted shares."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from kvbench.judge.errors import requests_for_error_rate
from kvbench.judge.latency import RoundLatencies
from kvbench.judge.phases import measured_end, measured_seconds, measured_start, within_measured
from kvbench.judge.rates import (
    good_requests,
    ratio_bounds,
    share_lower,
    share_upper,
    tokens_in_time,
    untold_targets,
)
from tests.judge.build import arm_round, request_rows, workload
from tests.judge.change import fail


class TestExactBounds:
    def test_no_failure_in_five_hundred_leaves_seven_tenths_of_a_per_cent(self) -> None:
        assert share_upper(0, 500, 0.025) == pytest.approx(0.00735, abs=5e-5)
        assert share_lower(0, 500, 0.025) == 0.0

    @given(st.integers(0, 60), st.integers(1, 60), st.floats(0.001, 0.2))
    def test_are_those_of_clopper_and_pearson(self, hits: int, more: int, alpha: float) -> None:
        trials = hits + more
        upper, lower = share_upper(hits, trials, alpha), share_lower(hits, trials, alpha)
        assert stats.binom.cdf(hits, trials, upper) == pytest.approx(alpha, rel=1e-6)
        if hits:
            assert stats.binom.sf(hits - 1, trials, lower) == pytest.approx(alpha, rel=1e-6)

    def test_all_or_nothing_has_the_widest_bound_on_its_side(self) -> None:
        assert share_upper(5, 5, 0.025) == 1.0
        assert share_lower(5, 5, 0.025) == pytest.approx(0.025 ** (1 / 5))
        assert (share_lower(0, 0, 0.025), share_upper(0, 0, 0.025)) == (0.0, 1.0)

    def test_a_ratio_of_rare_events_is_bounded_by_how_they_fall_on_the_arms(self) -> None:
        low, high = ratio_bounds((20, 1000), (10, 1000), 0.025, 0.025)
        share = stats.binomtest(20, 30).proportion_ci(0.95, method="exact")
        assert low == pytest.approx(share.low / (1 - share.low))
        assert high == pytest.approx(share.high / (1 - share.high))

    def test_a_ratio_allows_for_unequal_numbers_of_requests(self) -> None:
        even, uneven = (
            ratio_bounds((20, 1000), (10, 1000), 0.025, 0.025),
            ratio_bounds((20, 500), (10, 1000), 0.025, 0.025),
        )
        assert uneven == pytest.approx((2 * even[0], 2 * even[1]))

    def test_a_baseline_without_failures_leaves_the_ratio_unbounded(self) -> None:
        low, high = ratio_bounds((5, 1000), (0, 1000), 0.025, 0.025)
        assert low > 0
        assert high == math.inf

    def test_a_ratio_of_nothing_tried_is_no_number(self) -> None:
        assert all(map(math.isnan, ratio_bounds((0, 0), (3, 1000), 0.025, 0.025)))

    @pytest.mark.parametrize(("limit", "requests"), [(0.001, 3688), (0.02, 183), (0.01, 368)])
    def test_how_many_clean_requests_prove_a_rate(self, limit: float, requests: int) -> None:
        assert requests_for_error_rate(limit, 0.025) == requests
        assert share_upper(0, requests, 0.025) <= limit < share_upper(0, requests - 1, 0.025)

    def test_takes_as_many_times_more_as_a_failing_turn_takes_along(self) -> None:
        assert requests_for_error_rate(0.001, 0.025, taken=5.5) == 20_279
        assert share_upper(0, 20_279 / 5.5, 0.025) <= 0.001 < share_upper(0, 20_278 / 5.5, 0.025)


class TestGoodput:
    def good(self, targets: dict[str, float], **rows: object) -> int:
        load = workload(classes={"long": {"suffix_tokens": 64, "output_tokens": 5, "targets": targets}})
        requests, tokens = request_rows([0.1, 1.0, 3.0], gaps=[0.01, 0.2, 0.01], **rows)  # type: ignore[arg-type]
        return good_requests(RoundLatencies(arm_round("a", 1, requests, tokens), 60.0), load, "all")

    @pytest.mark.parametrize(
        ("targets", "good"),
        [
            ({}, 3),
            ({"ttft": 1.5}, 2),
            ({"itl": 0.1}, 2),
            ({"tpot": 0.1}, 2),
            ({"e2e": 1.5}, 1),
            ({"ttft": 1.5, "itl": 0.1}, 1),
        ],
    )
    def test_counts_requests_that_met_every_target(self, targets: dict[str, float], good: int) -> None:
        assert self.good(targets) == good

    def test_a_target_is_met_when_it_is_reached_exactly(self) -> None:
        load = workload(classes={"long": {"suffix_tokens": 64, "output_tokens": 5, "targets": {"ttft": 1.0}}})
        requests, tokens = request_rows([1.0], start_s=0, span_s=0)
        assert good_requests(RoundLatencies(arm_round("a", 1, requests, tokens), 60.0), load, "all") == 1

    def test_one_slow_gap_misses_the_itl_target(self) -> None:
        load = workload(classes={"long": {"suffix_tokens": 64, "output_tokens": 5, "targets": {"itl": 0.1}}})
        requests, tokens = request_rows([1.0], gaps=0.01)
        tokens.loc[3:, "t_s"] += 1.0
        assert good_requests(RoundLatencies(arm_round("a", 1, requests, tokens), 60.0), load, "all") == 0

    def test_a_failed_request_is_offered_and_not_good(self) -> None:
        requests, tokens = request_rows([0.1] * 3)
        round_ = RoundLatencies(arm_round("a", 1, fail(requests, [1]), tokens), 60.0)
        assert good_requests(round_, workload(), "all") == 2

    def test_a_request_whose_user_left_is_offered_and_not_good(self) -> None:
        requests, tokens = request_rows([0.1] * 3, status=["ok", "aborted", "ok"])
        round_ = RoundLatencies(arm_round("a", 1, requests, tokens), 60.0)
        assert good_requests(round_, workload(), "all") == 2
        assert tokens_in_time(round_, workload(), "all") == 10

    def untold(self, requests: pd.DataFrame, tokens: pd.DataFrame, **targets: float) -> tuple[int, int]:
        """Good requests, and those of which it is not known."""
        load = workload(classes={"long": {"suffix_tokens": 64, "output_tokens": 5, "targets": targets}})
        round_ = RoundLatencies(arm_round("a", 1, requests, tokens), 60.0)
        return good_requests(round_, load, "all"), untold_targets(round_, load, "all")

    def test_gaps_that_were_not_recorded_meet_no_target(self) -> None:
        requests, tokens = request_rows([0.1] * 3)
        assert self.untold(requests, tokens[tokens["id"] != 1], itl=0.1) == (2, 1)
        assert self.untold(requests, tokens[tokens["id"] != 1], ttft=0.2) == (3, 0)
        requests = requests.astype({"output_tokens_received": float})
        requests.loc[2, "output_tokens_received"] = np.nan
        assert self.untold(requests, tokens, tpot=0.1) == (2, 1)

    def test_an_answer_of_one_token_has_no_gap_to_be_late(self) -> None:
        for asked, received in ((1, 1), (5, 1)):
            requests, tokens = request_rows([0.1] * 3, output_tokens_asked=asked, output_tokens_received=received)
            assert self.untold(requests, tokens[tokens["index"] == 0], itl=0.1, tpot=0.1) == (3, 0)

    def test_an_answer_without_a_token_is_not_good_and_that_is_known(self) -> None:
        requests, tokens = request_rows([0.1] * 3)
        requests.loc[1, ["first_token_s", "last_token_s"]] = np.nan
        requests.loc[1, "output_tokens_received"] = 0
        assert self.untold(requests, tokens[tokens["id"] != 1], itl=0.1) == (2, 0)

    def test_every_class_has_its_own_targets(self) -> None:
        load = workload(
            classes={
                "a": {"suffix_tokens": 1, "output_tokens": 5, "targets": {"ttft": 0.5}},
                "b": {"suffix_tokens": 1, "output_tokens": 5, "targets": {"ttft": 2.0}},
            }
        )
        requests, tokens = request_rows([1.0, 1.0, 1.0], classes=["a", "b", "elsewhere"])
        round_ = RoundLatencies(arm_round("a", 1, requests, tokens), 60.0)
        assert [good_requests(round_, load, name) for name in ("a", "b", "all")] == [0, 1, 2]


class TestThroughput:
    def test_counts_tokens_that_arrived_within_measured_phases(self) -> None:
        requests, tokens = request_rows([1.0, 1.0], classes=["a", "b"])
        tokens.loc[:1, "t_s"] = 200.0
        tokens.loc[2, "t_s"] = 9.9
        round_ = RoundLatencies(arm_round("a", 1, requests, tokens), 60.0)
        assert [tokens_in_time(round_, workload(), name) for name in ("a", "b", "all")] == [2, 5, 7]


class TestPhases:
    def test_of_a_workload_with_a_pause_in_the_middle(self) -> None:
        load = workload(
            phases=[
                {"name": "warm", "for": 10, "measured": False},
                {"name": "one", "for": 20},
                {"name": "pause", "for": 5, "measured": False},
                {"name": "two", "for": 30},
            ]
        )
        assert (measured_start(load), measured_end(load), measured_seconds(load)) == (10.0, 65.0, 50.0)
        moments = np.array([9.9, 10.0, 29.9, 30.0, 34.9, 35.0, 64.9, 65.0])
        assert within_measured(moments, load).tolist() == [False, True, True, False, False, True, True, False]
