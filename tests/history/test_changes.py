"""Changes of level are found where they are and not in noise, whatever the distribution."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.history.changes import FEWEST, LEVEL, change_points, likeliest_change


@settings(max_examples=15, deadline=None)
@given(before=st.integers(6, 30), after=st.integers(6, 30), seed=st.integers(0, 1000))
def test_a_clear_step_is_found_within_a_night_of_its_place(before: int, after: int, seed: int) -> None:
    noise = np.random.default_rng(seed).normal(0, 0.1, before + after)
    found = change_points(noise + np.repeat([0.0, 1.0], [before, after]))
    assert any(abs(change.index - before) <= 1 for change in found)


def test_two_steps_are_both_found() -> None:
    noise = np.random.default_rng(1).normal(0, 0.1, 45)
    found = change_points(noise + np.repeat([0.0, 1.0, 0.2], 15))
    assert [change.index for change in found] == [15, 30]


def test_noise_alone_changes_at_most_as_often_as_the_level_says() -> None:
    random = np.random.default_rng(7)
    alarms = sum(bool(change_points(random.normal(0, 1, 20))) for _ in range(400))
    # 400 series at 1 %: more than 11 has a chance below 0.1 % (binomial).
    assert alarms <= 11, f"{alarms} of 400 at {LEVEL}"


@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(-5, 5, allow_subnormal=False).map(lambda x: round(x, 3)), min_size=FEWEST, max_size=40))
def test_how_sure_a_change_is_depends_on_the_order_of_the_values_alone(values: list[float]) -> None:
    plain = np.array(values)
    assert likeliest_change(plain).p_value == likeliest_change(np.exp(plain)).p_value


@settings(max_examples=20, deadline=None)
@given(st.integers(FEWEST, 60), st.floats(0.1, 100))
def test_a_level_series_has_no_change(count: int, value: float) -> None:
    assert change_points(np.full(count, value)) == []


def test_one_wild_night_is_no_change() -> None:
    values = np.ones(20) + np.random.default_rng(3).normal(0, 0.01, 20)
    values[11] = 1000.0
    assert change_points(values) == []


def test_too_few_nights_say_nothing() -> None:
    assert change_points(np.array([1.0] * 4 + [9.0] * 5)) == []
    assert change_points(np.array([])) == []
