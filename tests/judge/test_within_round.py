"""What stands beside the decision and decides nothing: the block bootstrap of one round, the sign-flip test."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.judge.latency import RoundLatencies
from kvbench.judge.paired import sign_flip
from kvbench.judge.within_round import within_round
from tests.judge.ask import guardrail
from tests.judge.build import arm_round, good_pairs, request_rows, ttfts
from tests.judge.change import fail

TIMEOUT_S = 60.0


def ends(
    values: np.ndarray, quantile: float = 0.9, class_: str = "all", failed: int = 0, metric: str = "ttft"
) -> tuple[float, float] | None:
    requests, tokens = request_rows(values, classes=["long", "short"] * (len(values) // 2))
    table: pd.DataFrame = fail(requests, slice(0, failed)) if failed else requests
    latencies = RoundLatencies(arm_round("base", 1, table, tokens), TIMEOUT_S)
    return within_round(latencies, metric, class_, quantile, confidence=0.95)


class TestBlockBootstrap:
    def test_of_independent_requests_is_as_wide_as_order_statistics_are(self) -> None:
        values = ttfts(4000)
        low, high = ends(values) or (0.0, 0.0)
        ranks = 0.9 + np.array([-1.96, 1.96]) * (0.9 * 0.1 / 4000) ** 0.5
        assert (low, high) == pytest.approx(tuple(np.quantile(values, ranks)), rel=0.03)
        assert low < np.quantile(values, 0.9) < high

    def test_is_wider_where_neighbours_are_slow_together(self) -> None:
        values = ttfts(400)
        together = np.sort(values.reshape(20, 20), axis=None)
        apart, clumped = ends(values) or (0.0, 0.0), ends(together) or (0.0, 0.0)
        assert np.log(clumped[1] / clumped[0]) > 2 * np.log(apart[1] / apart[0])

    def test_of_the_same_round_is_the_same(self) -> None:
        assert ends(ttfts(100)) == ends(ttfts(100))

    def test_is_about_one_class(self) -> None:
        values = np.where(np.arange(200) % 2, 5.0, 1.0) * ttfts(200, spread=0.05)
        (slow, _), (_, fast) = ends(values, 0.5, "short") or (0, 0), ends(values, 0.5, "long") or (0, 0)
        assert fast < 2 < slow

    def test_counts_a_failed_request_at_the_time_out(self) -> None:
        assert ends(ttfts(400), 0.9, failed=200) == (TIMEOUT_S, TIMEOUT_S)

    def test_needs_two_requests_a_block(self) -> None:
        assert ends(ttfts(38)) is None
        assert ends(ttfts(40)) is not None

    def test_is_not_told_of_gaps(self) -> None:
        assert ends(ttfts(400), metric="itl") is None


class TestWindows:
    def test_of_a_latency_have_the_ends_of_both_arms(self) -> None:
        for row in guardrail(good_pairs(), {"metric": "ttft", "quantile": 0.9, "max_ratio": 1.5}).windows:
            for arm in ("baseline", "candidate"):
                assert float(row[f"{arm}_low_s"] or 0) < float(row[arm] or 0) < float(row[f"{arm}_high_s"] or 0)

    def test_of_anything_else_have_none(self) -> None:
        (first, *_) = guardrail(good_pairs(), {"metric": "goodput", "min": 1.0}).windows
        assert not [name for name in first if name.endswith("_s")]


class TestSignFlip:
    @given(st.lists(st.integers(-200, 200).map(lambda n: n / 64), min_size=6, max_size=7))
    @settings(max_examples=25, deadline=None)
    def test_is_the_share_of_flips_that_go_as_far(self, values: list[float]) -> None:
        flips = product((1, -1), repeat=len(values))
        sums = [abs(sum(sign * value for sign, value in zip(signs, values, strict=True))) for signs in flips]
        assert sign_flip(values) == pytest.approx(np.mean([each >= abs(sum(values)) - 1e-9 for each in sums]))

    @pytest.mark.parametrize("count", [0, 3, 5, 15])
    def test_is_not_told_of_so_few_or_so_many(self, count: int) -> None:
        assert sign_flip([0.1] * count) is None

    def test_of_six_rounds_that_agree_is_the_least_there_is(self) -> None:
        assert sign_flip([0.1, 0.2, 0.1, 0.3, 0.2, 0.1]) == 2 / 64
        assert sign_flip([-0.1] * 14) == 2 / 2**14
        assert sign_flip([1.0, -1.0] * 3) == 1.0

    def test_stands_beside_a_ratio_of_enough_rounds(self) -> None:
        rule = {"metric": "ttft", "quantile": 0.5, "max_ratio": 1.5}
        assert guardrail(good_pairs(3), rule).sign_flip_p is None
        assert guardrail(good_pairs(6), rule, rounds=(6, 6)).sign_flip_p == 2 / 64
        budget = {"metric": "ttft", "quantile": 0.5, "max": 9.0}
        assert guardrail(good_pairs(6), budget, rounds=(6, 6)).sign_flip_p is None
