"""Draws are the same everywhere, and have the distributions that their names say."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from kvbench.workload.randomness import Identities, Stream, cosine, exp, ln

_ALARM = 1e-4
"""Seeds are fixed: a test passes always or never, and at this level chance hardly ever picks a bad seed."""


def test_a_stream_is_pinned_for_ever() -> None:
    stream = Stream(1, "pinned")
    draws = [
        stream.uniform().hex(),
        stream.exponential().hex(),
        stream.normal().hex(),
        stream.gamma(0.25).hex(),
        stream.gamma(4.0).hex(),
        stream.below(1000),
    ]
    assert draws == [
        "0x1.31b0e28548320p-6",
        "0x1.5ea0af333dfb7p+0",
        "0x1.7b2f30864acebp-3",
        "0x1.f4b33c81c667fp-1",
        "0x1.a0e0ce3940d07p+0",
        696,
    ]


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**63), label=st.text(), other=st.text())
def test_streams_depend_on_seed_and_label_and_nothing_else(seed: int, label: str, other: str) -> None:
    first = [Stream(seed, label).uniform() for _ in range(2)]
    assert first[0] == first[1]
    assert (Stream(seed, other).uniform() == first[0]) == (other == label)
    assert Stream(seed + 1, label).uniform() != first[0]


def test_labels_are_not_run_together() -> None:
    assert Stream(1, "a", "b").uniform() != Stream(1, "ab").uniform()
    assert Stream(1, "1").uniform() != Stream(1, 1).uniform()


@pytest.mark.parametrize(
    ("draw", "distribution"),
    [
        (lambda s: s.uniform(), stats.uniform()),
        (lambda s: s.exponential(), stats.expon()),
        (lambda s: s.normal(), stats.norm()),
        (lambda s: s.gamma(0.04), stats.gamma(0.04)),
        (lambda s: s.gamma(0.5), stats.gamma(0.5)),
        (lambda s: s.gamma(1.0), stats.gamma(1.0)),
        (lambda s: s.gamma(9.0), stats.gamma(9.0)),
    ],
)
def test_draws_follow_their_distribution(draw, distribution) -> None:
    stream = Stream(7, "distribution")
    assert stats.kstest([draw(stream) for _ in range(20_000)], distribution.cdf).pvalue > _ALARM


def test_below_is_uniform() -> None:
    stream = Stream(3, "below")
    counts = [0] * 13
    for _ in range(26_000):
        counts[stream.below(13)] += 1
    assert stats.chisquare(counts).pvalue > _ALARM


@settings(max_examples=50, deadline=None)
@given(st.floats(1e-300, 1e300))
def test_ln_agrees_with_the_c_library(x: float) -> None:
    assert ln(x) == pytest.approx(math.log(x), rel=1e-15, abs=1e-15)


@settings(max_examples=50, deadline=None)
@given(st.floats(-700, 700))
def test_exp_agrees_with_the_c_library(x: float) -> None:
    assert exp(x) == pytest.approx(math.exp(x), rel=1e-15)


@given(st.floats(-1000, 1000))
def test_cosine_agrees_with_the_c_library(turns: float) -> None:
    assert cosine(turns) == pytest.approx(math.cos(2 * math.pi * math.fmod(turns, 1.0)), abs=1e-15)


def test_cosine_is_exact_where_it_can_be_and_pinned_elsewhere() -> None:
    assert [cosine(quarter / 4) for quarter in range(-4, 5)] == [1, 0, -1, 0, 1, 0, -1, 0, 1]
    assert [cosine(turns).hex() for turns in (0.1, 0.3, 7.77)] == [
        "0x1.9e3779b97f4a8p-1",
        "-0x1.3c6ef372fe94ep-2",
        "0x1.00aeb5da15b80p-3",
    ]


def test_identities_differ_by_seed_label_and_index() -> None:
    names = {
        Identities(seed, *label)(*index)
        for seed in (1, 2)
        for label in (("a",), ("b",), ("a", "b"))
        for index in ((0,), (1,), (0, 0), (0, 1), (1, 0))
    }
    assert len(names) == 2 * 3 * 5
    assert all(0 <= name < 2**63 for name in names)
    assert Identities(1, "pinned")(5) == 1671232096612123252
