"""Quantiles of the driver's own lags."""

from __future__ import annotations

from array import array

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvbench.load.figures import LagHistogram


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
