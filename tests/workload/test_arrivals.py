"""Arrivals are the process that was asked for, at the rate that was asked for, also while the rate moves."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from kvbench.errors import InputError
from kvbench.spec.workload import Arrivals, Phase
from kvbench.workload.arrivals import arrival_times, constant, gamma, poisson
from kvbench.workload.randomness import Stream
from kvbench.workload.rates import RateProfile, RateSpan, lay_out_phases, rate_profile

_ALARM = 1e-4

rates = st.floats(0.01, 1000)
spans = st.lists(st.tuples(st.floats(0.1, 500), rates, rates), min_size=1, max_size=5)


def profile_of(parts: list[tuple[float, float, float]]) -> RateProfile:
    start, result = 0.0, []
    for length, low, high in parts:
        result.append(RateSpan(start, start + length, low, high))
        start += length
    return RateProfile(result)


def expected_until(profile: RateProfile, t_s: float) -> float:
    """The integral of the rate, written down independently of its inverse."""
    total = 0.0
    for span in profile.spans:
        length, part = span.end_s - span.start_s, min(max(t_s - span.start_s, 0.0), span.end_s - span.start_s)
        total += part * span.start_rate + (span.end_rate - span.start_rate) / length * part * part / 2
    return total


def phases(*specs: dict[str, object]) -> list[Phase]:
    return [Phase.model_validate({"name": f"p{index}", **spec}) for index, spec in enumerate(specs)]


@settings(max_examples=50, deadline=None)
@given(parts=spans, share=st.floats(0, 0.999999))
def test_time_change_inverts_the_expected_count(parts, share) -> None:
    profile = profile_of(parts)
    expected = profile.expected * share
    t_s = profile.time_of(expected)
    assert 0 <= t_s < profile.spans[-1].end_s
    assert expected_until(profile, t_s) == pytest.approx(expected, rel=1e-7, abs=1e-7 * profile.expected)


def test_expected_count_is_the_integral_of_the_rate() -> None:
    profile = profile_of([(10, 2, 2), (30, 2, 12)])
    assert profile.expected == pytest.approx(integrate.quad(lambda t: 2 + 10 * t / 30, 0, 30)[0] + 20)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 1000), cv=st.floats(0.2, 4))
def test_times_ascend_within_the_round(seed: int, cv: float) -> None:
    profile = profile_of([(20, 1, 1), (20, 1, 6), (5, 0.5, 0.5)])
    stream = Stream(seed, "t")
    for times in (poisson(profile, stream), constant(profile), gamma(profile, cv, stream)):
        assert all(a <= b for a, b in pairwise(times))
        assert all(0 <= t < 45 for t in times)


def test_poisson_counts_are_poisson_in_every_part_of_a_ramp() -> None:
    # given a ramp from 2/s to 10/s over 20 s, cut in four
    profile, edges = profile_of([(20, 2, 10)]), [0, 5, 10, 15, 20]
    counts: list[list[int]] = [[] for _ in range(4)]
    for seed in range(400):
        times = poisson(profile, Stream(seed, "ramp"))
        for part in range(4):
            counts[part].append(sum(edges[part] <= t < edges[part + 1] for t in times))
    # then each part's total over 400 rounds lies within the exact bounds of a Poisson count, and so does its spread
    for part, values in enumerate(counts):
        mean = expected_until(profile, edges[part + 1]) - expected_until(profile, edges[part])
        low, high = stats.poisson(400 * mean).ppf([_ALARM / 2, 1 - _ALARM / 2])
        assert low <= sum(values) <= high
        dispersion = sum((value - mean) ** 2 for value in values) / mean
        assert _ALARM / 2 < stats.chi2(400).cdf(dispersion) < 1 - _ALARM / 2


def test_a_poisson_ramp_has_exponential_gaps_in_operational_time() -> None:
    profile = profile_of([(50, 10, 10), (300, 10, 60), (100, 60, 5)])
    times = poisson(profile, Stream(11, "ramp"))
    positions = [expected_until(profile, t) for t in times]
    gaps = [b - a for a, b in pairwise([0.0, *positions])]
    assert stats.kstest(gaps, stats.expon().cdf).pvalue > _ALARM
    given_the_count = [position / profile.expected for position in positions]
    assert stats.kstest(given_the_count, stats.uniform().cdf).pvalue > _ALARM


@pytest.mark.parametrize("other", ["constant", 0.8, 1.25, 2.0])
def test_that_test_of_exponential_gaps_rejects_another_process_of_the_same_rate(other) -> None:
    """Given as many arrivals of the same ramp, constant ones or gamma with that cv, nothing fitted."""
    profile = profile_of([(50, 10, 10), (300, 10, 60), (100, 60, 5)])
    stream = Stream(11, "ramp")
    times = constant(profile) if other == "constant" else gamma(profile, other, stream)
    assert len(times) == pytest.approx(profile.expected, rel=0.1)
    gaps = [b - a for a, b in pairwise([0.0, *(expected_until(profile, t) for t in times)])]
    assert stats.kstest(gaps, stats.expon().cdf).pvalue < _ALARM


def test_constant_arrivals_start_at_zero_and_keep_their_distance() -> None:
    assert constant(profile_of([(2, 4, 4)])) == pytest.approx([k / 4 for k in range(8)])


@settings(max_examples=50, deadline=None)
@given(length=st.integers(1, 300), rate=st.integers(1, 50))
def test_a_constant_rate_gives_exactly_rate_times_length(length: int, rate: int) -> None:
    assert len(constant(profile_of([(float(length), float(rate), float(rate))]))) == length * rate


def test_a_constant_ramp_is_even_in_expected_count() -> None:
    profile = profile_of([(60, 1, 9)])
    times = constant(profile)
    assert len(times) == 300
    assert [expected_until(profile, t) for t in times] == pytest.approx(range(300), abs=1e-9)


@pytest.mark.parametrize("cv", [0.25, 1.0, 2.5])
def test_gamma_gaps_have_the_asked_mean_and_variation(cv: float) -> None:
    profile = profile_of([(5000, 4, 4)])
    gaps = [b - a for a, b in pairwise(gamma(profile, cv, Stream(5, "gaps")))]
    asked = stats.gamma(1 / cv**2, scale=cv**2 / 4)
    assert stats.kstest(gaps, asked.cdf).pvalue > _ALARM


def test_that_test_of_gamma_gaps_tells_one_variation_from_another() -> None:
    gaps = [b - a for a, b in pairwise(gamma(profile_of([(5000, 4, 4)]), 2.0, Stream(5, "gaps")))]
    assert stats.kstest(gaps, stats.gamma(1 / 2.5**2, scale=2.5**2 / 4).cdf).pvalue < _ALARM
    assert stats.kstest(gaps, stats.expon(scale=1 / 4).cdf).pvalue < _ALARM


@pytest.mark.parametrize("cv", [0.3, 3.0])
def test_bursty_arrivals_are_stationary_from_the_start(cv: float) -> None:
    # A renewal process that starts with an ordinary gap would expect (cv² - 1) / 2 arrivals too many.
    counts = [len(gamma(profile_of([(20, 1, 1)]), cv, Stream(seed, "start"))) for seed in range(1500)]
    mean = sum(counts) / len(counts)
    error = math.sqrt(sum((c - mean) ** 2 for c in counts)) / len(counts)
    assert abs(mean - 20) < 4 * error
    assert 4 * error < abs(cv**2 - 1) / 2


@pytest.mark.parametrize(
    ("rate", "specs", "expected"),
    [
        (4, [{"for": 10}], [(4, 4)]),
        (4, [{"for": 10, "rate": 1}, {"for": 10}], [(1, 1), (4, 4)]),
        (4, [{"for": 10}, {"for": 10, "rate": {"to": 12}}, {"for": 5}], [(4, 4), (4, 12), (4, 4)]),
        (None, [{"for": 10, "rate": 2}, {"for": 10, "rate": {"to": 8}}, {"for": 5}], [(2, 2), (2, 8), (8, 8)]),
        (1, [{"for": 10, "rate": {"to": 3}}, {"for": 9, "rate": {"to": 1}}], [(1, 3), (3, 1)]),
    ],
)
def test_a_phase_takes_its_rate_from_itself_the_arrivals_or_the_phase_before(rate, specs, expected) -> None:
    profile = rate_profile(Arrivals.model_construct(process="poisson", rate=rate), phases(*specs))
    assert [(span.start_rate, span.end_rate) for span in profile.spans] == expected


@pytest.mark.parametrize("rate", [None, {"to": 5}])
def test_no_rate_to_start_from_is_the_users_error(rate) -> None:
    with pytest.raises(InputError, match=r"p0.*no rate to start from"):
        rate_profile(Arrivals.model_construct(process="poisson", rate=None), phases({"for": 10, "rate": rate}))


def test_phases_follow_each_other() -> None:
    laid = lay_out_phases(phases({"for": 20, "measured": False}, {"for": "2m"}))
    assert [(p.name, p.start_s, p.end_s, p.measured) for p in laid] == [("p0", 0, 20, False), ("p1", 20, 140, True)]


@pytest.mark.parametrize("process", ["poisson", "constant", "gamma"])
def test_the_named_process_is_used(process: str) -> None:
    arrivals = Arrivals.model_validate(
        {"process": {"gamma": {"cv": 2}} if process == "gamma" else process, "rate": 5}
    )
    times = arrival_times(arrivals, phases({"for": 10}), Stream(1, "x"))
    profile, stream = profile_of([(10, 5, 5)]), Stream(1, "x")
    direct = {"poisson": lambda: poisson(profile, stream), "constant": lambda: constant(profile)}
    assert times == direct.get(process, lambda: gamma(profile, 2, stream))()


def test_what_cannot_be_planned_is_refused() -> None:
    with pytest.raises(InputError, match="coefficient of variation"):
        arrival_times(
            Arrivals.model_construct(process="gamma", rate=1.0, gamma=None), phases({"for": 10}), Stream(1, "x")
        )
    with pytest.raises(InputError, match="more than 1000000"):
        arrival_times(Arrivals(process="poisson", rate=1e6), phases({"for": 10}), Stream(1, "x"))
