"""What TensorRT-LLM tells once is added up: no token is taken back, none is claimed that was not told."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.engine.trtllm_ledger import TrtllmLedger
from kvbench.observe.canonical import canonical, parse_engine, totals

PUBLISHED = json.loads("""
[{"gpuMemUsage":76665782272,"iter":154,"iterLatencyMS":7.00688362121582,
  "kvCacheStats":{"allocNewBlocks":3126,"allocTotalBlocks":3126,"cacheHitRate":0.00128,"freeNumBlocks":101253,
                  "maxNumBlocks":101256,"missedBlocks":3121,"reusedBlocks":4,"tokensPerBlock":32,"usedNumBlocks":3},
  "numActiveRequests":1}]
""")
"""The record that upstream's documentation shows."""


def an_event(number: int, data: dict) -> dict:
    return {"event_id": number, "window_size": 4096, "data": data}


def created(device: int, *behind: int) -> dict:
    return an_event(0, {"type": "created", "num_blocks_per_cache_level": [device, *behind]})


def moved(number: int, old: int, new: int) -> dict:
    level = {"type": "event_diff", "new_value": new, "old_value": old}
    return an_event(number, {"type": "updated", "block_hash": 123, "cache_level": level, "priority": None})


def record(number: int, reused: int, missed: int, context: int | None = None, **more: object) -> dict:
    stats = {"maxNumBlocks": 10, "usedNumBlocks": 5, "tokensPerBlock": 32} | {
        "reusedBlocks": reused,
        "missedBlocks": missed,
    }
    batch = None if context is None else {"numCtxTokens": context}
    return {"iter": number, "kvCacheStats": stats, "inflightBatchingStats": batch, **more}


def told(ledger: TrtllmLedger) -> dict[str, float]:
    """Tokens by source, as whoever scrapes the page reads them once all events have come."""
    ledger.take_events([])
    ledger.take_events([])
    return told_so_far(ledger)


def told_so_far(ledger: TrtllmLedger) -> dict[str, float]:
    samples = canonical(parse_engine(ledger.exposition()))
    return {dict(s.labels)["source"]: s.value for s in samples if s.name == "prompt_tokens_by_source"}


def test_the_published_record_is_understood() -> None:
    ledger = TrtllmLedger(64)
    ledger.take_events([created(101256, 0)])
    ledger.take_iterations(PUBLISHED)
    assert ledger.tokens_per_block == 32
    assert told(ledger) == {"device": 128, "host": 0, "disk": 0, "computed": 3121 * 32, "elsewhere": 0}
    assert totals(parse_engine(ledger.exposition()))["requests_running"] == 1


def test_blocks_that_came_from_the_host_are_not_the_devices() -> None:
    ledger = TrtllmLedger(32)
    ledger.take_events([created(64, 256), moved(1, 0, 1), moved(2, 1, 0), moved(3, 1, 0)])
    ledger.take_iterations([record(1, 5, 10, 330)])
    assert told(ledger) == {"device": 96, "host": 64, "disk": 0, "computed": 330, "elsewhere": 0}
    values = totals(parse_engine(ledger.exposition()))
    assert (values["host_load_blocks"], values["host_store_blocks"]) == (2, 1)


def test_a_record_that_comes_before_its_events_is_not_split_yet() -> None:
    ledger = TrtllmLedger(32)
    ledger.take_events([created(64, 256)])
    ledger.take_iterations([record(1, 3, 10)])
    assert told_so_far(ledger)["device"] == 0
    ledger.take_events([])
    ledger.take_events([moved(1, 1, 0), moved(2, 1, 0), moved(3, 1, 0)])
    assert (told_so_far(ledger)["device"], told_so_far(ledger)["host"]) == (0, 96)


def test_before_the_server_tells_its_levels_no_tier_is_named() -> None:
    ledger = TrtllmLedger(32)
    ledger.take_iterations([record(1, 5, 10)])
    assert ledger.host_blocks is None
    assert told(ledger) == {"computed": 320, "elsewhere": 160}


def test_after_a_lost_event_reuse_is_from_elsewhere_and_the_tiers_are_unknown() -> None:
    ledger = TrtllmLedger(32)
    ledger.take_events([created(64, 256), moved(1, 1, 0)])
    ledger.take_iterations([record(1, 5, 10)])
    ledger.take_events([])
    ledger.take_events([])
    ledger.take_events([moved(7, 1, 0)])
    ledger.take_iterations([record(2, 9, 10)])
    assert ledger.events_lost == 5
    assert told(ledger) == {"device": 128, "computed": 320, "elsewhere": 128}


def test_iterations_that_somebody_else_took_are_counted() -> None:
    ledger = TrtllmLedger(32)
    ledger.take_iterations([record(1, 0, 0), record(2, 0, 0), record(9, 0, 0)])
    assert totals(parse_engine(ledger.exposition()))["iterations_unseen"] == 6


def test_gauges_of_kvbenchs_own_request_are_forgotten_until_the_next_record() -> None:
    ledger = TrtllmLedger(32)
    ledger.take_iterations([record(1, 0, 1, numActiveRequests=1)])
    ledger.forget_moment()
    assert {"requests_running", "kv_cache_usage"}.isdisjoint(totals(parse_engine(ledger.exposition())))
    ledger.take_iterations([record(2, 0, 1, numActiveRequests=1)])
    assert totals(parse_engine(ledger.exposition()))["requests_running"] == 1


def test_releases_that_tell_copies_and_levels_themselves_are_read() -> None:
    ledger = TrtllmLedger(32)
    stats = {"16": {"iterOnboardBytes": 1000, "iterOffloadBytes": 200, "iterOnboardBlocks": 2}}
    levels = {"iterCachedTokensByLevel": [96, 64], "kvCacheLevelTiers": ["gpu", "host"]}
    ledger.take_iterations([record(1, 5, 10, 330, kvCacheIterationStats=stats, **levels)])
    sources = told(ledger)
    assert (sources["device"], sources["host"], sources["computed"]) == (96, 64, 330)
    values = totals(parse_engine(ledger.exposition()))
    assert (values["host_load_bytes"], values["host_store_bytes"], values["host_load_blocks"]) == (1000, 200, 2)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("record"), st.integers(0, 20), st.integers(0, 20)),
        st.tuples(st.just("moves"), st.integers(0, 5), st.integers(0, 3)),
    ),
    max_size=12,
)


@settings(max_examples=25)
@given(STEPS)
def test_no_source_is_ever_less_than_it_was(steps: list[tuple[str, int, int]]) -> None:
    ledger = TrtllmLedger(32)
    ledger.take_events([created(64, 64)])
    before: dict[str, float] = {}
    reused = missed = number = 0
    event = 1
    for kind, one, other in steps:
        if kind == "record":
            reused, missed, number = reused + one, missed + other, number + 1
            ledger.take_iterations([record(number, reused, missed)])
        else:
            event += other  # some were dropped
            ledger.take_events([moved(event + i, 1, 0) for i in range(one)])
            event += one
        now = told_so_far(ledger)
        for source, tokens in before.items():
            assert now.get(source, math.inf) >= tokens, source
        before = now


def test_a_text_that_is_nothing_of_the_kind_changes_nothing(tmp_path: Path) -> None:
    ledger = TrtllmLedger(32)
    ledger.take_events([{}, {"event_id": "x", "data": None}, {"data": {"type": "updated", "cache_level": None}}])
    ledger.take_iterations([{}, {"kvCacheStats": None, "iter": True}])
    assert ledger.levels is None
    assert told(ledger).get("host") is None


ODD_EVENTS = [
    {"data": "x"},
    {"data": [1]},
    {"data": {"type": "updated", "cache_level": 1}},
    {"data": {"type": "updated", "cache_level": {"old_value": [0], "new_value": {}}}},
    {"data": {"type": "created", "num_blocks_per_cache_level": [None]}},
    {"data": {"type": "created", "num_blocks_per_cache_level": ["64"]}},
    {"data": {"type": "created", "num_blocks_per_cache_level": []}},
    {"data": {"type": "created", "num_blocks_per_cache_level": [10**400]}},
    {"event_id": 10**400, "attention_dp_rank": [0], "data": {"type": ["created"]}},
]
ODD_RECORDS = [
    {"kvCacheStats": [1]},
    {"kvCacheStats": {"tokensPerBlock": 10**400, "reusedBlocks": 1e308, "missedBlocks": 1e308}},
    {"kvCacheStats": {"tokensPerBlock": [32], "reusedBlocks": "4"}, "iter": None},
    {"kvCacheIterationStats": {"16": 7}, "inflightBatchingStats": "none", "attentionDpRank": {}},
]


@pytest.mark.parametrize("event", ODD_EVENTS, ids=lambda event: str(event)[:60])
def test_an_odd_event_moves_nothing_and_those_behind_it_count(event: dict) -> None:
    ledger = TrtllmLedger(32)
    ledger.take_events([created(64, 256), event, moved(1, 0, 1)])
    ledger.take_events([event])
    assert (ledger.levels, ledger.offloaded, ledger.onboarded, ledger.events) == ((64, 256), 1, 0, 4)
    assert ledger.events_lost == 0


@pytest.mark.parametrize("odd", ODD_RECORDS, ids=lambda odd: str(odd)[:60])
def test_an_odd_record_does_not_keep_the_next_one_from_counting(odd: dict) -> None:
    ledger = TrtllmLedger(64)
    ledger.take_events([created(64, 256)])
    ledger.take_iterations([odd])
    told(ledger)
    ledger.take_iterations([record(2, 5, 10, 330)])
    assert told(ledger)["device"] >= 5 * 32
    assert ledger.tokens_per_block == 32


KEYS = st.sampled_from(
    [
        *("data", "type", "event_id", "attention_dp_rank", "cache_level", "old_value", "new_value", "blocks"),
        *("num_blocks_per_cache_level", "kvCacheStats", "tokensPerBlock", "reusedBlocks", "missedBlocks", "iter"),
        *("usedNumBlocks", "maxNumBlocks", "kvCacheIterationStats", "inflightBatchingStats", "numCtxTokens"),
    ]
)
NUMBERS = st.integers() | st.floats() | st.sampled_from([0, 1, 2**53, 2**63, 10**400, 1e308])
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.sampled_from(["created", "updated", "stored", "gpu", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=10,
)
MOVES = st.fixed_dictionaries(
    {"data": st.fixed_dictionaries({"type": st.sampled_from(["created", "updated"])}, optional={
        "cache_level": st.dictionaries(st.sampled_from(["old_value", "new_value"]), VALUES) | VALUES,
        "num_blocks_per_cache_level": st.lists(VALUES, max_size=3) | VALUES,
    })},
    optional={"event_id": VALUES, "attention_dp_rank": VALUES},
)  # fmt: skip
DICTIONARIES = st.dictionaries(KEYS, VALUES, max_size=5)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.lists(DICTIONARIES, max_size=3), st.lists(MOVES | DICTIONARIES, max_size=3)), max_size=3)
)
def test_no_json_brings_the_ledger_down(answers: list[tuple[list[dict], list[dict]]]) -> None:
    """Whatever a server answers, what it says properly afterwards counts."""
    ledger = TrtllmLedger(32)
    for records, events in answers:
        ledger.take_iterations(records)
        ledger.take_events(events)
        told_so_far(ledger)
    onboarded, iterations = ledger.onboarded, ledger.iterations
    ledger.take_events([created(64, 256), moved(1, 1, 0)])
    ledger.take_iterations([record(9, 5, 10)])
    told(ledger)
    assert (ledger.levels, ledger.tokens_per_block) == ((64, 256), 32)
    assert (ledger.onboarded, ledger.iterations) == (onboarded + 1, iterations + 1)
