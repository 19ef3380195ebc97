"""The numbers behind the charts."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.record.tables import METRICS
from kvbench.report.achieved import achieved
from kvbench.report.data import ReportData
from kvbench.report.series import (
    SOURCE_COUNTER,
    Dots,
    Sample,
    itl_sample,
    measured,
    source_rates,
    thin_curve,
    thin_dots,
    ttft_dots,
    ttft_sample,
)
from tests.report.rounds import frame

LIMIT = 60


def counters(**values: list[float | None]) -> pd.DataFrame:
    rows: list[dict[str, object]] = [
        {"t_s": float(t), "name": SOURCE_COUNTER, "labels": json.dumps({"source": source}), "value": value}
        for source, each in values.items()
        for t, value in enumerate(each)
        if value is not None
    ]
    return frame(rows, METRICS)


def test_rates_are_the_growth_of_the_counters_by_source() -> None:
    rates = source_rates(counters(device=[0, 100, 100], computed=[50, 50, 80]))
    assert rates is not None
    assert rates.t_s.tolist() == [0, 1, 2]
    assert list(rates.rates) == ["device", "computed"]
    assert rates.rates["device"].tolist() == [100, 0]
    assert rates.rates["computed"].tolist() == [0, 30]


def test_a_counter_that_falls_leaves_a_gap_not_a_zero() -> None:
    rates = source_rates(counters(device=[100, 200, 30, 40]))
    assert rates is not None
    np.testing.assert_array_equal(rates.rates["device"], [100, np.nan, 10])


def test_without_counters_there_are_no_rates() -> None:
    assert source_rates(counters()) is None
    assert source_rates(counters(device=[1.0])) is None


def test_long_rounds_are_binned_without_losing_tokens() -> None:
    rates = source_rates(counters(device=[float(10 * t) for t in range(1001)]), bins=100)
    assert rates is not None
    assert len(rates.t_s) <= 102
    assert float((rates.rates["device"] * np.diff(rates.t_s)).sum()) == 10_000


def test_priming_and_unmeasured_phases_do_not_count(go: ReportData) -> None:
    requests = go.rounds["baseline"][0].requests
    kept = measured(requests)
    assert set(kept["phase"]) == {"steady"}
    assert 0 < len(kept) < len(requests)


def test_ttft_counts_failed_requests_among_all(go: ReportData) -> None:
    requests = go.rounds["baseline"][0].requests.copy()
    steady = requests.index[(requests["phase"] == "steady") & (requests["class"] == "long")]
    requests.loc[steady, "status"] = "ok"
    requests.loc[steady, "first_token_s"] = requests.loc[steady, "intended_s"] + 0.5
    requests.loc[steady[0], ["status", "first_token_s"]] = ["error", np.nan]
    sample = ttft_sample(requests, "long")
    assert sample.failed == 1
    assert len(sample) == len(steady)
    np.testing.assert_allclose(sample.values, 0.5)


@pytest.mark.parametrize(
    ("values", "failed", "left", "median"),
    [
        ([1.0, 2.0, 3.0], 0, 0, 2.0),
        ([1.0, 2.0], 0, 0, 1.5),
        ([1.0, 2.0], 1, 0, 2.0),
        ([1.0, 2.0], 0, 1, 2.0),
        ([1.0, 2.0], 1, 1, None),
        ([], 0, 0, None),
    ],
)
def test_what_never_came_is_slower_than_all_that_did(
    values: list[float], failed: int, left: int, median: float | None
) -> None:
    assert Sample.pooled([Sample(np.array(values), failed), Sample(np.empty(0), 0, left)]).median == median


def test_gaps_never_cross_from_one_request_to_the_next(go: ReportData) -> None:
    tables = go.rounds["host-and-disk"][0]
    sample = itl_sample(tables)
    completed = int((measured(tables.requests)["status"] == "ok").sum())
    assert len(sample.values) == completed * 15
    assert sample.values.min() >= 0


def test_dots_split_all_answered_requests(go: ReportData) -> None:
    rounds = go.rounds["host-and-disk"]
    dots = ttft_dots(rounds)
    answered = sum(int((measured(t.requests)["status"] == "ok").sum()) for t in rounds)
    assert sum(map(len, dots.values())) == answered
    assert len(dots["unknown"]) == 0
    assert ttft_dots([]) == {}


def test_what_was_achieved_is_told_by_class(go: ReportData) -> None:
    rows = achieved("baseline", go.rounds["baseline"])
    assert [row.class_ for row in rows] == ["long", "short"]
    assert rows[0].prompt_tokens == "3,136"
    assert rows[0].output_tokens == "16"
    assert achieved("none", []) == []


@given(st.lists(st.floats(0.001, 100), max_size=400))
def test_a_thinned_curve_keeps_both_ends_and_its_order(values: list[float]) -> None:
    ranks = thin_curve(np.sort(np.array(values)), limit=LIMIT)
    assert len(ranks) <= max(LIMIT, 0)
    assert sorted(set(ranks.tolist())) == ranks.tolist()
    if values:
        assert (ranks[0], ranks[-1]) == (0, len(values) - 1)


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0.001, 100)), max_size=400))
def test_thinned_dots_are_some_of_the_dots_with_the_slowest(points: list[tuple[float, float]]) -> None:
    t_s, ttft_s = (np.array([point[axis] for point in points], dtype=float) for axis in (0, 1))
    thinned = thin_dots(Dots(t_s, ttft_s), LIMIT)
    drawn = list(zip(thinned.t_s.tolist(), thinned.ttft_s.tolist(), strict=True))
    assert len(drawn) == min(len(points), LIMIT)
    assert set(drawn) <= set(points)
    if points:
        assert max(ttft for _, ttft in drawn) == max(ttft_s)
