"""Every tier form in vLLM's words: golden arguments, what a release would ignore, and traps told in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest

from kvbench.engine.vllm import Place, render
from kvbench.engine.vllm_traps import traps
from kvbench.errors import InputError
from kvbench.spec.profile import Profile, SpecModel
from kvbench.spec.secondary import ExampleTier, KvcrTier, ObjectTier, PeerTier

PLACE = Place(
    command=("python3", "-m", "vllm.entrypoints.openai.api_server"),
    embedded=False,
    port=8000,
    engine_id="kvbench-x",
    model="/m",
    local_model=True,
    disk_directory=Path("/kv/kvbench-arm-1"),
    cores=8,
)


def a_profile(
    *, version: str | None = "0.32.0", args: dict | None = None, model: str = "/m", **tiers: object
) -> Profile:
    engine = {
        "kind": "vllm",
        "command": list(PLACE.command),
        "version": version,
        "model": model,
        "args": args or {},
    }
    return Profile.model_validate({"name": "arm", "engine": engine, "tiers": tiers})


HOST = {"size": "16GiB"}
EXAMPLE = {"type": "example"}
FORMS: dict[str, tuple[dict, list[str]]] = {
    "native": (
        {"host": HOST},
        ["--kv-offloading-size 16 --kv-offloading-backend native", '{"engine_id": "kvbench-x"}'],
    ),
    "native, not whole GiB": (
        {"host": {"size": "1500MiB"}},
        ["--kv-offloading-size 1.46484375 --kv-offloading-backend native", '{"engine_id": "kvbench-x"}'],
    ),
    "lmcache": (
        {"host": {**HOST, "via": "lmcache"}},
        [
            "--kv-offloading-size 16 --kv-offloading-backend lmcache",
            '{"engine_id": "kvbench-x", "kv_connector_extra_config": {"lmcache.mp.host": "tcp://localhost", '
            '"lmcache.mp.port": 5555, "lmcache.mp.mq_timeout": 10.0}}',
        ],
    ),
    "lmcache, inside the engine": (
        {"host": {**HOST, "via": "lmcache", "in_process": True}},
        ["", '{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both", "engine_id": "kvbench-x"}'],
    ),
    "offloading": (
        {"host": {**HOST, "via": "offloading"}},
        [
            "",
            '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "engine_id": "kvbench-x", '
            '"kv_connector_extra_config": {"spec_name": "CPUOffloadingSpec", "cpu_bytes_to_use": 17179869184}}',
        ],
    ),
    "offloading, every key": (
        {
            "host": {
                **HOST,
                "via": "offloading",
                "policy": "arc",
                "blocks_per_chunk": 4,
                "store_threshold": 2,
                "max_tracker_size": 1000,
                "offload_prompt_only": False,
                "canonical_layout": True,
            }
        },
        [
            "",
            '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "engine_id": "kvbench-x", '
            '"kv_connector_extra_config": {"spec_name": "CPUOffloadingSpec", "cpu_bytes_to_use": 17179869184, '
            '"eviction_policy": "arc", "blocks_per_chunk": 4, "store_threshold": 2, "max_tracker_size": 1000, '
            '"offload_prompt_only": false, "canonical_layout": true}}',
        ],
    ),
    "native, chunks in tokens": (
        {"host": {**HOST, "chunk_tokens": 256}},
        [
            "--kv-offloading-size 16 --kv-offloading-backend native",
            '{"engine_id": "kvbench-x", "kv_connector_extra_config": {"block_size": 256}}',
        ],
    ),
    "tiering, files": (
        {
            "host": {**HOST, "via": "offloading"},
            "disk": {"path": "/kv", "read_threads": 32, "write_threads": 8, "locality": "REMOTE"},
        },
        [
            "",
            '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "engine_id": "kvbench-x", '
            '"kv_connector_extra_config": {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 17179869184, '
            '"secondary_tiers": [{"type": "fs", "root_dir": "/kv/kvbench-arm-1", "n_read_threads": 32, '
            '"n_write_threads": 8, "locality": "REMOTE"}]}}',
        ],
    ),
    "tiering, back-pressure": (
        {
            "host": HOST,
            "disk": {
                "path": "/kv",
                "backpressure": {
                    "policy": "DropStorePolicy",
                    "high_water_s": 0.01,
                    "low_water_s": 0.002,
                    "alpha": 0.2,
                    "warmup_completions": 5,
                    "decay_half_life_s": "2s",
                    "cooldown_s": "1s",
                },
            },
        },
        [
            "--kv-offloading-size 16 --kv-offloading-backend native",
            '{"engine_id": "kvbench-x", "kv_connector_extra_config": {"spec_name": "TieringOffloadingSpec", '
            '"secondary_tiers": [{"type": "fs", "root_dir": "/kv/kvbench-arm-1", "n_read_threads": 16, '
            '"n_write_threads": 16, "backpressure": {"backpressure_cls": "EMABackpressureDetector", '
            '"policy_cls": "DropStorePolicy", "high_water_s": 0.01, "low_water_s": 0.002, "alpha": 0.2, '
            '"warmup_completions": 5, "decay_half_life_s": 2.0, "cooldown_s": 1.0}}]}}',
        ],
    ),
    "tiering, object store": (
        {
            "host": HOST,
            "secondary": [
                {
                    "type": "obj",
                    "bucket": "kv",
                    "endpoint_override": "minio:9000",
                    "region": "eu",
                    "scheme": "https",
                    "ca_bundle": "/ca.pem",
                    "prefix": "p/",
                    "io_threads": 8,
                    "enable_kv_events": True,
                    "locality": "REMOTE",
                    "backpressure": {},
                }
            ],
        },
        [
            "--kv-offloading-size 16 --kv-offloading-backend native",
            '{"engine_id": "kvbench-x", "kv_connector_extra_config": {"spec_name": "TieringOffloadingSpec", '
            '"secondary_tiers": [{"type": "obj", "prefix": "p/", "io_threads": 8, "enable_kv_events": true, '
            '"locality": "REMOTE", "store_config": {"bucket": "kv", "endpoint_override": "minio:9000", '
            '"region": "eu", "scheme": "https", "ca_bundle": "/ca.pem"}, '
            '"backpressure": {"backpressure_cls": "EMABackpressureDetector"}}]}}',
        ],
    ),
    "tiering, peers and an example": (
        {
            "host": HOST,
            "secondary": [
                {
                    "type": "p2p",
                    "host": "10.0.0.1",
                    "port": 5710,
                    "backends": ["UCX"],
                    "num_threads": 8,
                    "unbound_store_timeout_s": "30s",
                },
                {"type": "example", "custom_param": 1, "backpressure": {}},
            ],
        },
        [
            "--kv-offloading-size 16 --kv-offloading-backend native",
            '{"engine_id": "kvbench-x", "kv_connector_extra_config": {"spec_name": "TieringOffloadingSpec", '
            '"secondary_tiers": [{"type": "p2p", "host": "10.0.0.1", "port": 5710, "backends": ["UCX"], '
            '"num_threads": 8, "unbound_store_timeout_s": 30.0}, {"type": "example", "custom_param": 1, '
            '"backpressure": {"backpressure_cls": "EMABackpressureDetector"}}]}}',
        ],
    ),
    "tiering, kvcr": (
        {
            "host": HOST,
            "secondary": [
                {
                    "type": "kvcr",
                    "router_capabilities": ["route"],
                    "control_host": "127.0.0.1",
                    "control_ports": [5720, 5721],
                    "control_advertise_host": "10.0.0.1",
                    "eager_ctrl_connect": False,
                    "opportunistic_query": False,
                    "enable_telemetry": True,
                    "operation_timeout_ms": 500,
                    "abandon_timeout_ms": 2000,
                    "metadata_retry_interval_ms": 50,
                    "secondary_g2_slots": 4,
                    "kvcr_service_socket_path": "/run/kvcr.sock",
                    "compatibility_digest": "abc",
                    "policy": "package.Policy",
                    "g3": {"paths": ["/g3"]},
                    "local_dram_backend": "POSIX",
                    "remote_fw_dram_backend": "GDS",
                    "backpressure": {"policy": "ThrottledDropPolicy"},
                }
            ],
        },
        [
            "--kv-offloading-size 16 --kv-offloading-backend native",
            '{"engine_id": "kvbench-x", "kv_connector_extra_config": {"spec_name": "TieringOffloadingSpec", '
            '"secondary_tiers": [{"type": "kvcr", "router_capabilities": ["route"], "control_host": "127.0.0.1", '
            '"control_ports": [5720, 5721], "control_advertise_host": "10.0.0.1", "eager_ctrl_connect": false, '
            '"opportunistic_query": false, "enable_telemetry": true, "operation_timeout_ms": 500, '
            '"abandon_timeout_ms": 2000, "metadata_retry_interval_ms": 50, "secondary_g2_slots": 4, '
            '"kvcr_service_socket_path": "/run/kvcr.sock", "compatibility_digest": "abc", '
            '"policy": "package.Policy", "g3": {"paths": ["/g3"]}, "local_dram_backend": "POSIX", '
            '"remote_fw_dram_backend": "GDS", "backpressure": {"backpressure_cls": "EMABackpressureDetector", '
            '"policy_cls": "ThrottledDropPolicy"}}]}}',
        ],
    ),
}
"""Name → tiers of a profile, and the flags and the configuration that they become."""


@pytest.mark.parametrize("form", FORMS)
def test_a_form_is_written_so(form: str) -> None:
    tiers, (flags, config) = FORMS[form]
    argv = render(a_profile(**tiers), PLACE).argv
    start = argv.index("--disable-uvicorn-access-log") + 1
    expected = [*flags.split(), "--kv-transfer-config", config]
    assert list(argv[start:]) == expected


@pytest.mark.parametrize("tier", [ObjectTier, PeerTier, ExampleTier, KvcrTier])
def test_the_forms_have_every_key_of_a_secondary_tier(tier: type[SpecModel]) -> None:
    (type_,) = get_args(tier.model_fields["type"].annotation)
    written = [entry for tiers, _ in FORMS.values() for entry in tiers.get("secondary", [])]
    keys = {key for entry in written if entry["type"] == type_ for key in entry}
    assert keys == tier.model_fields.keys() - ({"backpressure"} if tier is PeerTier else set())


@pytest.mark.parametrize(
    ("version", "tiers", "message"),
    [
        ("0.13.0", {"host": HOST}, "came with 0.14"),
        ("0.22.0", {"host": HOST, "disk": {"path": "/kv"}}, "has no file tier; it came with 0.24"),
        ("0.24.0", {"host": {**HOST, "blocks_per_chunk": 2}}, "came with 0.26"),
        ("0.30.0", {"host": HOST, "disk": {"path": "/kv", "backpressure": {}}}, "has no back-pressure"),
        ("0.24.0", {"host": HOST, "secondary": [{"type": "p2p"}]}, "secondary tier of type p2p"),
        ("0.20.0", {"host": {**HOST, "via": "lmcache"}}, "LMCache server"),
    ],
)
def test_what_a_release_would_ignore_in_silence_is_refused(version: str, tiers: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        render(a_profile(version=version, **tiers), PLACE)


@pytest.mark.parametrize("version", ["0.33.0", None, "nightly"])
def test_newer_and_unknown_releases_are_not_judged(version: str | None) -> None:
    assert render(a_profile(version=version, host=HOST, disk={"path": "/kv"}), PLACE).argv


@pytest.mark.parametrize(
    ("tiers", "message"),
    [
        ({"secondary": [EXAMPLE]}, "add tiers.host"),
        ({"host": HOST, "secondary": [{"type": "fs"}]}, "fs"),
        ({"host": HOST, "secondary": [{"type": "obj", "bucket": "b", "endpoint_override": "e", "access_key": "x"}]},
         "access_key"),
        ({"host": HOST, "secondary": [{"type": "p2p", "backpressure": {}}]}, "refuses back-pressure"),
        ({"host": {**HOST, "store_threshold": 2}, "secondary": [EXAMPLE]}, "refuses store_threshold"),
        ({"host": {**HOST, "via": "lmcache"}, "secondary": [EXAMPLE]}, "tiers of its own"),
        ({"host": HOST, "disk": {"path": "/kv", "backpressure": {"high_water_s": 1, "low_water_s": 2}}}, "above"),
    ],
)  # fmt: skip
def test_what_vllm_refuses_is_refused_on_loading(tiers: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        a_profile(**tiers)


def test_an_object_store_counts_as_the_disk() -> None:
    store = {"type": "obj", "bucket": "b", "endpoint_override": "e"}
    assert a_profile(host=HOST, secondary=[store]).tier_names == ("device", "host", "disk")
    assert a_profile(host=HOST, secondary=[EXAMPLE]).tier_names == ("device", "host")


@pytest.mark.parametrize(
    ("args", "version", "seeded"),
    [
        ({}, "0.32.0", False),
        ({"prefix-caching-hash-algo": "xxhash"}, "0.32.0", True),
        ({"prefix-caching-hash-algo": "xxhash_cbor"}, None, True),
        ({}, "0.28.0", True),
    ],
)
def test_hashes_that_begin_with_pythons_seed_get_a_fixed_one(args: dict, version: str | None, seeded: bool) -> None:
    env = render(a_profile(args=args, version=version), PLACE).env
    assert ("PYTHONHASHSEED" in env) is seeded


def a_model(tmp_path: Path, **more: int) -> str:
    """4 layers, 2 KV heads of 64, bfloat16: 2,048 bytes of KV a token."""
    shape = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size": 256,
        "head_dim": 64,
        "torch_dtype": "bfloat16",
        **more,
    }
    (tmp_path / "config.json").write_text(json.dumps(shape))
    return str(tmp_path)


@pytest.mark.parametrize(
    ("args", "tiers", "words"),
    [
        ({"enable-prefix-caching": False}, {}, "prefix caching is off"),
        ({"no-enable-prefix-caching": True}, {}, "prefix caching is off"),
        ({"no_enable_prefix_caching": True}, {}, "prefix caching is off"),
        ({"speculative-config": {"method": "eagle"}}, {"host": HOST}, "speculative decoding"),
        ({"data-parallel-size": 4}, {"host": HOST}, "64 GiB in all"),
        ({}, {"host": {**HOST, "via": "lmcache"}}, "LMCache evicts"),
        ({}, {"host": {**HOST, "via": "lmcache", "in_process": True}}, "in the log alone"),
        (
            {"block-size": 128},
            {
                "device": {"blocks": 100},
                "host": {"size": "30MiB", "via": "lmcache"},
                "disk": {"path": "/kv"},
            },
            "can be told apart only roughly",
        ),
        ({}, {"host": {**HOST, "store_threshold": 1}}, "the same as 0"),
        ({}, {"host": {**HOST, "store_threshold": 3}}, "few promotions"),
        ({}, {"host": {**HOST, "max_tracker_size": 10}}, "no effect"),
        ({}, {"host": HOST, "disk": {"path": "/kv", "size_limit": "1GiB"}}, "before the disk can hold anything"),
        ({}, {"host": HOST, "disk": {"path": "/kv", "backpressure": {}}}, "a full disk does not trigger it"),
        ({"max-model-len": 8192}, {"host": {"size": "8MiB"}, "disk": {"path": "/kv"}}, "become misses"),
        ({"max-model-len": 8192}, {"host": {"size": "8MiB"}, "secondary": [EXAMPLE]}, "become misses"),
        ({}, {"host": {"size": "16KiB"}}, "smaller than one chunk (32 KiB), so it holds nothing"),
        ({"block-size": 64}, {"host": {"size": "100KiB"}}, "smaller than one chunk (128 KiB)"),
        ({"block-size": 64}, {"host": {"size": "1MiB", "blocks_per_chunk": 16}}, "smaller than one chunk (2 MiB)"),
        ({"block-size": 64}, {"host": {"size": "200KiB", "chunk_tokens": 128}}, "smaller than one chunk (256 KiB)"),
        ({}, {"host": {"size": "256KiB", "via": "lmcache"}}, "smaller than one chunk (512 KiB)"),
        (
            {"max-model-len": 8192, "max-num-seqs": 64},
            {"host": {"size": "64MiB"}, "disk": {"path": "/kv"}},
            "what does not fit is recomputed",
        ),
        (
            {"max-model-len": 8192, "max-num-seqs": 64},
            {"host": {"size": "64MiB"}, "secondary": [EXAMPLE]},
            "on the way from the tier behind it",
        ),
        (
            {"max-model-len": 8192},
            {"host": {"size": "40MiB"}, "disk": {"path": "/kv"}},
            "has room for 2 prompts of max-model-len (16 MiB) at once on their way from the tier behind it",
        ),
    ],
)
def test_traps_are_told_in_words(args: dict, tiers: dict, words: str, tmp_path: Path) -> None:
    told = traps(a_profile(args=args, model=a_model(tmp_path), **tiers))
    assert [trap for trap in told if words in trap], told


def test_without_a_max_model_len_the_longest_prompt_is_the_models_own(tmp_path: Path) -> None:
    model = a_model(tmp_path, max_position_embeddings=8192)
    (told,) = traps(a_profile(model=model, host={"size": "8MiB"}, disk={"path": "/kv"}))
    assert "smaller than one prompt of the model's own length (there is no max-model-len) (16 MiB)" in told
    assert "become misses" in told
    assert traps(a_profile(model=model, host={"size": "16MiB"})) == []
    assert traps(a_profile(model=model, args={"max-model-len": 4096}, host={"size": "8MiB"})) == []


def test_a_host_tier_with_room_for_several_prompts_is_no_trap_on_the_way_from_the_disk(tmp_path: Path) -> None:
    disk, args, model = {"path": "/kv"}, {"max-model-len": 8192}, a_model(tmp_path)
    assert traps(a_profile(args=args, model=model, host={"size": "64MiB"}, disk=disk)) == []
    kept_waiting = {**args, "max-num-seqs": 2}
    assert traps(a_profile(args=kept_waiting, model=model, host={"size": "40MiB"}, disk=disk)) == []


def test_what_is_switched_on_by_its_negative_being_false_is_no_trap(tmp_path: Path) -> None:
    assert traps(a_profile(args={"enable-prefix-caching": True}, model=a_model(tmp_path))) == []


def test_an_ordinary_profile_has_no_traps(tmp_path: Path) -> None:
    disk = {"path": "/kv", "size_limit": "200GiB"}
    assert traps(a_profile(args={"max-model-len": 8192}, model=a_model(tmp_path), host=HOST, disk=disk)) == []
