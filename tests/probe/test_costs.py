"""Costs per token and break-even lengths, from points whose truth is known."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.plan.costs import CostLine, break_even, fit_cost

LENGTHS = (512, 1024, 2048, 4096)


def points(base_s: float, per_token_s: float, *, noise: float, seed: int, n: int = 12) -> tuple[list, list, list]:
    """Tokens, seconds and groups of `n` points at every length; noise is relative."""
    random = np.random.default_rng(seed)
    tokens = [length for _ in range(n) for length in LENGTHS]
    seconds = [(base_s + per_token_s * t) * float(np.exp(random.normal(0, noise))) for t in tokens]
    return tokens, seconds, [index // len(LENGTHS) for index in range(len(tokens))]


def line(base_s: float, per_token_s: float, *, noise: float = 0.02, seed: int = 1, n: int = 12) -> CostLine:
    fitted = fit_cost(*points(base_s, per_token_s, noise=noise, seed=seed, n=n))
    assert fitted is not None
    return fitted


@settings(max_examples=25, deadline=None)
@given(base_s=st.floats(1e-3, 1.0), per_token_s=st.floats(1e-7, 1e-3), seed=st.integers(0, 2**31))
def test_without_noise_the_costs_are_found_exactly(base_s: float, per_token_s: float, seed: int) -> None:
    fitted = line(base_s, per_token_s, noise=0.0, seed=seed)
    assert np.isclose(fitted.per_token_s, per_token_s, rtol=1e-6, atol=1e-12)
    assert np.isclose(fitted.base_s, base_s, rtol=1e-6, atol=1e-9)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    inside = 0
    for seed in range(150):
        fitted = line(0.05, 2e-5, noise=0.1, seed=seed)
        assert fitted.ci is not None
        inside += fitted.ci[0] <= 2e-5 <= fitted.ci[1]
    assert 0.9 <= inside / 150 <= 0.99


def test_hiccups_of_the_machine_do_not_move_the_cost() -> None:
    tokens, seconds, groups = points(0.05, 2e-5, noise=0.02, seed=3)
    hiccups = [s + (5.0 if index % 12 == 5 else 0.0) for index, s in enumerate(seconds)]
    fitted = fit_cost(tokens, hiccups, groups)
    assert fitted is not None
    assert abs(fitted.per_token_s - 2e-5) < 2e-6


def test_another_unit_of_time_gives_the_same_cost_in_that_unit() -> None:
    tokens, seconds, groups = points(0.05, 2e-5, noise=0.05, seed=4)
    in_seconds, in_ms = fit_cost(tokens, seconds, groups), fit_cost(tokens, [s * 1e3 for s in seconds], groups)
    assert in_seconds is not None
    assert in_ms is not None
    assert np.isclose(in_ms.per_token_s, in_seconds.per_token_s * 1e3)
    assert np.allclose(in_ms.ci, np.array(in_seconds.ci) * 1e3)


def test_points_of_one_group_are_not_taken_for_independent() -> None:
    tokens, seconds, _ = points(0.05, 2e-5, noise=0.1, seed=5)
    assert fit_cost(tokens, seconds, [0] * len(tokens)).ci is None  # type: ignore[union-attr]


def test_attention_bends_the_line_and_the_slope_is_the_mean_one() -> None:
    tokens = [length for _ in range(6) for length in LENGTHS]
    fitted = fit_cost(tokens, [0.01 + 1e-4 * t + 1e-8 * t * t for t in tokens], curved=True)
    assert fitted is not None
    assert np.isclose(fitted.per_token_s, 1e-4 + 1e-8 * (LENGTHS[0] + LENGTHS[-1]))


def test_one_length_has_no_cost_per_token() -> None:
    assert fit_cost([512, 512, 512], [0.1, 0.1, 0.1]) is None


def test_the_break_even_is_where_the_lines_cross() -> None:
    even = break_even(line(0.15, 1e-5), line(0.05, 1.1e-4, seed=2), smallest=128, longest=4096)
    low, high = even.ci
    assert even.tokens is not None
    assert low is not None
    assert high is not None
    assert low <= even.tokens <= high
    assert low <= 1000 <= high
    assert abs(even.tokens - 1000) < 200


def test_a_hit_that_always_pays_pays_from_the_smallest_on() -> None:
    even = break_even(line(0.05, 1e-6), line(0.05, 1e-3, seed=2), smallest=128, longest=4096)
    assert even.tokens == 128
    assert even.ci[1] is not None


def test_a_break_even_is_proven_nowhere_where_either_of_the_lines_has_no_interval() -> None:
    """Given computing that was seen in four groups of samples, which give a parabola no interval."""
    tokens, seconds, groups = points(0.05, 1.1e-4, noise=0.02, seed=2, n=4)
    curved = fit_cost(tokens, seconds, groups, curved=True)
    assert curved is not None
    assert curved.ci is None
    straight = line(0.15, 1e-5)
    for hit, computed in ((straight, curved), (curved, straight)):
        assert break_even(hit, computed, smallest=128, longest=4096).ci == (128, None), "anything may be"


def test_a_hit_that_never_pays_has_no_break_even() -> None:
    even = break_even(line(0.05, 1e-3), line(0.05, 1e-4, seed=2), smallest=128, longest=4096)
    assert even.tokens is None
    assert even.ci == (None, None)
