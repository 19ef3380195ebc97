"""Latencies from tables: what counts, what a failure counts as, and what a sample can carry."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.judge.latency import RoundLatencies, Sample, carries
from tests.judge.build import OUTPUT, arm_round, request_rows
from tests.judge.change import fail, leave

TIMEOUT = 60.0


def latencies(requests: pd.DataFrame, tokens: pd.DataFrame, timeout: float = TIMEOUT) -> RoundLatencies:
    return RoundLatencies(arm_round("a", 1, requests, tokens), timeout)


class TestWhatASampleCanCarry:
    @pytest.mark.parametrize(
        ("n", "quantile", "carried"),
        [(300, 0.99, True), (299, 0.99, False), (30, 0.9, True), (29, 0.9, False), (6, 0.5, True), (5, 0.5, False)],
    )
    def test_three_requests_must_lie_beyond_the_quantile(self, n: int, quantile: float, carried: bool) -> None:
        assert carries(n, quantile) is carried


class TestQuantiles:
    @given(
        st.lists(st.floats(0, TIMEOUT), max_size=40),
        st.integers(0, 10),
        st.lists(st.floats(0, 1), min_size=1, max_size=4),
    )
    def test_are_those_of_all_values_with_failures_at_the_time_out(
        self, values: list[float], failed: int, wanted: list[float]
    ) -> None:
        sample = Sample(np.array(values), failed, len(values) + failed, TIMEOUT)
        found = sample.quantiles(*wanted)
        together = np.array([*values, *[TIMEOUT] * failed])
        if len(together):
            assert found == pytest.approx(np.quantile(together, wanted).tolist())
        else:
            assert np.isnan(found).all()

    def test_a_value_beyond_the_time_out_counts_at_it(self) -> None:
        assert Sample(np.array([1.0, 99.0]), 0, 2, TIMEOUT).quantiles(1.0) == [TIMEOUT]

    def test_two_samples_join_into_one(self) -> None:
        joined = Sample.pooled(
            [Sample(np.array([1.0]), 1, 2, TIMEOUT), Sample(np.array([3.0, 5.0]), 2, 3, TIMEOUT)]
        )
        assert (len(joined), joined.at_timeout, joined.requests) == (6, 3, 5)
        assert joined.quantiles(0.0, 0.4, 1.0) == [1.0, 5.0, TIMEOUT]


class TestDefinitions:
    """TTFT and E2E count from the intended time, `ttft_service` from the actual send."""

    def setup_method(self) -> None:
        requests, tokens = request_rows([1.0], gaps=0.5)
        requests["sent_s"] = requests["intended_s"] + 0.25
        self.round = latencies(requests, tokens)

    @pytest.mark.parametrize(
        ("metric", "seconds"), [("ttft", 1.0), ("ttft_service", 0.75), ("e2e", 3.0), ("tpot", 0.5), ("itl", 0.5)]
    )
    def test_of_one_request(self, metric: str, seconds: float) -> None:
        assert self.round.per_request(metric) == pytest.approx([seconds])
        assert self.round.sample(metric, "all").quantiles(0.5) == pytest.approx([seconds])

    def test_another_name_is_no_latency(self) -> None:
        with pytest.raises(ValueError, match="goodput is not a latency"):
            self.round.per_request("goodput")

    def test_itl_has_every_gap_and_counts_requests(self) -> None:
        sample = self.round.sample("itl", "all")
        assert (len(sample), sample.requests) == (OUTPUT - 1, 1)


class TestWhatCounts:
    def test_only_measured_requests(self) -> None:
        requests, tokens = request_rows([1.0, 2.0, 3.0], measured=[True, False, None])
        round_ = latencies(requests, tokens)
        assert len(round_) == 1
        assert round_.per_request("ttft") == pytest.approx([1.0])
        assert len(round_.sample("itl", "all")) == OUTPUT - 1

    def test_a_request_that_was_never_due_is_no_request(self) -> None:
        requests, tokens = request_rows([1.0, 2.0], status=["ok", "unsent"])
        assert len(latencies(requests, tokens)) == 1

    def test_classes_are_kept_apart_and_all_is_everything(self) -> None:
        requests, tokens = request_rows([1.0, 2.0, 4.0], classes=["a", "b", "b"], gaps=[0.1, 0.2, 0.4])
        round_ = latencies(requests, tokens)
        assert round_.classes == ("a", "b")
        assert round_.sample("ttft", "b").values == pytest.approx([2.0, 4.0])
        assert round_.sample("itl", "a").values == pytest.approx([0.1] * 4)
        assert round_.sample("itl", "b").requests == 2
        assert len(round_.sample("ttft", "all")) == 3
        assert len(round_.sample("ttft", "absent")) == 0

    def test_a_round_without_requests_has_no_values(self) -> None:
        round_ = latencies(*request_rows([]))
        assert len(round_) == 0
        assert len(round_.sample("itl", "all")) == 0
        assert np.isnan(round_.multi_token_event_share)


class TestFailures:
    """A failed request counts at the request time-out in every latency."""

    def setup_method(self) -> None:
        requests, tokens = request_rows([1.0] * 4)
        self.round = latencies(fail(requests, [0]), tokens[tokens["id"] != 0])

    @pytest.mark.parametrize("metric", ["ttft", "ttft_service", "e2e", "tpot", "itl"])
    def test_count_at_the_time_out(self, metric: str) -> None:
        sample = self.round.sample(metric, "all")
        assert sample.quantiles(1.0) == [TIMEOUT]
        assert sample.requests == 4
        assert self.round.per_request(metric)[0] == TIMEOUT

    def test_count_with_every_gap_they_should_have_had(self) -> None:
        sample = self.round.sample("itl", "all")
        assert sample.at_timeout == OUTPUT - 1
        assert len(sample) == 4 * (OUTPUT - 1)

    def test_tokens_that_came_before_the_failure_do_not_count(self) -> None:
        requests, tokens = request_rows([1.0] * 2)
        round_ = latencies(fail(requests, [0]), tokens)
        assert round_.sample("itl", "all").values == pytest.approx([0.02] * (OUTPUT - 1))

    def test_an_answer_without_a_token_is_no_answer(self) -> None:
        requests, tokens = request_rows([1.0, 2.0])
        requests.loc[0, "first_token_s"] = np.nan
        assert latencies(requests, tokens).per_request("ttft") == pytest.approx([TIMEOUT, 2.0])

    def test_one_token_asked_for_has_no_gap_to_fail(self) -> None:
        requests, tokens = request_rows([1.0, 1.0], output=1)
        round_ = latencies(fail(requests, [0]), tokens)
        assert len(round_.sample("itl", "all")) == 0
        assert len(round_.sample("tpot", "all")) == 0
        assert len(round_.sample("ttft", "all")) == 2


class TestUsersWhoLeave:
    """As planned, before the end of the answer: it is no failure, and only its TTFT was measured, or how long they
    waited for it."""

    def setup_method(self) -> None:
        requests, tokens = request_rows([1.0, 2.0, 3.0], status=["ok", "aborted", "ok"])
        self.round = latencies(leave(requests, [2], 1.5), tokens)

    def test_are_no_failures(self) -> None:
        assert self.round.failed.tolist() == [False, False, False]
        assert len(self.round) == 3

    @pytest.mark.parametrize(("metric", "waited"), [("ttft", 1.5), ("ttft_service", 1.499)])
    def test_have_a_ttft_when_a_token_came_and_a_wait_when_none_did(self, metric: str, waited: float) -> None:
        sample = self.round.sample(metric, "all")
        assert sample.values == pytest.approx([1.0, 2.0], abs=0.01)
        assert (sample.at_timeout, sample.requests, len(sample)) == (0, 3, 3)
        assert sample.waited == pytest.approx([waited])
        assert np.isnan(self.round.per_request(metric)).tolist() == [False, False, True]

    def test_are_never_left_out_of_a_quantile(self) -> None:
        """Of 1 s, 2 s and at least 1.5 s the median is 1.5 s at least; the third may be the time-out."""
        sample = self.round.sample("ttft", "all")
        assert sample.bounds(0.0, 0.5, 1.0) == [
            pytest.approx((1.0, 1.0)), pytest.approx((1.5, 2.0)), pytest.approx((2.0, TIMEOUT)),
        ]  # fmt: skip
        lowest, median, highest = sample.quantiles(0.0, 0.5, 1.0)
        assert lowest == pytest.approx(1.0)
        assert np.isnan([median, highest]).all()

    @given(
        st.lists(st.floats(0, TIMEOUT), max_size=20),
        st.lists(st.tuples(st.floats(0, TIMEOUT), st.floats(0, 1)), min_size=1, max_size=10),
        st.integers(0, 5),
        st.floats(0, 1),
    )
    def test_leave_a_quantile_between_its_bounds(
        self, values: list[float], left: list[tuple[float, float]], failed: int, wanted: float
    ) -> None:
        waited = np.array([wait for wait, _ in left])
        would_have = waited + np.array([rest for _, rest in left]) * (TIMEOUT - waited)
        known = Sample(np.array(values), failed, len(values) + failed + len(left), TIMEOUT, waited)
        ((low, high),) = known.bounds(wanted)
        truth = np.quantile([*values, *would_have, *[TIMEOUT] * failed], wanted)
        assert low - 1e-9 <= truth <= high + 1e-9

    def test_whose_wait_is_not_known_waited_nothing_at_least(self) -> None:
        requests, tokens = request_rows([1.0, 2.0])
        requests = leave(requests, [0, 1], 90.0)
        requests.loc[1, "ended_s"] = np.nan
        assert latencies(requests, tokens).sample("ttft", "all").waited == pytest.approx([TIMEOUT, 0.0])

    def test_join_with_those_of_other_rounds(self) -> None:
        joined = Sample.pooled([self.round.sample("ttft", "all"), self.round.sample("ttft", "all")])
        assert (len(joined), joined.requests, joined.waited.tolist()) == (6, 6, pytest.approx([1.5, 1.5]))

    @pytest.mark.parametrize("metric", ["itl", "tpot", "e2e"])
    def test_have_nothing_else(self, metric: str) -> None:
        sample = self.round.sample(metric, "all")
        assert (sample.at_timeout, sample.requests) == (0, 1)
        assert np.isnan(self.round.per_request(metric)).tolist() == [False, True, True]

    @pytest.mark.parametrize("metric", ["itl", "tpot", "e2e"])
    def test_beyond_the_first_token_those_who_were_to_stay_are_told_of(self, metric: str) -> None:
        """Given four requests, the users of two to leave: one had its answer before, one failed before."""
        requests, tokens = request_rows([1.0, 2.0, 3.0, 4.0], leaves=[False, True, True, False])
        round_ = latencies(fail(requests, [2]), tokens)
        assert round_.leaves.tolist() == [False, True, True, False]
        sample = round_.sample(metric, "all")
        assert len(sample.values) == 2 * (OUTPUT - 1 if metric == "itl" else 1)
        assert sample.requests == 3, "a failure counts whoever waited for it"
        assert round_.counted(metric).tolist() == [True, False, True, True]
        assert len(round_.sample("ttft", "all")) == 4
        assert np.isfinite(round_.per_request(metric)).all(), "whether it met its targets is known"


class TestTokens:
    def test_may_come_in_any_order(self) -> None:
        requests, tokens = request_rows([1.0, 2.0, 0.5], gaps=[0.1, 0.2, 0.3])
        shuffled = tokens.sample(frac=1, random_state=3)
        expected, found = (latencies(requests, table).sample("itl", "all").values for table in (tokens, shuffled))
        assert sorted(found) == pytest.approx(sorted(expected))

    def test_of_interleaved_requests_belong_to_their_own(self) -> None:
        requests, tokens = request_rows([1.0, 1.0], gaps=[0.1, 0.2])
        by_time = tokens.sort_values("t_s")
        assert latencies(requests, by_time).per_request("itl") == pytest.approx([0.1, 0.2])

    def test_of_one_request_in_the_wrong_order_are_put_right(self) -> None:
        requests, tokens = request_rows([1.0], gaps=0.1)
        assert latencies(requests, tokens.iloc[::-1]).sample("itl", "all").values == pytest.approx([0.1] * 4)

    def test_of_other_requests_are_left_out(self) -> None:
        requests, tokens = request_rows([1.0] * 3)
        round_ = latencies(requests[requests["id"] == 1], tokens)
        assert len(round_.sample("itl", "all")) == OUTPUT - 1

    def test_are_found_whatever_the_ids(self) -> None:
        requests, tokens = request_rows([1.0, 1.0], gaps=[0.1, 0.3])
        for table in (requests, tokens):
            table["id"] = table["id"].map({0: -5, 1: 10**12})
        assert latencies(requests, tokens).per_request("itl") == pytest.approx([0.1, 0.3])

    def test_that_arrive_together_are_one_gap_and_zero_gaps(self) -> None:
        requests, tokens = request_rows([1.0], gaps=0.2, multi_token_events=1)
        tokens.loc[2, "t_s"] = tokens.loc[1, "t_s"]
        round_ = latencies(requests, tokens)
        assert sorted(round_.sample("itl", "all").values) == pytest.approx([0.0, 0.2, 0.2, 0.4])
        assert round_.multi_token_event_share == pytest.approx(1 / 4)

    def test_a_gap_ends_when_its_token_came(self) -> None:
        requests, tokens = request_rows([1.0], gaps=0.5)
        round_ = latencies(requests, tokens)
        gaps, ended = round_.gaps, round_.gap_ends()
        first = requests["first_token_s"].iloc[0]
        assert ended == pytest.approx(first + np.array([0.5, 1.0, 1.5, 2.0]))
        assert gaps.values == pytest.approx([0.5] * 4)
        assert gaps.counts.tolist() == [4]
