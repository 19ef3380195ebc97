"""vLLM's own parser and configuration classes, in the embedded environment, read every form that is rendered."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvbench.engine.base import KvEventTarget
from kvbench.engine.environment import EngineEnvironment
from kvbench.engine.models import model_path
from kvbench.engine.vllm import render
from kvbench.spec.loading import load_profile
from kvbench.spec.profile import Profile
from tests.engine.test_vllm_tiers import FORMS, HOST, PLACE, a_profile

pytestmark = pytest.mark.engine

READER = Path(__file__).parent / "in_engine" / "read_arguments.py"
SHIPPED = sorted((Path(__file__).resolve().parents[2] / "profiles" / "vllm").glob("*.yaml"))
ARGS: dict[str, Any] = {
    "max-model-len": 4096,
    "block-size": 32,
    "prefix-caching-hash-algo": "xxhash",
    "dtype": "float32",
}
TWO_RANKS = {**ARGS, "tensor-parallel-size": 2}
DEVICE = {"blocks": 256, "kv_dtype": "auto"}
PROFILES: dict[str, Profile] = {
    **{form: a_profile(args=ARGS, device=DEVICE, **tiers) for form, (tiers, _) in FORMS.items()},
    "fp8": a_profile(args=ARGS, device={"blocks": 256, "kv_dtype": "fp8"}, host=HOST),
    "a share of the memory": a_profile(args=ARGS, device={"memory_utilization": 0.5}),
    "prefix caching off": a_profile(args={**ARGS, "enable-prefix-caching": False}, device=DEVICE, host=HOST),
    "prefix caching on": a_profile(args={**ARGS, "enable-prefix-caching": True}, device=DEVICE),
    "two ranks": a_profile(args=TWO_RANKS, device=DEVICE, host=HOST),
    "two ranks, in bytes": a_profile(args=TWO_RANKS, device=DEVICE, host={**HOST, "via": "offloading"}),
    **{f"profiles/vllm/{file.name}": load_profile(str(file)) for file in SHIPPED},
}


def through_lmcache(name: str) -> bool:
    """Its connectors import LMCache, which need not be here: such a line is parsed only."""
    host = PROFILES[name].tiers.host
    return host is not None and host.via == "lmcache"


CONFIGURED = [name for name in PROFILES if not through_lmcache(name)]


@pytest.fixture(scope="module")
def read(engine_env: EngineEnvironment) -> dict[str, dict[str, Any]]:
    """Name → what the engine made of its arguments. The model is the tiny one, whatever the profile's."""
    model = str(model_path("tiny", engine_env, lambda _: None))
    events = KvEventTarget("tcp://127.0.0.1:5557", "kvbench-x")
    place = replace(PLACE, model=model, kv_events=events)
    lines = [list(render(profile, place).argv[len(PLACE.command) :]) for profile in PROFILES.values()]
    longer_than_the_model = {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}
    silence = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(
        [engine_env.python, READER],
        input=json.dumps(lines),
        env={**os.environ, **silence, **longer_than_the_model},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip(PROFILES, json.loads(done.stdout.splitlines()[-1]), strict=True))


def transfer(form: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(FORMS[form][1][1])
    return config


def test_the_profiles_that_are_shipped_are_among_them() -> None:
    assert {"baseline.yaml", "fp8.yaml", "host.yaml", "host-and-disk.yaml"} <= {file.name for file in SHIPPED}


@pytest.mark.parametrize("name", PROFILES)
def test_the_parser_gives_back_what_was_asked(name: str, read: dict[str, dict[str, Any]]) -> None:
    profile, parsed = PROFILES[name], read[name]["parsed"]
    device, host, args = profile.tiers.device, profile.tiers.host, profile.engine.args
    assert parsed["num_gpu_blocks_override"] == device.blocks
    assert parsed["gpu_memory_utilization"] == (device.memory_utilization or 0.92), "else vLLM's own default"
    assert parsed["kv_cache_dtype"] == device.kv_dtype
    by_flag = host is not None and host.via != "offloading" and not host.in_process
    assert parsed["kv_offloading_size"] == (host.size / 2**30 if host is not None and by_flag else None)
    assert parsed["kv_offloading_backend"] == (host.via if host is not None and by_flag else "native")
    assert parsed["max_model_len"] == args["max-model-len"]
    assert parsed["block_size"] == args.get("block-size")
    assert parsed["prefix_caching_hash_algo"] == args.get("prefix-caching-hash-algo", "sha256")
    assert parsed["enable_prefix_caching"] is args.get("enable-prefix-caching")
    assert parsed["tensor_parallel_size"] == args.get("tensor-parallel-size", 1)
    assert (parsed["host"], parsed["port"]) == ("127.0.0.1", 8000)
    assert parsed["served_model_name"] == [profile.served_name]
    assert parsed["revision"] == profile.engine.revision
    assert parsed["enable_prompt_tokens_details"] is True
    assert parsed["kv_events_config"]["topic"] == "kvbench-x"


@pytest.mark.parametrize("form", FORMS)
def test_the_parser_gives_back_the_connector_that_was_asked_for(form: str, read: dict[str, dict[str, Any]]) -> None:
    asked, parsed = transfer(form), read[form]["parsed"]["kv_transfer_config"]
    assert parsed["engine_id"] == "kvbench-x"
    assert (parsed["kv_connector"], parsed["kv_role"]) == (asked.get("kv_connector"), asked.get("kv_role"))
    extra = dict(parsed["kv_connector_extra_config"])
    for tier in extra.get("secondary_tiers", []):
        if tier["type"] == "fs":
            assert tier.pop("enable_kv_events") is True, "somebody listens"
    assert extra == asked.get("kv_connector_extra_config", {})


@pytest.mark.parametrize("name", CONFIGURED)
def test_the_configuration_holds_what_was_asked_of_the_device(name: str, read: dict[str, dict[str, Any]]) -> None:
    profile, cache = PROFILES[name], read[name]["configured"]["cache"]
    device, args = profile.tiers.device, profile.engine.args
    assert cache["cache_dtype"] == device.kv_dtype
    assert cache["gpu_memory_utilization"] == (device.memory_utilization or 0.92)
    assert cache["num_gpu_blocks_override"] == device.blocks
    assert cache["enable_prefix_caching"] is args.get("enable-prefix-caching", True)
    assert cache["prefix_caching_hash_algo"] == args.get("prefix-caching-hash-algo", "sha256")
    assert cache["block_size"] == args.get("block-size", cache["block_size"])
    assert read[name]["configured"]["ranks"] == args.get("tensor-parallel-size", 1)


@pytest.mark.parametrize("name", CONFIGURED)
def test_the_configuration_holds_the_size_in_bytes_over_all_ranks_and_the_right_class(
    name: str, read: dict[str, dict[str, Any]]
) -> None:
    configured, tiers = read[name]["configured"], PROFILES[name].tiers
    if tiers.host is None:
        assert configured["transfer"] is None
        return
    assert configured["transfer"]["kv_connector"] == "OffloadingConnector"
    assert configured["transfer"]["kv_role"] == "kv_both"
    assert int(configured["transfer"]["kv_connector_extra_config"]["cpu_bytes_to_use"]) == tiers.host.size
    assert configured["spec"] == ("TieringOffloadingSpec" if tiers.behind_host else "CPUOffloadingSpec")


@pytest.mark.parametrize("form", [form for form in FORMS if form.startswith("tiering")])
def test_every_secondary_tier_takes_its_keys(form: str, read: dict[str, dict[str, Any]]) -> None:
    found = read[form]["secondary"]
    asked = transfer(form)["kv_connector_extra_config"]["secondary_tiers"]
    assert len(found) == len(asked)
    for tier, seen in zip(asked, found, strict=True):
        assert seen["tier"] == ("EMABackpressureDetector" if "backpressure" in tier else None)
        assert (seen["not_here"] is None) or tier["type"] == "kvcr", "kvcr is a package that is not installed here"
        assert seen["unknown"] == [], "its class takes no such keys"
