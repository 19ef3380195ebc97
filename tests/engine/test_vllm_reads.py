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
from tests.engine.test_vllm_tiers import FORMS, PLACE, a_profile

pytestmark = pytest.mark.engine

READER = Path(__file__).parent / "in_engine" / "read_arguments.py"
ARGS = {"max-model-len": 4096, "block-size": 32, "prefix-caching-hash-algo": "xxhash", "dtype": "float32"}


@pytest.fixture(scope="module")
def read(engine_env: EngineEnvironment) -> dict[str, dict[str, Any]]:
    """Form → what the engine made of its arguments."""
    model = str(model_path("tiny", engine_env, lambda _: None))
    events = KvEventTarget("tcp://127.0.0.1:5557", "kvbench-x")
    lines = []
    for tiers, _ in FORMS.values():
        device = {"blocks": 256, "kv_dtype": "auto"}
        profile = a_profile(args=ARGS, device=device, **tiers)
        rendered = render(profile, replace(PLACE, model=model, kv_events=events))
        lines.append(list(rendered.argv[len(PLACE.command) :]))
    done = subprocess.run(
        [engine_env.python, READER],
        input=json.dumps(lines),
        env={**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip(FORMS, json.loads(done.stdout.splitlines()[-1]), strict=True))


def transfer(form: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(FORMS[form][1][1])
    return config


@pytest.mark.parametrize("form", FORMS)
def test_the_parser_gives_back_what_was_asked(form: str, read: dict[str, dict[str, Any]]) -> None:
    parsed = read[form]["parsed"]
    assert parsed["num_gpu_blocks_override"] == 256
    assert (parsed["max_model_len"], parsed["block_size"]) == (4096, 32)
    assert (parsed["host"], parsed["port"]) == ("127.0.0.1", 8000)
    assert parsed["prefix_caching_hash_algo"] == "xxhash"
    assert parsed["enable_prompt_tokens_details"] is True
    asked = transfer(form)
    assert parsed["kv_transfer_config"]["engine_id"] == "kvbench-x"
    extra = dict(parsed["kv_transfer_config"]["kv_connector_extra_config"])
    for tier in extra.get("secondary_tiers", []):
        if tier["type"] == "fs":
            assert tier.pop("enable_kv_events") is True, "somebody listens"
    assert extra == asked.get("kv_connector_extra_config", {})
    assert parsed["kv_events_config"]["topic"] == "kvbench-x"


@pytest.mark.parametrize("form", [form for form in FORMS if form != "lmcache"])
def test_the_configuration_holds_the_size_in_bytes_and_the_right_class(
    form: str, read: dict[str, dict[str, Any]]
) -> None:
    configured = read[form]["configured"]
    assert configured["transfer"]["kv_connector"] == "OffloadingConnector"
    assert configured["transfer"]["kv_role"] == "kv_both"
    size = FORMS[form][0]["host"]["size"]
    asked = {"16GiB": 16 * 2**30, "1500MiB": 1500 * 2**20}[size]
    assert int(configured["transfer"]["kv_connector_extra_config"]["cpu_bytes_to_use"]) == asked
    assert configured["spec"] == ("TieringOffloadingSpec" if form.startswith("tiering") else "CPUOffloadingSpec")


@pytest.mark.parametrize("form", [form for form in FORMS if form.startswith("tiering")])
def test_every_secondary_tier_takes_its_keys(form: str, read: dict[str, dict[str, Any]]) -> None:
    found = read[form]["secondary"]
    asked = transfer(form)["kv_connector_extra_config"]["secondary_tiers"]
    assert len(found) == len(asked)
    for tier, seen in zip(asked, found, strict=True):
        assert seen["tier"] == ("EMABackpressureDetector" if "backpressure" in tier else None)
        assert (seen["not_here"] is None) or tier["type"] == "kvcr", "kvcr is a package that is not installed here"
