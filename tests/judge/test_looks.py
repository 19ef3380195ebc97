"""Early stopping: boundaries of t paths, spent over the looks as alpha * (k / n) ** 2."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from kvbench.judge.boundary_table import BOUNDARIES, TABLE_PATHS
from kvbench.judge.looks import SEED, Look, boundaries, multiplier, nominal_level, simulate_boundaries

PUBLISHED = [18, 8.9, 5.9, 4.6, 3.9, 3.5, 3.2, 2.9, 2.8, 2.6]
"""For looks 3 to 12, one-sided 2.5 %."""


def test_boundaries_for_three_to_twelve_rounds_are_the_published_ones() -> None:
    found = boundaries(0.025, 3, 12)
    assert found == pytest.approx(PUBLISHED, rel=0.02)


def test_the_first_look_is_exact() -> None:
    assert boundaries(0.025, 3, 12)[0] == pytest.approx(stats.t.isf(0.025 * (3 / 12) ** 2, 2), abs=5e-4)


def test_a_fixed_number_of_rounds_gives_the_plain_t() -> None:
    assert boundaries(0.025, 6, 6) == (pytest.approx(stats.t.isf(0.025, 5)),)


@pytest.mark.parametrize("entry", [(0.025, 3, 6), (0.0125, 3, 8)])
def test_the_table_is_what_the_simulation_gives(entry: tuple[float, int, int]) -> None:
    again = simulate_boundaries(*entry, paths=TABLE_PATHS, seed=SEED)
    assert BOUNDARIES[entry] == pytest.approx(again, abs=6e-4)


def test_every_entry_falls_from_look_to_look_and_is_stricter_for_a_smaller_level() -> None:
    for (alpha, first, last), entry in BOUNDARIES.items():
        assert len(entry) == last - first + 1
        assert list(entry) == sorted(entry, reverse=True)
        if alpha < 0.025:
            assert all(np.array(entry) > np.array(BOUNDARIES[0.025, first, last]))


def test_what_is_not_in_the_table_is_simulated_and_close_to_it() -> None:
    assert (0.025, 4, 7) not in BOUNDARIES
    found = boundaries(0.025, 4, 7)
    assert len(found) == 4
    assert found[0] == pytest.approx(stats.t.isf(0.025 * (4 / 7) ** 2, 3))
    small = simulate_boundaries(0.025, 3, 12, paths=2**16, seed=1)
    assert small == pytest.approx(BOUNDARIES[0.025, 3, 12], rel=0.06)


def test_too_small_a_level_for_the_paths_is_never_reached() -> None:
    assert simulate_boundaries(1e-6, 3, 5, paths=2**10, seed=1)[1] == float("inf")


def test_a_true_effect_at_the_limit_crosses_as_often_as_the_level_says() -> None:
    """40,000 paths that may stop at any of the looks 3 to 12: 2.5 % cross, give or take three standard errors."""
    rng = np.random.default_rng(5)
    values = rng.standard_normal((40_000, 12))
    crossed = np.zeros(len(values), dtype=bool)
    for k, boundary in zip(range(3, 13), boundaries(0.025, 3, 12), strict=True):
        t = values[:, :k].mean(axis=1) / (values[:, :k].std(axis=1, ddof=1) / np.sqrt(k))
        crossed |= t > boundary
    assert crossed.mean() == pytest.approx(0.025, abs=3 * np.sqrt(0.025 / 40_000))


class TestLook:
    def test_nothing_is_decided_before_the_first_look(self) -> None:
        assert multiplier(0.025, Look(2, 3, 12)) is None
        assert nominal_level(0.025, Look(2, 3, 12)) is None

    def test_one_round_has_no_spread(self) -> None:
        assert multiplier(0.025, Look(1, 1, 1)) is None
        assert not Look(1, 1, 3).decides

    def test_one_round_carries_an_exact_bound_when_it_is_the_plan(self) -> None:
        assert nominal_level(0.025, Look(1, 1, 1)) == 0.025
        assert nominal_level(0.025, Look(1, 1, 3)) is None

    def test_each_look_has_its_own_boundary(self) -> None:
        entry = BOUNDARIES[0.025, 3, 12]
        assert multiplier(0.025, Look(3, 3, 12)) == entry[0]
        assert multiplier(0.025, Look(5, 3, 12)) == entry[2]
        assert multiplier(0.025, Look(12, 3, 12)) == entry[-1]

    def test_a_first_look_of_one_begins_at_two(self) -> None:
        look = Look(2, 1, 2)
        assert look.first_decision == 2
        assert multiplier(0.025, look) == pytest.approx(stats.t.isf(0.025, 1))

    def test_more_rounds_than_planned_spend_the_whole_level(self) -> None:
        look = Look(4, 3, 3)
        assert look.final == 4
        assert multiplier(0.025, look) == boundaries(0.025, 3, 4)[1]

    def test_the_nominal_level_is_the_tail_beyond_the_boundary(self) -> None:
        look = Look(12, 3, 12)
        assert nominal_level(0.025, look) == pytest.approx(stats.t.sf(BOUNDARIES[0.025, 3, 12][-1], 11))
        assert nominal_level(0.025, Look(3, 3, 3)) == pytest.approx(0.025)
