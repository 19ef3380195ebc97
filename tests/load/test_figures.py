"""Quantiles of the driver's own lags."""

from __future__ import annotations

import gc
import os
import time
from array import array

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvbench.load.clock import Clock
from kvbench.load.figures import Figures, LagHistogram
from kvbench.load.stream import Completion
from kvbench.load.tokens import Placed


@given(st.lists(st.integers(200, 10**10), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_quantiles_are_right_within_a_step(lags: list[int], q: float) -> None:
    histogram = LagHistogram()
    for start in range(0, len(lags), 7):
        histogram.add(array("q", lags[start : start + 7]))
    told = histogram.quantile_s(q)
    true = float(np.quantile(np.array(lags), q, method="inverted_cdf")) / 1e9
    assert told is not None
    assert true * 0.999 <= told <= true * 1.03
    assert histogram.total == len(lags)


def test_nothing_measured_is_not_zero() -> None:
    assert LagHistogram().quantile_s(0.5) is None


def test_a_collection_of_garbage_is_a_pause_that_is_told() -> None:
    before = list(gc.callbacks)
    figures = Figures(Clock())
    figures.begin()
    assert figures.summary()["gc_pause_max_s"] == 0.0
    gc.collect()
    pause_s = figures.summary()["gc_pause_max_s"]
    assert pause_s is not None
    assert 0 < pause_s < 10
    figures.end()
    assert gc.callbacks == before


def an_answer(placed: Placed) -> Completion:
    return Completion(placed, None, "", "length", 1, None, placed.events, None)


def test_what_came_before_time_zero_does_not_count() -> None:
    """Given answers that primed the tiers, merged and read late, then the round begins with none of that."""
    clock = Clock()
    figures = Figures(clock)
    for _ in range(40):
        clock.lags_ns.append(np.array([3_000_000_000], np.int64))
        figures.answered(an_answer(Placed([5, 5], 1, True, 5, 2, [90_000_000])), failed=False)
    figures.begin()
    figures.answered(an_answer(Placed([5, 6], 0, True, 5, 2, [])), failed=False)
    told = figures.summary()
    assert (told["merged_events_share"], told["multi_token_events"], told["read_lag_max_s"]) == (0.0, 0.0, None)
    assert told["timestamp_error_p99_s"] == 0.0
    figures.end()


def test_cpu_and_steal_are_told_per_second_of_the_round() -> None:
    figures = Figures(Clock())
    figures.begin()
    until = time.monotonic() + 0.05
    while time.monotonic() < until:
        pass
    told = figures.summary()
    assert told["client_cpu_cores"] is not None
    assert 0 < told["client_cpu_cores"] <= 8
    assert told["host_steal_cores"] is None or 0 <= told["host_steal_cores"] <= os.cpu_count()
    figures.end()
