"""Expositions: every captured one parses; a family without a sample is zero, one that is absent is unsupported."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from kvbench.observe.canonical import (
    FAMILIES,
    MAPPINGS,
    canonical,
    identity_breaks,
    parse_engine,
    resets,
    source_counters,
    sources,
    totals,
)
from kvbench.observe.exposition import Exposition, looks_like_exposition, only_families, parse
from kvbench.spec.engine_metrics import ENGINE_METRICS

TEXT = """\
# HELP vllm:prompt_tokens_total Number of prefill tokens.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="a b"} 12.0
vllm:prompt_tokens_total{engine="1",model_name="a b"} 30.0
# TYPE vllm:kv_offload_load_bytes_total counter
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_bucket{le="1.0"} 3.0
vllm:iteration_tokens_total_sum 5.0
other_metric 7
"""


@pytest.fixture(scope="session")
def captured(shared_dir: Path) -> dict[str, Exposition]:
    """Every exposition that was captured from real servers, by file name."""
    files = sorted((shared_dir / "facts" / "vllm-0.32.0").glob("*.prom"))
    assert files
    return {file.stem: parse_engine(file.read_text()) for file in files}


def test_a_declared_family_without_a_sample_is_zero_and_an_absent_one_is_unsupported() -> None:
    exposition = parse(TEXT)
    assert exposition.total("vllm:kv_offload_load_bytes") == 0
    assert exposition.total("vllm:kv_offload_store_bytes") is None
    assert exposition.total("vllm:prompt_tokens") == 42
    assert exposition.total("vllm:prompt_tokens", engine="1") == 30
    assert exposition["vllm:kv_offload_load_bytes"] == ()


def test_only_the_wanted_families_are_parsed_buckets_on_request() -> None:
    wanted = frozenset({"vllm:prompt_tokens", "vllm:iteration_tokens_total"})
    assert set(parse(TEXT, wanted).families) == wanted
    assert "bucket" in only_families(TEXT, wanted)
    assert "bucket" not in only_families(TEXT, wanted, buckets=False)
    assert "other_metric" not in only_families(TEXT, wanted)


@pytest.mark.parametrize(
    ("text", "expected"),
    [(TEXT, True), ("# TYPE a counter\n", True), ("<html>", False), ('[{"iter": 1}]', False), ("", False)],
)
def test_a_page_or_json_is_no_exposition(text: str, expected: bool) -> None:
    assert looks_like_exposition(text) is expected


@given(
    st.text(max_size=80) | st.builds(lambda a, b: TEXT[:a] + b + TEXT[a:], st.integers(0, 700), st.text(max_size=9))
)
def test_any_text_gives_samples_or_a_value_error(text: str) -> None:
    exposition = Exposition({})
    with contextlib.suppress(ValueError):
        exposition = parse_engine(text)
    assert {sample.name for sample in canonical(exposition)} <= {
        sample.name for sample in canonical(parse_engine(TEXT))
    }


@pytest.mark.shared
def test_selecting_families_changes_no_sample(shared_dir: Path) -> None:
    for file in sorted((shared_dir / "facts" / "vllm-0.32.0").glob("*.prom")):
        text = file.read_text()
        everything = {family.name: family for family in text_string_to_metric_families(text)}
        chosen = parse(text, FAMILIES)
        assert set(chosen.families) == FAMILIES & everything.keys()
        for name, samples in chosen.families.items():
            assert [(s.name, s.labels, s.value) for s in samples] == [
                (s.name, s.labels, s.value) for s in everything[name].samples
            ]


def test_every_mapping_ends_in_a_name_with_unit_and_meaning() -> None:
    assert {mapping.name for mapping in MAPPINGS} | {"prompt_tokens_by_source"} == set(ENGINE_METRICS)


def test_several_engine_ranks_are_one() -> None:
    exposition = parse_engine(TEXT)
    assert totals(exposition) == {"prompt_tokens": 42, "kv_cache_usage": 0.75, "host_load_bytes": 0}


@pytest.mark.shared
def test_what_a_disk_tier_did_is_named(captured: dict[str, Exposition]) -> None:
    after = totals(captured["tiering-after-load"])
    # Six prompts of fifteen chunks of 262,144 bytes, stored, written, read and loaded.
    expected = 6 * 15 * 262144
    names = ("host_store_bytes", "disk_write_bytes", "disk_read_bytes", "host_load_bytes")
    assert [after[name] for name in names] == [expected] * 4
    assert after["disk_chunk_hits"] == 90
    assert after["cached_tokens"] == 11520
    assert after["promotion_failures"] == 0
    assert totals(captured["tiering-after-fs-read-failure"])["promotion_failures"] > 0
    assert totals(captured["tiering-after-disk-full"])["cascade_failures"] > 0


@pytest.mark.shared
@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("baseline-idle", "baseline-after-load", (0, 0, 0, 24000)),
        ("cpu-tier-after-fill", "cpu-tier-after-load", (0, 11520, 0, 480)),
        ("tiering-idle", "tiering-after-load", (0, 0, 11520, 12480)),
        ("lmcache-flag-vllm", "lmcache-flag-vllm", (0, None, None, 0)),
        ("lmcache-mp-server", "lmcache-mp-server", (None, None, None, None)),
        ("tiering-after-load", "tiering-after-restart", (0, 0, 0, None)),
    ],
)
def test_prompt_tokens_by_source_between_two_scrapes(
    captured: dict[str, Exposition], before: str, after: str, expected: tuple[float | None, ...]
) -> None:
    found = sources(captured[before], captured[after])
    assert tuple(found[source] for source in ("device", "host", "disk", "computed")) == expected


@pytest.mark.shared
def test_a_family_that_the_configuration_lacks_is_absent(captured: dict[str, Exposition]) -> None:
    baseline, host_only = (totals(captured[name]) for name in ("baseline-idle", "cpu-tier-idle"))
    assert "host_load_bytes" not in baseline
    assert "disk_read_bytes" not in baseline
    assert host_only["host_load_bytes"] == 0
    assert "disk_read_bytes" not in host_only
    assert totals(captured["tiering-idle"])["disk_read_bytes"] == 0


@pytest.mark.shared
def test_idle_servers_keep_the_engines_identities(captured: dict[str, Exposition]) -> None:
    for name, exposition in captured.items():
        assert identity_breaks(exposition) == (), name


def test_a_broken_identity_is_a_sentence() -> None:
    broken = parse_engine(
        "# TYPE vllm:prompt_tokens_total counter\nvllm:prompt_tokens_total 10\n"
        "# TYPE vllm:prompt_tokens_by_source_total counter\n"
        'vllm:prompt_tokens_by_source_total{source="local_compute"} 8\n'
    )
    assert identity_breaks(broken) == ("prompt tokens are 10, but their sources add up to 8",)


@pytest.mark.shared
def test_a_restart_is_seen_and_a_reset_of_the_cache_is_none(captured: dict[str, Exposition]) -> None:
    assert "process" in resets(captured["tiering-after-load"], captured["tiering-after-restart"])
    assert "prompt_tokens" in resets(captured["tiering-after-load"], captured["tiering-after-restart"])
    assert resets(captured["tiering-after-fill"], captured["tiering-after-load"]) == ()


OLD = """\
# TYPE vllm:prompt_tokens_by_source_total counter
vllm:prompt_tokens_by_source_total{source="local_compute"} 100
vllm:prompt_tokens_by_source_total{source="local_cache_hit"} 50
vllm:prompt_tokens_by_source_total{source="external_kv_transfer"} 25
# TYPE vllm:kv_offload_total_bytes_total counter
vllm:kv_offload_total_bytes_total{transfer_type="CPU_to_GPU"} 4096
vllm:kv_offload_total_bytes_total{transfer_type="GPU_to_CPU"} 8192
"""


def test_older_servers_tell_bytes_under_other_names_and_no_tiers() -> None:
    exposition = parse_engine(OLD)
    assert source_counters(exposition) == {"computed": 100, "device": 50, "elsewhere": 25}
    assert sources(exposition, exposition) == {"device": 0, "host": None, "disk": None, "computed": 0}
    assert totals(exposition)["host_load_bytes"] == 4096
    assert totals(exposition)["host_store_bytes"] == 8192
    newer = parse_engine(
        OLD + "# TYPE vllm:kv_offload_load_bytes_total counter\nvllm:kv_offload_load_bytes_total 1\n"
    )
    assert totals(newer)["host_load_bytes"] == 1


def test_a_number_beyond_all_bounds_is_no_exposition() -> None:
    with pytest.raises(ValueError, match="no exposition"):
        parse("# TYPE a counter\na_total " + "9" * 400)
