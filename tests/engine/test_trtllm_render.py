"""The exact command and YAML of TensorRT-LLM 1.2, and what it cannot serve."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from kvbench.engine.create import render_profile
from kvbench.engine.tensorrt_llm import extra_options, render, traps
from kvbench.engine.trtllm_options import ExtraOptions, KvCacheConfig, defaults_left
from kvbench.errors import InputError
from kvbench.spec.loading import load_profile
from kvbench.spec.profile import Profile
from tests.engine.tensorrt_llm_stand_in import KvCacheConfig as StandInConfig

REPOSITORY = Path(__file__).resolve().parents[2]


def a_profile(args: dict | None = None, *, version: str | None = "1.2.1", **tiers: dict) -> Profile:
    engine = {"kind": "tensorrt-llm", "version": version, "model": "/models/m", "args": args or {}}
    return Profile.model_validate({"name": "arm", "engine": engine, "tiers": tiers})


def test_the_command_and_the_yaml_say_each_thing_once() -> None:
    profile = a_profile({"max_seq_len": 8192, "enable_chunked_prefill": True}, device={"memory_utilization": 0.5})
    rendered = render(profile, port=8000, file=Path("/run/options.yaml"))
    assert shlex.join(rendered.argv) == (
        "trtllm-serve /models/m --host 127.0.0.1 --port 8000 --backend pytorch --max_seq_len 8192 "
        "--enable_chunked_prefill --extra_llm_api_options /run/options.yaml"
    )
    assert yaml.safe_load(rendered.files["/run/options.yaml"]) == {
        "kv_cache_config": {
            "enable_block_reuse": True,
            "free_gpu_memory_fraction": 0.5,
            "host_cache_size": 0,
            "event_buffer_max_size": 16384,
            "tokens_per_block": 32,
        },
        "enable_iter_perf_stats": True,
        "return_perf_metrics": True,
        "perf_metrics_max_requests": 10000,
        "stream_interval": 1,
    }


@pytest.mark.parametrize(
    ("args", "ranks"), [({}, 1), ({"tp_size": 4}, 4), ({"tensor_parallel_size": 2, "pp-size": 2, "cp_size": 2}, 8)]
)
def test_each_rank_gets_its_share_of_the_host_tier(args: dict, ranks: int) -> None:
    config = extra_options(a_profile(args, host={"size": "64GiB", "min_priority": 30})).kv_cache_config
    assert config.host_cache_size == 64 * 2**30 // ranks
    assert config.secondary_offload_min_priority == 30


def test_device_blocks_become_tokens_and_kv_dtype_a_key() -> None:
    config = extra_options(a_profile({"tokens_per_block": 64}, device={"blocks": 100, "kv_dtype": "fp8"}))
    assert config.kv_cache_config.max_tokens == 6400
    assert config.kv_cache_config.dtype == "fp8"


def test_keys_of_the_yaml_may_be_given_as_args_and_go_there() -> None:
    rendered = render(a_profile({"print_iter_log": True, "enable_partial_reuse": False}), port=1, file=Path("/f"))
    written = yaml.safe_load(rendered.files["/f"])
    assert written["print_iter_log"] is True
    assert written["kv_cache_config"]["enable_partial_reuse"] is False
    assert not any("print_iter_log" in argument for argument in rendered.argv)


def keys_of_the_facts(shared_dir: Path) -> set[str]:
    """The first column of the table of `kv_cache_config` of 1.2."""
    text = (shared_dir / "facts" / "trtllm.md").read_text()
    table = text.partition("`kv_cache_config` (KvCacheConfig)")[2].partition("[newer] adds")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| ")]
    return {name.strip(" *") for row in rows[1:] for name in row.split("/")}


@pytest.mark.shared
def test_every_key_of_the_facts_is_known_here_and_to_the_stand_in_and_no_other(shared_dir: Path) -> None:
    facts = keys_of_the_facts(shared_dir)
    assert len(facts) >= 20
    assert set(KvCacheConfig.model_fields) == facts == set(StandInConfig.model_fields)


def test_the_prototypes_keys_go_into_the_yaml() -> None:
    profile = a_profile({"use_kv_cache_manager_v2": True, "max_util_for_resume": 0.8})
    written = yaml.safe_load(render(profile, port=1, file=Path("/f")).files["/f"])["kv_cache_config"]
    assert (written["use_kv_cache_manager_v2"], written["max_util_for_resume"]) == (True, 0.8)


def test_unknown_keys_are_refused_by_the_models_as_the_engine_does() -> None:
    with pytest.raises(ValidationError):
        KvCacheConfig.model_validate({"host_cache_sise": 1})
    with pytest.raises(ValidationError):
        ExtraOptions.model_validate({"kv_cache_config": {}, "disk_cache_size": 1})


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"max_sequ_len": 1}, "did you mean max_seq_len"),
        ({"host_cache_size": 1}, r"use tiers\.host\.size"),
        ({"backend": "tensorrt"}, "is kvbench's to set"),
        ({"stream_interval": 4}, "stream_interval"),
        ({"tp_size": 0}, "no number of ranks"),
        ({"zzz": 0}, "has no option or YAML key zzz"),
        ({"max_util_for_resume": 1.5}, "max_util_for_resume"),
        ({"tokens_per_block": 48}, "power of two"),
        ({"enable_iter_perf_stats": False}, "enable_iter_perf_stats"),
        ({"event_buffer_max_size": 0}, "event_buffer_max_size"),
    ],
)
def test_args_that_1_2_does_not_take_are_input_errors(args: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        render(a_profile(args, host={"size": "1GiB"}), port=1, file=Path("/f"))


@pytest.mark.parametrize("name", ["baseline", "host", "fp8"])
def test_every_shipped_profile_renders(name: str) -> None:
    rendered = render_profile(load_profile(REPOSITORY / "profiles" / "tensorrt-llm" / f"{name}.yaml"))
    (text,) = rendered.files.values()
    assert ("host_cache_size: 0\n" in text) == (name != "host")
    assert ("dtype: fp8" in text) == (name == "fp8")


def test_the_shipped_disk_profile_says_that_1_2_cannot_serve_it() -> None:
    with pytest.raises(InputError, match="has no disk tier"):
        load_profile(REPOSITORY / "profiles" / "tensorrt-llm" / "disk.yaml")


def test_defaults_that_are_left_to_the_engine_are_shown_with_the_file() -> None:
    text = render(a_profile(host={"size": "1GiB"}), port=1, file=Path("/f")).files["/f"]
    assert "# Left to TensorRT-LLM 1.2.1:" in text
    assert "secondary_offload_min_priority: 30 (the field has none" in text
    assert "blocks have priority 35" in text
    asked = render(a_profile(host={"size": "1GiB", "min_priority": 20}), port=1, file=Path("/f")).files["/f"]
    assert "#   kv_cache_config.secondary_offload_min_priority" not in asked


def test_defaults_of_a_release_that_nobody_knows_are_not_assumed() -> None:
    text = render(a_profile(version="1.9.0"), port=1, file=Path("/f")).files["/f"]
    assert "kv_cache_config.secondary_offload_min_priority: unknown for 1.9.0" in text


TOLD = {
    "secondary_offload_min_priority": "35",
    "enable_partial_reuse": "True",
    "dtype": "'auto'",
    "max_attention_window": "None",
    "disk_cache_size": "None",
    "free_gpu_memory_fraction": "0.9",
}


def test_what_the_very_engine_told_of_its_defaults_counts_before_what_is_known_of_its_release() -> None:
    """Given one that has keys of a newer release, and a field without a default that 1.2 fills in elsewhere."""
    rendered = render(a_profile(host={"size": "1GiB"}), port=1, file=Path("/f"), told=TOLD)
    lines = [line.removeprefix("#   kv_cache_config.") for line in rendered.files["/f"].splitlines()]
    assert "secondary_offload_min_priority: 35 (told by this engine)" in lines
    assert "enable_partial_reuse: true (told by this engine)" in lines
    of_what = "of the memory that is free after the weights"
    assert f"free_gpu_memory_fraction: 0.9 ({of_what}; told by this engine)" in lines
    assert "disk_cache_size: none (told by this engine)" in lines
    assert "max_attention_window: the model's own" in lines
    assert "copy_on_partial_reuse: true" in lines, "of what it did not tell, the release is known"


def test_of_a_release_that_nobody_knows_the_engine_tells_its_defaults_itself() -> None:
    left = defaults_left(KvCacheConfig(), "1.9.0", TOLD)
    assert "kv_cache_config.secondary_offload_min_priority: 35 (told by this engine)" in left
    assert "kv_cache_config.max_attention_window: none (told by this engine)" in left
    assert "kv_cache_config.onboard_blocks: unknown for 1.9.0" in left


def test_a_key_that_the_profile_gives_is_not_left_to_the_engine() -> None:
    left = defaults_left(KvCacheConfig(dtype="fp8"), "1.2.1", TOLD)
    assert not any(line.startswith("kv_cache_config.dtype") for line in left)


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        (a_profile(host={"size": "1GiB", "min_priority": 36}), "nothing will ever be stored in the host tier"),
        (a_profile({"enable_block_reuse": False}, host={"size": "1GiB"}), "a host tier could give back"),
        (a_profile(version=None), "not pinned"),
        (a_profile({"use_kv_cache_manager_v2": True}), "a prototype in 1.2"),
        (a_profile({"max_util_for_resume": 0.9}), "has no effect without"),
    ],
)
def test_what_will_not_do_what_it_looks_like_is_told_in_words(profile: Profile, words: str) -> None:
    assert any(words in trap for trap in traps(profile))


def test_an_ordinary_profile_has_no_traps() -> None:
    assert traps(a_profile(host={"size": "1GiB", "min_priority": 35})) == []
