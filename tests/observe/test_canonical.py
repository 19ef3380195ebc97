"""Canonical metrics: what each engine and release says, under one name; what it does not say is absent."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvbench.observe.canonical import (
    FAMILIES,
    MAPPINGS,
    canonical,
    parse_engine,
    source_counters,
    sources,
    totals,
)
from kvbench.observe.exposition import Exposition
from kvbench.observe.mapping import Mapping
from kvbench.spec.engine_metrics import ENGINE_METRICS
from tests.observe.pages import TEXT, by_label, counters, page

ROUND_TRIP = 6 * 15 * 262144
"""Six prompts of fifteen chunks of 262,144 bytes."""


@pytest.fixture(scope="session")
def captured(shared_dir: Path) -> dict[str, Exposition]:
    """Every exposition that was captured from real servers, by file name."""
    files = sorted((shared_dir / "facts" / "vllm-0.32.0").glob("*.prom"))
    assert files
    return {file.stem: parse_engine(file.read_text()) for file in files}


class TestTheTable:
    def test_every_row_ends_in_a_name_with_unit_and_meaning(self) -> None:
        assert {mapping.name for mapping in MAPPINGS} | {"prompt_tokens_by_source"} == set(ENGINE_METRICS)

    def test_no_two_families_share_a_spelling(self) -> None:
        spelled = [family + suffix for family in FAMILIES for suffix in ("", "_total", "_sum", "_count", "_bucket")]
        assert len(spelled) == len(set(spelled))

    @pytest.mark.parametrize("mapping", MAPPINGS, ids=lambda mapping: f"{mapping.family}->{mapping.name}")
    def test_each_row_turns_a_page_with_its_family_into_its_metric(self, mapping: Mapping) -> None:
        kind = mapping.metric.kind
        keys = [key for key, _ in mapping.keep] + ([mapping.where[0]] if mapping.where else [])
        labels = ",".join(f'{key}="{mapping.where[1] if mapping.where else "x"}"' for key in keys)
        name = mapping.family + {"counter": "_total", "gauge": "", "histogram": "_sum"}[kind]
        text = (
            f"# TYPE {name.removesuffix('_sum') if kind == 'histogram' else name} {kind}\n{name}{{{labels}}} 0.5\n"
        )
        found = {sample.name: sample.value for sample in canonical(parse_engine(text))}
        assert found[mapping.name + ("_sum" if kind == "histogram" else "")] == 0.5


class TestWhatIsNotThere:
    def test_a_family_that_is_declared_is_zero_so_far_whatever_its_kind(self) -> None:
        text = (
            page("counter", "vllm:kv_offload_load_bytes_total")
            + page("gauge", "vllm:kv_offload_tiering_active_promotion_jobs")
            + page("histogram", "vllm:kv_offload_load_size")
            + page("counter", "vllm:admission_rejections_total")
        )
        assert {(s.name, s.labels): s.value for s in canonical(parse_engine(text))} == {
            ("host_load_bytes", ()): 0.0,
            ("promotions_running", ()): 0.0,
            ("host_load_size_sum", ()): 0.0,
            ("host_load_size_count", ()): 0.0,
            ("requests_refused", ()): 0.0,
        }

    def test_a_family_that_nobody_declares_is_absent(self) -> None:
        assert "disk_read_bytes" not in totals(parse_engine(TEXT))
        assert canonical(parse_engine("vllm:prompt_tokens_total 5\n")) == []

    def test_a_gauge_with_other_children_only_is_absent(self) -> None:
        """Its children are there from the start, so this release tells something else."""
        text = by_label("vllm:num_requests_waiting_by_reason", "reason", {"capacity": 3}, "gauge")
        assert canonical(parse_engine(text)) == []

    def test_a_family_that_became_another_kind_is_absent(self) -> None:
        assert canonical(parse_engine(page("gauge", "vllm:prompt_tokens", ("", "5")))) == []
        untyped = parse_engine(page("untyped", "vllm:prompt_tokens_total", ("", "5")))
        assert totals(untyped) == {"prompt_tokens": 5}

    def test_a_family_with_a_sample_of_another_kind_is_absent(self) -> None:
        """Found by fuzzing: a histogram's family that had a counter's sample."""
        name = "vllm:kv_block_lifetime_seconds"
        text = f"# TYPE {name} histogram\n{name}_total 1.7\n{name}_sum 2\n"
        assert canonical(parse_engine(text)) == []
        assert canonical(parse_engine("# TYPE vllm:prompt_tokens_total counter\nvllm:prompt_tokens_sum 3\n")) == []

    def test_a_metric_of_the_future_changes_nothing(self) -> None:
        text = page("gauge", "vllm:kv_offload_warp_factor", ('{engine="0"}', "9"))
        assert canonical(parse_engine(TEXT + text)) == canonical(parse_engine(TEXT))

    @pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-1"])
    def test_what_is_no_count_of_anything_is_unknown_and_so_is_the_sum_it_would_be_in(self, value: str) -> None:
        two = page("counter", "vllm:prompt_tokens_total", ('{engine="0"}', "5"), ('{engine="1"}', value))
        if value != "-1":
            assert canonical(parse_engine(two)) == []
        assert canonical(parse_engine(page("counter", "vllm:prompt_tokens_total", ("", value)))) == []

    def test_a_share_that_is_no_number_hides_behind_no_other_rank(self) -> None:
        for one, other in (("NaN", "0.5"), ("0.5", "NaN")):
            text = page("gauge", "vllm:kv_cache_usage_perc", ('{engine="0"}', one), ('{engine="1"}', other))
            assert canonical(parse_engine(text)) == []

    @pytest.mark.shared
    def test_a_family_that_the_configuration_lacks_is_absent(self, captured: dict[str, Exposition]) -> None:
        baseline, host_only = (totals(captured[name]) for name in ("baseline-idle", "cpu-tier-idle"))
        assert "host_load_bytes" not in baseline
        assert "disk_read_bytes" not in baseline
        assert host_only["host_load_bytes"] == 0
        assert "disk_read_bytes" not in host_only
        assert totals(captured["tiering-idle"])["disk_read_bytes"] == 0


class TestSeveralEngines:
    def test_are_one(self) -> None:
        assert totals(parse_engine(TEXT)) == {"prompt_tokens": 42, "kv_cache_usage": 0.75, "host_load_bytes": 0}

    @pytest.mark.shared
    def test_of_data_parallel_ranks_are_summed(self, captured: dict[str, Exposition]) -> None:
        """Six prompts of 1,000 tokens to each of two engines."""
        found = totals(captured["baseline-dp2"])
        assert (found["prompt_tokens"], found["prefix_cache_queries"], found["generation_tokens"]) == (
            12000,
            12000,
            48,
        )
        assert source_counters(captured["baseline-dp2"])["computed"] == 12000


class TestReleasesOfVllm:
    BEFORE_0_12 = (
        page("gauge", "vllm:gpu_cache_usage_perc", ('{engine="0"}', "0.5"))
        + counters({"vllm:gpu_prefix_cache_queries": 40, "vllm:gpu_prefix_cache_hits": 30}, engine="0")
        + "# TYPE vllm:time_per_output_token_seconds histogram\nvllm:time_per_output_token_seconds_sum 2.5\n"
    )
    NAMES = ("kv_cache_usage", "prefix_cache_queries", "prefix_cache_hits", "engine_itl_sum")

    def test_old_names_are_read_where_there_are_no_new_ones(self) -> None:
        found = {sample.name: sample.value for sample in canonical(parse_engine(self.BEFORE_0_12))}
        assert [found[name] for name in self.NAMES] == [0.5, 40, 30, 2.5]

    def test_where_both_are_told_each_counts_once(self) -> None:
        both = (
            self.BEFORE_0_12
            + page("gauge", "vllm:kv_cache_usage_perc", ('{engine="0"}', "0.25"))
            + counters({"vllm:prefix_cache_queries": 4, "vllm:prefix_cache_hits": 3}, engine="0")
            + "# TYPE vllm:inter_token_latency_seconds histogram\nvllm:inter_token_latency_seconds_sum 1.5\n"
        )
        found = {sample.name: sample.value for sample in canonical(parse_engine(both))}
        assert [found[name] for name in self.NAMES] == [0.25, 4, 3, 1.5]

    SINCE_0_16 = by_label(
        "vllm:prompt_tokens_by_source",
        "source",
        {"local_compute": 100, "local_cache_hit": 50, "external_kv_transfer": 25},
    ) + by_label("vllm:kv_offload_total_bytes", "transfer_type", {"CPU_to_GPU": 4096, "GPU_to_CPU": 8192})

    def test_from_0_16_on_sources_are_told_but_no_tiers(self) -> None:
        exposition = parse_engine(self.SINCE_0_16)
        assert source_counters(exposition) == {"computed": 100, "device": 50, "elsewhere": 25}
        assert sources(exposition, exposition) == {"device": 0, "host": None, "disk": None, "computed": 0}

    def test_before_0_24_transfers_have_other_names(self) -> None:
        found = totals(parse_engine(self.SINCE_0_16))
        assert (found["host_load_bytes"], found["host_store_bytes"]) == (4096, 8192)
        newer = self.SINCE_0_16 + page("counter", "vllm:kv_offload_load_bytes_total", ('{engine="0"}', "1"))
        assert totals(parse_engine(newer))["host_load_bytes"] == 1

    def test_before_0_16_sources_are_unknown(self) -> None:
        assert source_counters(parse_engine(self.BEFORE_0_12)) == {}

    def test_a_source_of_the_future_is_elsewhere(self) -> None:
        text = self.SINCE_0_16 + by_label(
            "vllm:prompt_tokens_cached_by_source", "source", {"device": 50, "host": 15, "disk": 4, "cxl": 6}
        )
        assert source_counters(parse_engine(text)) == {
            "computed": 100,
            "device": 50,
            "host": 15,
            "disk": 4,
            "elsewhere": 6,
        }

    def test_a_family_that_cannot_be_read_is_no_sign_of_an_older_release(self) -> None:
        """Given tiers of which one series stands twice, then nothing is known of the sources of that page."""
        tiers = by_label("vllm:prompt_tokens_cached_by_source", "source", {"device": 50, "host": 15, "disk": 10})
        again = 'vllm:prompt_tokens_cached_by_source_total{engine="0",source="host"} 16\n'
        assert source_counters(parse_engine(self.SINCE_0_16 + tiers))["host"] == 15
        assert source_counters(parse_engine(self.SINCE_0_16 + tiers + again)) == {}

    def test_since_0_33_a_promotions_time_is_told(self) -> None:
        name = "vllm:kv_offload_tiering_promotion_latency_seconds"
        labels = '{tier="1:fs",result="ok"}'
        text = f"# TYPE {name} histogram\n{name}_sum{labels} 3\n{name}_count{labels} 4\n"
        found = {sample.name: sample.value for sample in canonical(parse_engine(text))}
        failed = {"failed_promotion_time_sum": 0, "failed_promotion_time_count": 0}
        assert found == {"promotion_time_sum": 3, "promotion_time_count": 4, **failed}

    def test_the_plain_cpu_connector_has_names_of_its_own(self) -> None:
        text = by_label("vllm:simple_kv_offload_save_outcomes", "outcome", {"stored": 7, "dropped_cpu_full": 2})
        assert totals(parse_engine(text)) == {"host_store_blocks": 7, "host_store_drops": 2}

    @pytest.mark.shared
    def test_deprecated_names_of_a_real_server_say_what_the_new_ones_say(
        self, captured: dict[str, Exposition]
    ) -> None:
        new = ("load_bytes", "load_time", "load_size", "store_bytes", "store_time", "store_size")
        whole = captured["tiering-after-load"]
        families = {name: samples for name, samples in whole.families.items() if name[16:] not in new}
        assert len(families) == len(whole.families) - len(new)
        assert canonical(Exposition(families)) == canonical(whole)


@pytest.mark.shared
class TestCapturedPages:
    """What the notes of each captured page state."""

    @pytest.mark.parametrize(
        ("name", "by_source"),
        [
            ("baseline-idle", (0, 0, 0, 0)),
            ("baseline-after-load", (0, 0, 0, 24000)),
            ("baseline-after-reset", (15360, 0, 0, 29643)),
            ("cpu-tier-after-fill", (0, 0, 0, 12000)),
            ("cpu-tier-after-load", (0, 11520, 0, 12480)),
            ("tiering-idle", (0, 0, 0, 0)),
            ("tiering-after-fill", (0, 0, 0, 12000)),
            ("tiering-after-load", (0, 0, 11520, 12480)),
            ("tiering-after-restart", (0, 0, 11520, 480)),
            ("tiering-parallel", (1920, 0, 6144, 25936)),
            ("tiering-after-fs-read-failure", (0, 0, 3712, 6288)),
            ("tiering-after-fs-write-failure", (0, 0, 3840, 16160)),
            ("tiering-after-eacces", (0, 0, 0, 4000)),
            ("tiering-after-disk-full", (0, 0, 0, 12000)),
            ("metrics-tiering-after-load", (23808, 0, 23808, 96384)),
            ("baseline-dp2", (0, 0, 0, 12000)),
        ],
    )
    def test_prompt_tokens_by_source(
        self, captured: dict[str, Exposition], name: str, by_source: tuple[float, ...]
    ) -> None:
        found = source_counters(captured[name])
        assert tuple(found[source] for source in ("device", "host", "disk", "computed")) == by_source
        assert found["elsewhere"] == 0
        assert sum(found.values()) == totals(captured[name])["prompt_tokens"]

    def test_what_a_disk_tier_did(self, captured: dict[str, Exposition]) -> None:
        after = totals(captured["tiering-after-load"])
        names = ("host_store_bytes", "disk_write_bytes", "disk_read_bytes", "host_load_bytes")
        assert [after[name] for name in names] == [ROUND_TRIP] * 4
        assert (after["disk_chunk_hits"], after["disk_chunk_queries"]) == (90, 96)
        assert (after["cached_tokens"], after["promotion_failures"], after["host_store_drops"]) == (11520, 0, 0)
        filled = totals(captured["tiering-after-fill"])
        assert (filled["host_store_bytes"], filled["disk_read_bytes"], filled["disk_chunk_queries"]) == (
            ROUND_TRIP,
            0,
            6,
        )
        again = totals(captured["tiering-after-restart"])
        assert (again["disk_chunk_hits"], again["disk_read_bytes"], again["disk_write_bytes"]) == (
            90,
            ROUND_TRIP,
            0,
        )

    def test_what_a_host_tier_did(self, captured: dict[str, Exposition]) -> None:
        after = totals(captured["cpu-tier-after-load"])
        assert (after["host_load_bytes"], after["host_store_bytes"]) == (ROUND_TRIP, ROUND_TRIP)
        assert (after["tier_cache_hits"], after["cached_tokens"]) == (11520, 11520)

    @pytest.mark.parametrize(
        ("name", "counter", "value"),
        [
            ("tiering-parallel", "host_store_drops", 6),
            ("tiering-parallel", "promotion_drops", 14),
            ("tiering-after-fs-read-failure", "promotion_failures", 2),
            ("tiering-after-fs-write-failure", "cascade_failures", 2),
            ("tiering-after-eacces", "promotion_failures", 1),
            ("tiering-after-disk-full", "cascade_failures", 5),
            ("tiering-after-disk-full-bp", "cascade_failures", 5),
            ("tiering-after-disk-full-bp", "store_drops", 0),
        ],
    )
    def test_what_went_wrong(self, captured: dict[str, Exposition], name: str, counter: str, value: float) -> None:
        assert totals(captured[name])[counter] == value

    def test_a_page_taken_under_load(self, captured: dict[str, Exposition]) -> None:
        found = totals(captured["baseline-inflight"])
        assert found["requests_running"] + found["requests_waiting"] > 0

    def test_blocks_of_the_device_are_followed_where_the_server_was_told_to(
        self, captured: dict[str, Exposition]
    ) -> None:
        after = {sample.name: sample.value for sample in canonical(captured["baseline-after-load"])}
        assert after["block_lifetime_count"] == after["block_idle_before_evict_count"] > 100
        assert "block_lifetime_count" not in {sample.name for sample in canonical(captured["tiering-after-load"])}

    def test_a_connector_that_keeps_its_tiers_to_itself(self, captured: dict[str, Exposition]) -> None:
        page_ = captured["lmcache-flag-vllm"]
        assert source_counters(page_) == {"computed": 13248, "device": 0, "elsewhere": 10752}
        assert sources(page_, page_) == {"device": 0, "host": None, "disk": None, "computed": 0}
        assert "host_load_bytes" not in totals(page_)

    def test_the_cache_server_tells_its_memory_tier_from_its_file_tier(
        self, captured: dict[str, Exposition]
    ) -> None:
        for name, host, disk in (("lmcache-mp-server", 10752, 0), ("lmcache-mp-server-after-l2", 0, 10752)):
            found = {(s.name, s.labels): s.value for s in canonical(captured[name])}
            assert found["tier_found_tokens", ()] == 10752
            assert found["tier_found_tokens_by_source", (("source", "host"),)] == host
            assert found["tier_found_tokens_by_source", (("source", "disk"),)] == disk
            assert source_counters(captured[name]) == {}
        first = totals(captured["lmcache-mp-server"])
        assert (first["tier_lookup_tokens"], first["host_store_chunks"], first["disk_write_chunks"]) == (
            21504,
            42,
            42,
        )
        assert (first["host_cache_usage"], first["host_cache_bytes"]) == (0.08203125, 42 * 524288)
        assert first["disk_cache_bytes"] == 42 * 524288
        assert "disk_read_chunks" not in first  # a family of this server comes with its first event
        later = totals(captured["lmcache-mp-server-after-l2"])
        assert (later["disk_read_chunks"], later["disk_chunk_hits"], later["host_evicted_chunks"]) == (42, 42, 42)

    @pytest.mark.parametrize(
        ("before", "after", "expected"),
        [
            ("baseline-idle", "baseline-after-load", (0, 0, 0, 24000)),
            ("cpu-tier-after-fill", "cpu-tier-after-load", (0, 11520, 0, 480)),
            ("tiering-idle", "tiering-after-load", (0, 0, 11520, 12480)),
            ("lmcache-mp-server", "lmcache-mp-server", (None, None, None, None)),
            ("tiering-after-load", "tiering-after-restart", (0, 0, 0, None)),
        ],
    )
    def test_between_two_pages(
        self, captured: dict[str, Exposition], before: str, after: str, expected: tuple[float | None, ...]
    ) -> None:
        found = sources(captured[before], captured[after])
        assert tuple(found[source] for source in ("device", "host", "disk", "computed")) == expected


class TestTensorRtLlm:
    LABELS = 'model_name="m",engine_type="trtllm"'

    def test_1_2_tells_requests_and_two_gauges(self) -> None:
        text = (
            page("counter", "trtllm_request_success_total", (f'{{{self.LABELS},finished_reason="length"}}', "6"))
            + page("gauge", "trtllm_kv_cache_utilization", (f"{{{self.LABELS}}}", "0.25"))
            + page("gauge", "trtllm_kv_cache_hit_rate", (f"{{{self.LABELS}}}", "0.5"))
            + "# TYPE trtllm_time_to_first_token_seconds histogram\n"
            + f"trtllm_time_to_first_token_seconds_sum{{{self.LABELS}}} 1.5\n"
        )
        exposition = parse_engine(text)
        assert totals(exposition) == {"requests_finished": 6, "kv_cache_usage": 0.25, "cache_hit_rate": 0.5}
        assert ("engine_ttft_sum", (), 1.5) in canonical(exposition)
        assert source_counters(exposition) == {}

    TOKENS = counters({"trtllm_prompt_tokens": 1000, "trtllm_prompt_cached_tokens": 300}, model_name="m")

    def test_cached_tokens_without_their_tiers_are_an_aggregate(self) -> None:
        """The family of the tiers is declared by every engine, filled by some."""
        text = self.TOKENS + page("counter", "trtllm_prompt_cache_hit_tokens_total")
        for page_ in (self.TOKENS, text):
            assert source_counters(parse_engine(page_)) == {"computed": 700, "elsewhere": 300}

    def test_levels_are_told_by_what_backs_them(self) -> None:
        levels = (("0", "gpu", 100), ("1", "gpu", 50), ("2", "host", 120), ("3", "disk", 20), ("4", "", 10))
        samples = [(f'{{cache_level="{level}",cache_tier="{tier}"}}', str(n)) for level, tier, n in levels]
        text = self.TOKENS + page("counter", "trtllm_prompt_cache_hit_tokens_total", *samples)
        assert source_counters(parse_engine(text)) == {
            "computed": 700,
            "device": 150,
            "host": 120,
            "disk": 20,
            "elsewhere": 10,
        }
