"""Buckets of the few histograms whose quantiles are shown: each once for every change."""

from __future__ import annotations

import pandas as pd

from kvbench.observe.attempts import Attempt, Result
from kvbench.observe.buckets import BucketReader
from kvbench.observe.fetch import Fetched
from kvbench.observe.rows import metric_rows


def histogram(name: str, counts: tuple[int, int]) -> str:
    few, every = counts
    return (
        f"# TYPE {name} histogram\n"
        f'{name}_bucket{{engine="0",le="0.5"}} {few}\n{name}_bucket{{engine="0",le="+Inf"}} {every}\n'
        f'{name}_sum{{engine="0"}} 9\n{name}_count{{engine="0"}} {every}\n'
    )


LIFETIME, TTFT = "vllm:kv_block_lifetime_seconds", "vllm:time_to_first_token_seconds"


def test_a_bucket_is_told_again_when_it_changed() -> None:
    reader = BucketReader()
    told = [
        {(dict(sample.labels)["le"], sample.value) for sample in reader.changed(histogram(LIFETIME, counts))}
        for counts in ((1, 2), (1, 2), (1, 5))
    ]
    assert told == [{("0.5", 1.0), ("+Inf", 2.0)}, set(), {("+Inf", 5.0)}]


def test_a_line_that_does_not_say_what_it_counts_up_to_is_no_bucket() -> None:
    page = f'# TYPE {LIFETIME} histogram\n{LIFETIME}_bucket 3\n{LIFETIME}_bucket{{le="NaN"}} 3\n'
    assert BucketReader().changed(page + f'{LIFETIME}_bucket{{le="much"}} 3\n') == []


def test_a_runs_metrics_have_the_buckets_of_these_and_no_others() -> None:
    page = histogram(LIFETIME, (1, 2)) + histogram(TTFT, (1, 2))
    scrapes = [Fetched(Attempt(t, t, Result.OK), 200, page, "") for t in (1.0, 2.0)]
    table: pd.DataFrame = metric_rows(scrapes, 0.0).to_pandas()
    buckets = table[table["name"].str.endswith("_bucket")]
    assert set(buckets["name"]) == {"block_lifetime_bucket"}
    assert list(buckets["t_s"]) == [1.0, 1.0]
    assert {"engine_ttft_sum", "engine_ttft_count", "block_lifetime_count"} <= set(table["name"])
