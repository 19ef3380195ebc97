"""Intervals from a handful of values, and how many rounds a question asks for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from kvbench.judge.boundary_table import BOUNDARIES
from kvbench.judge.looks import Look
from kvbench.judge.needed import BEYOND, MOST_UNITS, units_for_rate, units_needed
from kvbench.judge.paired import Levels, estimate

EVEN = Levels(0.025, 0.025)
VALUES = [0.1, 0.2, 0.4]


class TestEstimate:
    def test_with_a_fixed_number_of_rounds_both_intervals_are_the_plain_t(self) -> None:
        found = estimate(VALUES, Look(3, 3, 3), confidence=0.95, levels=EVEN)
        expected = stats.t.interval(0.95, 2, np.mean(VALUES), stats.sem(VALUES))
        assert found.mean == pytest.approx(np.mean(VALUES))
        assert found.spread == pytest.approx(np.std(VALUES, ddof=1))
        assert found.ci == pytest.approx(expected)
        assert found.decision == pytest.approx(expected)

    def test_while_looking_early_the_interval_that_decides_is_wider(self) -> None:
        found = estimate(VALUES, Look(3, 3, 12), confidence=0.95, levels=EVEN)
        width = BOUNDARIES[0.025, 3, 12][0] * stats.sem(VALUES)
        assert found.ci == pytest.approx(stats.t.interval(0.95, 2, np.mean(VALUES), stats.sem(VALUES)))
        assert found.decision == pytest.approx((found.mean - width, found.mean + width))

    def test_each_end_has_its_own_level(self) -> None:
        found = estimate(VALUES, Look(3, 3, 3), confidence=0.95, levels=Levels(0.01, 0.025))
        error = stats.sem(VALUES)
        assert found.decision == pytest.approx(
            (found.mean - stats.t.isf(0.01, 2) * error, found.mean + stats.t.isf(0.025, 2) * error)
        )

    def test_before_the_first_look_there_is_nothing_to_decide_with(self) -> None:
        found = estimate([0.1, 0.2], Look(2, 3, 12), confidence=0.95, levels=EVEN)
        assert found.ci is not None
        assert found.decision is None

    def test_a_boundary_that_is_never_reached_decides_nothing(self) -> None:
        levels = Levels(1e-9, 0.025)
        assert estimate([0.1, 0.2, 0.3, 0.35], Look(4, 3, 5), confidence=0.95, levels=levels).decision is None

    def test_one_value_has_no_interval(self) -> None:
        found = estimate([0.3], Look(1, 1, 1), confidence=0.95, levels=EVEN)
        assert (found.mean, found.ci, found.decision, found.degenerate) == (0.3, None, None, False)

    def test_no_value_has_no_mean(self) -> None:
        assert math.isnan(estimate([], Look(0, 3, 3), confidence=0.95, levels=EVEN).mean)

    def test_values_without_spread_were_not_measured(self) -> None:
        found = estimate([0.3] * 3, Look(3, 3, 3), confidence=0.95, levels=EVEN)
        assert found.degenerate
        assert (found.ci, found.decision) == (None, None)

    def test_values_made_of_counts_are_known_to_one_count(self) -> None:
        found = estimate([0.3] * 3, Look(3, 3, 3), confidence=0.95, levels=EVEN, resolution=0.01)
        assert found.decision == pytest.approx((0.3 - 4.30265 * 0.01 / 3**0.5, 0.3 + 4.30265 * 0.01 / 3**0.5))

    def test_values_that_are_known_to_a_step_may_agree_however_small_it_is(self) -> None:
        found = estimate([0.3] * 3, Look(3, 3, 3), confidence=0.95, levels=EVEN, resolution=1e-12)
        assert not found.degenerate
        assert found.decision == pytest.approx((0.3, 0.3))

    @given(st.permutations([0.1, 0.25, 0.3, 0.7, 0.2]))
    def test_order_does_not_matter(self, values: list[float]) -> None:
        found = estimate(values, Look(5, 3, 12), confidence=0.95, levels=EVEN)
        sorted_ = estimate(sorted(values), Look(5, 3, 12), confidence=0.95, levels=EVEN)
        assert found.decision == pytest.approx(sorted_.decision)


def settles(n: int, distance: float, spread: float, alpha: float) -> bool:
    return bool(stats.t.isf(alpha, n - 1) * spread / math.sqrt(n) <= distance)


class TestRoundsNeeded:
    @pytest.mark.parametrize(
        ("distance", "spread", "units", "alpha", "confidence"),
        [
            (0.1, 0.1, 3, 0.025, 0.95),
            (0.1, 0.1, 2, 0.025, 0.95),
            (0.5, 0.1, 6, 0.025, 0.95),
            (0.2, 0.15, 4, 0.005, 0.9),
            (5.0, 0.1, 6, 0.025, 0.95),
        ],
    )
    def test_is_a_range_because_a_spread_from_few_rounds_is_uncertain(
        self, distance: float, spread: float, units: int, alpha: float, confidence: float
    ) -> None:
        """Counted one by one, for both ends of the chi-square interval of the standard deviation."""
        tail, freedom = (1 - confidence) / 2, units - 1
        expected = []
        for quantile in (1 - tail, tail):
            likely = spread * math.sqrt(freedom / stats.chi2.ppf(quantile, freedom))
            expected.append(
                next((n for n in range(2, MOST_UNITS) if settles(n, distance, likely, alpha)), MOST_UNITS)
            )
        found = units_needed(distance, spread, units, alpha=alpha, confidence=confidence)
        assert found == tuple(expected)

    def test_the_side_of_the_limit_does_not_matter(self) -> None:
        assert units_needed(-0.1, 0.1, 5, alpha=0.025, confidence=0.95) == units_needed(
            0.1, 0.1, 5, alpha=0.025, confidence=0.95
        )

    def test_an_effect_at_the_limit_takes_more_than_any_number(self) -> None:
        assert units_needed(0.0, 0.1, 5, alpha=0.025, confidence=0.95) == BEYOND

    def test_the_upper_end_is_cut_off(self) -> None:
        needed = units_needed(0.02, 0.1, 3, alpha=0.025, confidence=0.95)
        assert needed is not None
        assert needed[0] < MOST_UNITS == needed[1]

    @pytest.mark.parametrize(("spread", "units"), [(0.0, 5), (math.nan, 5), (0.1, 1)])
    def test_without_a_spread_nothing_is_known(self, spread: float, units: int) -> None:
        assert units_needed(0.1, spread, units, alpha=0.025, confidence=0.95) is None

    def test_a_distance_that_is_no_number_has_no_answer(self) -> None:
        assert units_needed(math.inf, 0.1, 5, alpha=0.025, confidence=0.95) is None


class TestRoundsForARate:
    @pytest.mark.parametrize(
        ("failures", "units", "limit", "alpha", "rounds"),
        [
            (0, 3, 0.01, 0.025, 4),  # 0 failures prove 1 % from 368 requests on
            (0, 1, 0.01, 0.025, 4),
            (1, 1, 0.05, 0.025, 2),  # 2 of 200: bound 3.6 %
            (1, 1, 0.02, 0.025, 8),
            (2, 1, 0.01, 0.025, 6),
        ],
    )
    def test_the_same_rate_goes_on_until_its_bound_is_on_its_side(
        self, failures: int, units: int, limit: float, alpha: float, rounds: int
    ) -> None:
        """A hundred requests a round; whole failures, counted one round after the other."""
        each = failures / units

        def proven(n: int) -> bool:
            if each / 100 <= limit:
                return bool(stats.binom.cdf(each * n, 100 * n, limit) <= alpha)
            return bool(stats.binom.sf(each * n - 1, 100 * n, limit) <= alpha)

        assert units_for_rate(failures, 100 * units, units, limit, alpha=alpha) == (rounds, rounds)
        assert proven(rounds)
        assert not proven(rounds - 1) or rounds == 2

    def test_a_rate_at_the_limit_takes_more_than_any_number(self) -> None:
        assert units_for_rate(3, 300, 3, 0.01, alpha=0.025) == BEYOND

    @pytest.mark.parametrize(("trials", "units"), [(0, 3), (300, 0)])
    def test_nothing_tried_says_nothing(self, trials: int, units: int) -> None:
        assert units_for_rate(0, trials, units, 0.01, alpha=0.025) is None

    def test_one_request_is_something_tried(self) -> None:
        assert units_for_rate(0, 1, 1, 0.5, alpha=0.025) == (6, 6)
