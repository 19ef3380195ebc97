"""TensorRT-LLM's iteration records: counters that it adds up, and intervals that we add up, in canonical names."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvbench.observe.continuity import Fall
from kvbench.observe.iteration_stats import IterationStats, looks_like_iteration_stats
from kvbench.observe.rows import metric_rows
from tests.observe.test_continuity import at, told

PUBLISHED = """[{"gpuMemUsage":76665782272,"iter":154,"iterLatencyMS":7.00688362121582,
  "kvCacheStats":{"allocNewBlocks":3126,"allocTotalBlocks":3126,"cacheHitRate":0.00128,"freeNumBlocks":101253,
                  "maxNumBlocks":101256,"missedBlocks":3121,"reusedBlocks":4,"tokensPerBlock":32,"usedNumBlocks":3},
  "numActiveRequests":1}]"""
"""From upstream's documentation."""

BY_WINDOW = {
    "kvCacheIterationStats": {
        "16": {
            "primaryMaxNumBlocks": 100, "primaryFreeNumBlocks": 60, "primaryUsedNumBlocks": 40,
            "secondaryMaxNumBlocks": 50, "secondaryFreeNumBlocks": 30, "secondaryUsedNumBlocks": 20,
            "iterAllocTotalBlocks": 8, "iterAllocNewBlocks": 3, "iterReusedBlocks": 5, "iterFullReusedBlocks": 4,
            "iterPartialReusedBlocks": 1, "iterMissedBlocks": 3, "iterCacheHitRate": 0.625, "iterGenAllocBlocks": 2,
        }
    }
}  # fmt: skip
"""From upstream's unit test."""


def said(*answers: object) -> dict[str, float]:
    """What several answers of one server come to; a value with labels as `name source`."""
    stats = IterationStats()
    for answer in answers:
        stats.add(answer if isinstance(answer, str) else json.dumps(answer))
    return {" ".join([name, *(value for _, value in labels)]): value for name, labels, value in stats.samples()}


def record(iteration: int, **more: Any) -> dict[str, Any]:
    return {"iter": iteration, **more}


def test_a_published_answer() -> None:
    assert said(PUBLISHED) == {
        "cache_blocks_reused": 4,
        "cache_blocks_missed": 3121,
        "kv_cache_usage": 3 / 101256,
        "requests_running": 1,
    }


def test_a_tested_answer_with_a_host_pool() -> None:
    assert said(BY_WINDOW) == {"host_cache_usage": 0.4}


def test_what_the_engine_adds_up_is_taken_as_it_stands() -> None:
    first, last = ({"reusedBlocks": reused, "missedBlocks": 5} for reused in (10, 12))
    assert said([record(1, kvCacheStats=first)], [record(2, kvCacheStats=last)])["cache_blocks_reused"] == 12


def test_what_is_told_by_interval_is_added_up() -> None:
    def copies(up: int, down: int) -> dict[str, Any]:
        stats = {
            "iterOnboardBytes": up,
            "iterOnboardBlocks": 1,
            "iterOffloadBytes": down,
            "iterHostDroppedBlocks": 2,
        }
        return {"kvCacheIterationStats": {"16": stats, "64": stats}, "inflightBatchingStats": {"numCtxTokens": 100}}

    found = said([record(1, **copies(4096, 0)), record(2, **copies(0, 8))], [], [record(3, **copies(4, 8))])
    assert found == {
        "host_load_bytes": 2 * 4100,
        "host_load_blocks": 6,
        "host_store_bytes": 2 * 16,
        "host_dropped_blocks": 12,
        "prompt_tokens_by_source computed": 300,
        "iterations_unseen": 0,
    }


def test_pool_groups_are_told_instead_of_windows_and_never_beside_them() -> None:
    group, window = ({"iterOnboardBytes": n} for n in (7, 5))
    found = said([record(1, kvCacheIterationStats={"16": window}, kvCacheIterationStatsByPoolGroup={"0": group})])
    assert found["host_load_bytes"] == 7


def test_cold_pools_tell_how_full_the_host_is() -> None:
    found = said(
        [
            record(
                1,
                kvCacheIterationStatsByColdPoolGroup={
                    "0": {"secondaryMaxNumBlocks": 30, "secondaryUsedNumBlocks": 15},
                    "1": {"secondaryMaxNumBlocks": 10, "secondaryUsedNumBlocks": 0},
                },
            )
        ]
    )
    assert found == {"host_cache_usage": 15 / 40}


def test_cached_tokens_have_a_source_where_the_engine_names_what_backs_its_levels() -> None:
    tiers = ["gpu", "gpu", "host", "disk", "cxl"]
    told_ = record(1, iterCachedTokensByLevel=[12, 3, 8, 5, 2], kvCacheLevelTiers=tiers)
    assert said([told_], [told_ | {"iter": 2}]) == {
        "prompt_tokens_by_source device": 30,
        "prompt_tokens_by_source host": 16,
        "prompt_tokens_by_source disk": 10,
        "prompt_tokens_by_source elsewhere": 4,
        "iterations_unseen": 0,
    }
    assert said([record(1, iterCachedTokensByLevel=[12, 3])]) == {}
    assert said([record(1, iterCachedTokensByLevel=[12, 3], kvCacheLevelTiers=["gpu"])]) == {}


def test_ranks_are_one() -> None:
    def rank(number: int, active: int, used: int) -> dict[str, Any]:
        stats = {"reusedBlocks": 10, "usedNumBlocks": used, "maxNumBlocks": 100}
        return record(5, attentionDpRank=number, numActiveRequests=active, kvCacheStats=stats)

    found = said([rank(0, 3, 10), rank(1, 4, 60)])
    assert (found["requests_running"], found["kv_cache_usage"], found["cache_blocks_reused"]) == (7, 0.6, 20)
    assert "iterations_unseen" not in found


def test_records_that_somebody_else_took_are_counted() -> None:
    assert said([record(1), record(2)], [record(6)])["iterations_unseen"] == 3


def test_an_engine_that_began_anew_has_reset_its_counters() -> None:
    stats = IterationStats()
    assert stats.add(json.dumps([record(7, kvCacheStats={"reusedBlocks": 40})])) == []
    fell = stats.add(json.dumps([record(1, kvCacheStats={"reusedBlocks": 3})]))
    assert fell == [Fall("process", 6), Fall("cache_blocks_reused", 37)]


def test_in_a_runs_metrics_every_answer_is_a_scrape_an_empty_one_too() -> None:
    first, last = (json.dumps([record(n, numActiveRequests=n, numCompletedRequests=1)]) for n in (2, 1))
    table = metric_rows([at(101, first), at(102, "[]"), at(103, last)], 100.0).to_pandas()
    assert told(table, "requests_running") == [(1, {}, 2), (2, {}, 2), (3, {}, 1)]
    assert told(table, "requests_finished") == [(1, {}, 1), (2, {}, 1), (3, {}, 2)]
    assert told(table, "counter_reset") == [(3.0, {"counter": "process"}, 1.0)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PUBLISHED, True),
        ("[]", True),
        (" [ ]", False),
        ("[1]", False),
        ('{"iter": 1}', False),
        ("# TYPE a gauge", False),
    ],
)
def test_records_are_told_from_other_answers(text: str, expected: bool) -> None:
    assert looks_like_iteration_stats(text) is expected


WORDS = """iter attentionDpRank kvCacheStats reusedBlocks usedNumBlocks maxNumBlocks numCtxTokens iterOnboardBytes
kvCacheIterationStats iterCachedTokensByLevel kvCacheLevelTiers 16 inflightBatchingStats numCompletedRequests
secondaryMaxNumBlocks secondaryUsedNumBlocks"""
KEYS = st.sampled_from(WORDS.split())
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**400), 10**400)
    | st.floats()
    | st.sampled_from(["gpu", "host", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=12,
)


def test_json_that_never_ends_is_no_record() -> None:
    assert said("[" * 100_000) == {}


KNOWN = (
    *("cache_blocks_reused", "kv_cache_usage", "host_cache_usage", "host_load_bytes", "iterations_unseen"),
    *("prompt_tokens_by_source", "requests_finished"),
)
SOURCES = (" device", " host", " disk", " elsewhere")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(JSON, max_size=3), st.text(max_size=20))
def test_any_json_and_any_text_is_taken(answers: list[Any], junk: str) -> None:
    found = said(*(json.dumps(answer) for answer in answers), junk)
    assert set(found) <= {f"{name}{source}" for name in KNOWN for source in ("", " computed", *SOURCES)}
