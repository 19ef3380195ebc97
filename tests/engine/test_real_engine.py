"""The embedded vLLM, really launched: proven to be what its profile says, and gone without a trace afterwards."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from kvbench.engine.base import Effective, Launch
from kvbench.engine.create import create_engine
from kvbench.engine.environment import EngineEnvironment, kvbench_home
from kvbench.engine.launch import plan_disk_directory
from kvbench.engine.ports import check_free
from kvbench.engine.processes import shm_files
from kvbench.engine.ready import StartFailed
from kvbench.spec.loading import load_profile
from kvbench.spec.profile import Profile
from tests.embedded import embedded_engine
from tests.engine.test_keeper import gone

pytestmark = pytest.mark.engine

BLOCKS, BLOCK_TOKENS = 66, 128
HOST_BYTES = 32 * 2**20


def a_profile(env: EngineEnvironment, tmp_path: Path, *, tiered: bool) -> Profile:
    tiers: dict = {"device": {"blocks": BLOCKS}}
    if tiered:
        tiers |= {"host": {"size": HOST_BYTES}, "disk": {"path": str(tmp_path / "kv"), "read_threads": 2}}
    return Profile.model_validate(
        {"name": "arm", "engine": embedded_engine(env, max_model_len=8192), "tiers": tiers}
    )


def ask(base_url: str, prompt: Sequence[int] = (*range(32, 232), *range(32, 232)), **more: object) -> dict:
    """One completion, of three blocks of tokens unless told."""
    body = {"model": "tiny", "prompt": list(prompt), "max_tokens": 4, "ignore_eos": True, **more}
    answer = httpx.post(f"{base_url}/v1/completions", json=body, timeout=120, trust_env=False)
    answer.raise_for_status()
    return answer.json()["usage"]


@pytest.mark.parametrize("tiered", [False, True], ids=["baseline", "host-and-disk"])
def test_an_engine_is_launched_proven_reset_and_leaves_nothing(
    engine_env: EngineEnvironment, tmp_path: Path, tiered: bool
) -> None:
    before = shm_files()
    profile = a_profile(engine_env, tmp_path, tiered=tiered)
    disk = plan_disk_directory(tmp_path / "kv", "arm-1") if tiered else None
    said: list[str] = []
    engine = create_engine(profile, Launch(tmp_path, tmp_path / "engine-1.log", disk, "arm-1"))
    try:
        endpoint = engine.start(said.append)
        proves(engine.effective(), tiered=tiered)
        assert ask(endpoint.base_url)["prompt_tokens_details"]["cached_tokens"] == 0
        assert ask(endpoint.base_url)["prompt_tokens_details"]["cached_tokens"] == 3 * BLOCK_TOKENS
        assert engine.reset() == ()
        assert ask(endpoint.base_url)["prompt_tokens_details"]["cached_tokens"] == 0, "every tier was emptied"
        pids = engine.state().pids
        assert len(pids) >= 3
    finally:
        engine.stop()
    assert any("loading weights" in line or "weights are loaded" in line for line in said)
    assert all(gone(pid) for pid in pids)
    assert not {file.name for file in shm_files() - before if file.name.startswith("vllm_offload_kvbench")}
    check_free(int(endpoint.base_url.rpartition(":")[2]))
    assert not (tmp_path / "kv").exists()
    assert not [path for path in (kvbench_home() / "leases").glob("*.json") if '"arm-1"' in path.read_text()]


def test_a_request_is_served_past_the_disk_when_it_asks_for_that(
    engine_env: EngineEnvironment, tmp_path: Path
) -> None:
    """Given two documents that are on the disk alone, then the one that asks is computed, and the other is read."""
    disk = plan_disk_directory(tmp_path / "kv", "arm-1")
    profile = a_profile(engine_env, tmp_path, tiered=True)
    engine = create_engine(profile, Launch(tmp_path, tmp_path / "engine-1.log", disk, "arm-1"))

    def document(number: int, tokens: int) -> list[int]:
        return random.Random(number).choices(range(32, 232), k=tokens)

    try:
        endpoint = engine.start(print)
        assert endpoint.past_secondary is not None
        for number in (1, 2):
            ask(endpoint.base_url, document(number, 1100))
        for number in range(3, 9):
            ask(endpoint.base_url, document(number, 8000))  # more than the device and the host hold together
        held_out = ask(endpoint.base_url, document(1, 1100), **endpoint.past_secondary)
        assert held_out["prompt_tokens_details"]["cached_tokens"] == 0
        assert ask(endpoint.base_url, document(2, 1100))["prompt_tokens_details"]["cached_tokens"] == 1024
    finally:
        engine.stop()


def test_blocks_of_fp8_are_proven_and_a_processor_without_them_is_named(
    engine_env: EngineEnvironment, tmp_path: Path
) -> None:
    shipped = load_profile("cpu/fp8")
    blocks, kv_dtype = shipped.tiers.device.blocks, shipped.tiers.device.kv_dtype
    flags = set(Path("/proc/cpuinfo").read_text().split())
    engine = create_engine(shipped, Launch(tmp_path, tmp_path / "engine-1.log", None, "arm-1"))
    try:
        if not {"avx512f", "amx_tile"} & flags:
            with pytest.raises(StartFailed, match="fp8 KV blocks need a processor with AVX-512 or AMX") as caught:
                engine.start(print)
            assert caught.value.cause.id == "fp8-cpu"
            return
        endpoint = engine.start(print)
        effective = engine.effective()
        assert (effective.differences, effective.device_blocks, effective.kv_dtype) == ((), blocks, kv_dtype)
        assert ask(endpoint.base_url)["prompt_tokens"] == 400
    finally:
        engine.stop()


def proves(effective: Effective, *, tiered: bool) -> None:
    assert effective.differences == ()
    assert effective.unknown == ()
    assert (effective.device_blocks, effective.block_tokens, effective.max_model_len) == (
        BLOCKS,
        BLOCK_TOKENS,
        8192,
    )
    assert effective.disk is tiered
    assert effective.host_bytes == (HOST_BYTES if tiered else 0)
