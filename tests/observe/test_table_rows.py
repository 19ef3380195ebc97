"""Rows of the table whose meaning takes more than a name: results apart, the largest of several, labels."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvbench.observe.canonical import canonical, parse_engine, totals
from tests.observe.pages import by_label, counters, page


def told(text: str) -> dict[str, float]:
    """Every sample of a page without labels of its own."""
    return {sample.name: sample.value for sample in canonical(parse_engine(text)) if not sample.labels}


def promotions(*results: tuple[str, float, int]) -> str:
    """Of vLLM 0.33: what became of them, seconds together, and how many."""
    name = "vllm:kv_offload_tiering_promotion_latency_seconds"
    lines = [f"# TYPE {name} histogram\n"]
    for result, seconds, count in results:
        labels = f'{{engine="0",result="{result}",tier="1:fs"}}'
        lines.append(f"{name}_sum{labels} {seconds}\n{name}_count{labels} {count}\n")
    return "".join(lines)


def test_promotions_that_failed_have_no_part_in_how_long_a_promotion_takes() -> None:
    """Given four good ones of half a second each and two that were given up after ten."""
    found = told(promotions(("success", 2, 4), ("failure", 20, 2)))
    assert (found["promotion_time_sum"], found["promotion_time_count"]) == (2, 4)
    assert (found["failed_promotion_time_sum"], found["failed_promotion_time_count"]) == (20, 2)


def test_before_the_first_promotion_neither_kind_took_any_time() -> None:
    found = told(promotions())
    assert found["promotion_time_count"] == found["failed_promotion_time_count"] == 0
    assert told(promotions(("success", 2, 4)))["failed_promotion_time_count"] == 0


def test_the_configuration_tells_the_tiers_behind_the_device_and_the_size_of_the_host() -> None:
    """vLLM 0.33 says it in labels: each engine a series for each tier, in which other tiers' labels are empty."""
    host = 'cpu_blocks_per_chunk="1",cpu_kv_cache_size_bytes="8388608",cpu_num_chunks="32",tier="0:primary"'
    disk = 'cpu_blocks_per_chunk="",cpu_kv_cache_size_bytes="",cpu_num_chunks="",tier="1:fs"'
    series = [(f'{{engine="{engine}",{labels}}}', "1") for engine in (0, 1) for labels in (host, disk)]
    found = canonical(parse_engine(page("gauge", "vllm:kv_offload_config_info", *series)))
    sizes = [{"blocks_per_chunk": "1", "bytes": "8388608", "chunks": "32", "tier": "0:primary"}]
    sizes += [{"blocks_per_chunk": "", "bytes": "", "chunks": "", "tier": "1:fs"}]
    told_of = [(sample.name, dict(sample.labels), sample.value) for sample in found]
    assert sorted(told_of, key=lambda each: each[1]["tier"]) == [("offload_tiers", each, 2) for each in sizes]


def test_of_several_tiers_the_slowest_and_the_one_that_holds_most_count() -> None:
    tiers = {"1:fs": 0.25, "2:obj": 0.5}
    text = "".join(
        by_label(f"vllm:kv_offload_tiering_{name}", "tier", tiers, "gauge")
        for name in ("backpressure_store_latency_ema", "primary_read_usage_perc", "primary_write_usage_perc")
    )
    assert told(text) == dict.fromkeys(
        ("disk_store_delay", "host_pinned_by_cascades", "host_pinned_by_promotions"), 0.5
    )


def test_blocks_that_back_pressure_dropped_are_counted_beside_the_stores() -> None:
    names = ("backpressure_stores_dropped", "backpressure_blocks_dropped")
    text = "".join(
        by_label(f"vllm:kv_offload_tiering_{name}", "tier", {"1:fs": n, "2:obj": 1}) for n, name in enumerate(names)
    )
    assert told(text) == {"store_drops": 1, "store_drop_blocks": 2}


def test_tensorrt_llm_tells_how_much_it_found_since_its_start_and_in_its_latest_step() -> None:
    rates = {"trtllm_kv_cache_hit_rate": "0.25", "trtllm_kv_cache_iter_reuse_rate": "0.75"}
    labels = '{engine_type="trtllm",model_name="tiny"}'
    text = "".join(page("gauge", name, (labels, value)) for name, value in rates.items())
    assert told(text) == {"cache_hit_rate": 0.25, "cache_hit_rate_now": 0.75}


def test_lmcaches_connector_tells_what_it_was_to_load_and_what_it_loaded() -> None:
    """What it looked up is another matter, and its server has that, too: then the server's counts."""
    own = counters({"lmcache:num_requested_tokens": 2048, "lmcache:num_hit_tokens": 1792}, role="worker")
    own += page("gauge", "lmcache:retrieve_hit_rate", ('{role="worker"}', "0.875"))
    assert told(own) == {"tier_asked_tokens": 2048, "tier_loaded_tokens": 1792, "tier_loaded_share": 0.875}
    server = counters({"lmcache_mp_lookup_requested_tokens": 4096}) + counters({"lmcache:num_lookup_tokens": 1})
    assert told(own + server) == told(own) | {"tier_lookup_tokens": 4096}


@pytest.mark.shared
class TestCapturedPages:
    @pytest.fixture
    def loaded(self, shared_dir: Path) -> dict[str, float]:
        """Six prompts of fifteen chunks that were stored, left the host and were promoted: twelve requests."""
        return told((shared_dir / "facts" / "vllm-0.32.0" / "tiering-after-load.prom").read_text())

    def test_room_is_asked_for_once_for_a_store_and_once_for_each_chunk_promoted(
        self, loaded: dict[str, float]
    ) -> None:
        assert (loaded["host_store_room_sum"], loaded["host_store_room_count"]) == (90 + 90, 6 + 90)

    def test_every_chunk_that_was_looked_for_on_disk_took_one_call(self, loaded: dict[str, float]) -> None:
        assert loaded["disk_lookup_call_time_count"] == loaded["disk_chunk_queries"] == 96
        assert 0 < loaded["disk_lookup_call_time_sum"] < 0.01

    def test_a_request_is_prefilled_and_then_decoded(self, loaded: dict[str, float]) -> None:
        parts = loaded["engine_prefill_time_sum"] + loaded["engine_decode_time_sum"]
        assert loaded["engine_inference_time_sum"] == pytest.approx(parts)
        assert loaded["engine_decode_time_count"] == loaded["engine_inference_time_count"] == 12
        assert (loaded["preemptions_per_request_sum"], loaded["preemptions_per_request_count"]) == (0, 12)

    def test_at_rest_nothing_is_pinned(self, loaded: dict[str, float]) -> None:
        who = ("reads", "writes", "cascades", "promotions")
        assert [loaded[f"host_pinned_by_{each}"] for each in who] == [0, 0, 0, 0]

    def test_stores_that_fail_are_no_reason_for_back_pressure(self, shared_dir: Path) -> None:
        """Given a disk that was full: 0.32 looks at how long stores took that went well; there were none."""
        file = shared_dir / "facts" / "vllm-0.32.0" / "tiering-after-disk-full-bp.prom"
        found = totals(parse_engine(file.read_text()))
        assert (found["disk_store_delay"], found["store_drops"], found["store_drop_blocks"]) == (0, 0, 0)
