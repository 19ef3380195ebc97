"""What tiers went through by the engines' own telling: by hand, and between two pages of real servers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pytest

from kvbench.judge.case import build_case
from kvbench.judge.judge import judge
from kvbench.judge.quality import TierActivity
from kvbench.judge.tier_activity import tier_activity
from kvbench.observe.attempts import Attempt, Result
from kvbench.observe.fetch import Fetched
from kvbench.observe.rows import metric_rows as rows_of_scrapes
from tests.judge.build import comparison, good_pairs, metric_rows
from tests.judge.change import with_candidate

TIMES = [5.0, 20.0, 130.0]
"""Before the measured part, and twice in it."""


def buckets(name: str, grown: Mapping[str, list[float]]) -> pd.DataFrame:
    """Of a histogram, by its upper edges; without a number a bucket was not told at that scrape."""
    rows = [
        {"t_s": t_s, "name": f"{name}_bucket", "labels": json.dumps({"le": edge}), "value": value}
        for edge, values in grown.items()
        for t_s, value in zip(TIMES, values, strict=True)
        if value == value
    ]
    return pd.DataFrame(rows)


def told(*metrics: pd.DataFrame) -> TierActivity:
    """Of a candidate whose rounds have these metrics beside sound ones."""
    pairs = good_pairs(len(metrics))
    for place, more in enumerate(metrics):
        pairs = with_candidate(pairs, place, metrics=pd.concat([pairs[place].candidate.metrics, more]))
    (found,) = tier_activity(build_case(comparison(pairs)))
    assert found.arm == "tiered"
    return found


def test_quantiles_of_the_measured_part_are_bounds() -> None:
    """Given four lifetimes before the measured part and ten in it, then only the ten count."""
    nan = float("nan")
    metrics = pd.concat(
        [
            metric_rows(
                {("block_lifetime_count", None): [4, 4, 14], ("block_lifetime_sum", None): [1, 1, 21]}, TIMES
            ),
            buckets("block_lifetime", {"0.5": [4, nan, 6], "2.0": [4, nan, 10], "+Inf": [4, nan, 14]}),
        ]
    )
    (time,) = told(metrics).times
    assert (time.name, time.n, time.mean_s) == ("block_lifetime", 10, 2.0)
    assert (time.p50_s, time.p90_s) == ((0.5, 2.0), (2.0, None))


def test_without_buckets_a_mean_is_all_there_is() -> None:
    metrics = metric_rows(
        {("host_reuse_gap_count", None): [0, 1, 4], ("host_reuse_gap_sum", None): [0, 1, 8]}, TIMES
    )
    (time,) = told(metrics).times
    assert (time.n, time.mean_s, time.p50_s) == (4, 2.0, None)


def test_events_that_come_with_the_first_of_them_began_at_zero() -> None:
    """LMCache has no family before its first event: a round without any is one in which nothing happened."""
    late = metric_rows({("host_evicted_chunks", None): [float("nan"), 3, 7]}, TIMES)
    none = metric_rows({("generation_tokens", None): [0, 0, 0]}, TIMES)
    (event,) = told(late, none).events
    assert (event.name, event.unit, event.count) == ("host_evicted_chunks", "chunks", 7.0)


def test_failures_of_promotions_cascades_and_stores_are_told_even_that_there_were_none() -> None:
    names = ("promotion_failures", "promotion_drops", "cascade_failures", "store_drops", "host_store_drops")
    metrics = metric_rows({(name, None): [1, 1, 1 + place] for place, name in enumerate(names)}, TIMES)
    counts = {event.name: event.count for event in told(metrics).events}
    assert counts == {name: float(place) for place, name in enumerate(names)}


def test_preemptions_of_the_measured_part_are_told_of_an_engine_without_any_tier() -> None:
    metrics = metric_rows({("preemptions", None): [3, 3, 8]}, TIMES)
    (event,) = told(metrics).events
    assert (event.name, event.unit, event.count) == ("preemptions", "requests", 5.0)


def test_a_round_whose_process_began_anew_is_left_out_though_its_counters_went_on_growing() -> None:
    whole = metric_rows({("preemptions", None): [1, 4, 9]}, TIMES)
    anew = pd.concat([whole, whole.iloc[-1:].assign(name="counter_reset", labels='{"counter": "process"}')])
    found = told(whole, anew)
    assert [(event.name, event.count) for event in found.events] == [("preemptions", 8)]
    assert (found.rounds, found.left_out) == (1, 1)


def waits(name: str) -> pd.DataFrame:
    """Eight promotions that were waited for 4 s together, of which 1 s was reading."""
    return metric_rows(
        {
            (f"{name}_count", None): [2, 2, 10],
            (f"{name}_sum", None): [9, 9, 13],
            ("disk_read_seconds", None): [5, 5, 6],
        },
        TIMES,
    )


@pytest.mark.parametrize(("name", "of"), [("promotion_time", "promotion"), ("host_lookup_time", "request")])
def test_what_a_promotion_waited_beyond_its_transfer_is_queueing(name: str, of: str) -> None:
    promotions = told(waits(name)).promotions
    assert promotions is not None
    assert (promotions.of, promotions.n) == (of, 8)
    assert (promotions.wait_s, promotions.transfer_s, promotions.queueing_s) == (0.5, 0.125, 0.375)


def test_reads_that_overlap_leave_no_negative_queue() -> None:
    overlapping = waits("promotion_time")
    overlapping.loc[(overlapping["name"] == "disk_read_seconds") & (overlapping["t_s"] == 130.0), "value"] = 50.0
    promotions = told(overlapping).promotions
    assert promotions is not None
    assert promotions.queueing_s == 0.0


def test_a_round_whose_counters_began_again_is_left_out_and_counted() -> None:
    """Given evictions that one of two rounds counts anew from the middle, then only the other is summed up."""
    whole = metric_rows({("host_evicted_chunks", None): [1, 4, 9]}, TIMES)
    anew = metric_rows({("host_evicted_chunks", None): [50, 90, 3]}, TIMES)
    found = told(whole, anew)
    assert [(event.name, event.count) for event in found.events] == [("host_evicted_chunks", 8)]
    assert (found.rounds, found.left_out) == (1, 1)
    assert (told(whole, whole).rounds, told(whole, whole).left_out) == (2, 0)


def test_an_engine_that_tells_none_of_it_has_nothing() -> None:
    assert judge(comparison(good_pairs())).tier_activity == []


def without_start(text: str) -> str:
    """A page that does not tell when its process began: the captured ones are of two servers that ran as one."""
    return "".join(line + "\n" for line in text.splitlines() if "process_start_time_seconds" not in line)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("idle", "loaded", "times", "events"),
    [
        (
            "tiering-idle.prom",
            "tiering-after-load.prom",
            {"disk_lookup_time", "host_lookup_time"},
            {"promotion_failures": 0.0, "cascade_failures": 0.0, "store_drops": 0.0, "host_store_drops": 0.0},
        ),
        ("lmcache-flag-vllm.prom", "lmcache-mp-server.prom", {"host_reuse_gap", "block_lifetime"}, {}),
        ("lmcache-flag-vllm.prom", "lmcache-mp-server-after-l2.prom", set(), {"host_evicted_chunks": 42.0}),
    ],
)
def test_between_two_pages_of_a_real_server(
    shared_dir: Path, idle: str, loaded: str, times: set[str], events: dict[str, float]
) -> None:
    """No ledger is needed, so servers that were already running show it as well."""
    folder = shared_dir / "facts" / "vllm-0.32.0"
    scrapes = [
        Fetched(Attempt(t_s, t_s, Result.OK), 200, without_start((folder / file).read_text()), "")
        for t_s, file in ((5.0, idle), (130.0, loaded))
    ]
    found = told(rows_of_scrapes(scrapes, 0.0).to_pandas())
    by_name = {time.name: time for time in found.times}
    assert times <= set(by_name)
    for time in found.times:
        assert time.p50_s is not None
        low, high = time.p50_s
        assert high is None or low < high
    assert events.items() <= {event.name: event.count for event in found.events}.items()
