"""Lengths, pauses and popularity come out as the file asks."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from kvbench.errors import InputError
from kvbench.spec.bounds import LONGEST_S, MOST_TOKENS
from kvbench.spec.workload import Empirical, Geometric, LogNormal, ThinkLogNormal, Uniform, Zipf
from kvbench.workload.lengths import length_sampler, think_sampler
from kvbench.workload.popularity import member_sampler, weighted_sampler, zipf_weights
from kvbench.workload.randomness import Stream

_ALARM = 1e-4


def draws(length, count: int = 20_000) -> list[int]:
    draw = length_sampler(length, Stream(2, "lengths"))
    return [draw() for _ in range(count)]


def test_a_number_is_itself_and_draws_nothing() -> None:
    stream = Stream(1, "n")
    assert length_sampler(17, stream)() == 17
    assert stream.uniform() == Stream(1, "n").uniform()


@settings(max_examples=50, deadline=None)
@given(low=st.integers(1, 50), width=st.integers(0, 50), seed=st.integers(0, 99))
def test_uniform_stays_within_both_ends(low: int, width: int, seed: int) -> None:
    draw = length_sampler(Uniform(uniform=(low, low + width)), Stream(seed, "u"))
    assert all(low <= draw() <= low + width for _ in range(50))


def test_uniform_reaches_every_value_alike() -> None:
    values = draws(Uniform(uniform=(3, 12)))
    assert stats.chisquare([values.count(v) for v in range(3, 13)]).pvalue > _ALARM


def test_lognormal_has_the_median_and_p95_asked_for() -> None:
    values = draws(LogNormal.model_validate({"lognormal": {"median": 400, "p95": 1600}}))
    for quantile, limit in ((0.5, 400), (0.95, 1600)):
        below = sum(v <= limit for v in values)
        low, high = stats.binom(len(values), quantile).ppf([_ALARM / 2, 1 - _ALARM / 2])
        assert low <= below <= high + len(values) * 0.001  # rounding moves at most half a token over
    assert min(draws(LogNormal.model_validate({"lognormal": {"median": 0.1, "p95": 1}}))) == 1


def test_a_lognormal_without_spread_is_its_median() -> None:
    assert set(draws(LogNormal.model_validate({"lognormal": {"median": 64, "p95": 64}}), 100)) == {64}


@pytest.mark.parametrize("mean", [1.0, 1.5, 5.0, 40.0])
def test_geometric_has_its_mean_and_shape(mean: float) -> None:
    values = draws(Geometric.model_validate({"geometric": {"mean": mean}}))
    deviation = (mean * (mean - 1)) ** 0.5
    assert abs(sum(values) / len(values) - mean) <= 4 * deviation / len(values) ** 0.5
    assert abs(values.count(1) / len(values) - 1 / mean) < 0.02
    assert min(values) >= 1


def test_empirical_draws_the_files_values_with_replacement() -> None:
    values = draws(Empirical(empirical=Path("lengths.txt"), values=(10, 20, 20, 30)))
    assert (
        stats.chisquare([values.count(10), values.count(20), values.count(30)], [5000, 10000, 5000]).pvalue > _ALARM
    )
    assert set(values) == {10, 20, 30}


def test_an_empirical_length_without_values_is_refused() -> None:
    with pytest.raises(InputError, match=r"lengths\.txt: no lengths were read"):
        length_sampler(Empirical(empirical=Path("lengths.txt")), Stream(1, "x"))


def test_pauses_are_scaled() -> None:
    shape = ThinkLogNormal.model_validate({"lognormal": {"median": "30s", "p95": "5m"}})
    real, played = (think_sampler(shape, scale, Stream(4, "think")) for scale in (1.0, 0.1))
    pauses = [(real(), played()) for _ in range(2000)]
    assert all(b == pytest.approx(a / 10) for a, b in pauses)
    low, high = stats.binom(2000, 0.95).ppf([_ALARM / 2, 1 - _ALARM / 2])
    assert low <= sum(a <= 300 for a, _ in pauses) <= high
    assert think_sampler(5.0, 0.5, Stream(1, "x"))() == 2.5
    assert think_sampler(None, 1.0, Stream(1, "x"))() == 0.0


@settings(max_examples=20, deadline=None, derandomize=True)
@given(count=st.integers(2, 40), exponent=st.floats(0, 2), seed=st.integers(0, 10_000))
def test_zipf_shares_are_those_of_zipf(count: int, exponent: float, seed: int) -> None:
    draw = member_sampler(Zipf(zipf=exponent), count, Stream(seed, "zipf"))
    seen = [0] * count
    for _ in range(3000):
        seen[draw()] += 1
    total = sum(rank**-exponent for rank in range(1, count + 1))
    for rank, times in enumerate(seen, start=1):
        low, high = stats.binom(3000, rank**-exponent / total).ppf([1e-7, 1 - 1e-7])
        assert low <= times <= high


def test_uniform_popularity_and_weights() -> None:
    draw = member_sampler("uniform", 8, Stream(6, "pool"))
    seen = [0] * 8
    for _ in range(16_000):
        seen[draw()] += 1
    assert stats.chisquare(seen).pvalue > _ALARM
    assert zipf_weights(4, 1.0) == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4])
    choose = weighted_sampler([0.7, 0.2, 0.1], Stream(6, "mix"))
    picks = [choose() for _ in range(10_000)]
    assert stats.chisquare([picks.count(i) for i in range(3)], [7000, 2000, 1000]).pvalue > _ALARM


def test_no_draw_is_longer_than_what_a_file_may_say() -> None:
    wide = LogNormal.model_validate({"lognormal": {"median": 1e8, "p95": 1e9}})
    assert max(draws(wide)) == max(draws(Geometric.model_validate({"geometric": {"mean": 1e9}}))) == MOST_TOKENS
    pause = think_sampler(
        ThinkLogNormal.model_validate({"lognormal": {"median": "1us", "p95": "365d"}}), 2.0, Stream(1, "think")
    )
    assert max(pause() for _ in range(1000)) == 2.0 * LONGEST_S
