"""The plugin that gives the embedded engine its tiers: its configuration, its copies, and a server that uses it."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import subprocess
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import httpx
import pytest

from kvbench.engine.base import Launch
from kvbench.engine.environment import EngineEnvironment
from kvbench.engine.host_copy import SERVER_MODULE, connector_config, plugin_path
from kvbench.engine.launch import plan_disk_directory
from kvbench.engine.vllm_engine import VllmEngine
from kvbench.spec.profile import Profile

MIB = 2**20
BLOCK_TOKENS, BLOCK_BYTES = 128, 262_144

# ---- configuration


def test_a_host_tier_alone() -> None:
    assert connector_config(engine_id="e", host_bytes=64 * MIB, store_threshold=2) == {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "engine_id": "e",
        "kv_connector_extra_config": {
            "spec_name": "HostCopySpec",
            "spec_module_path": "kvbench_host_copy",
            "cpu_bytes_to_use": 64 * MIB,
            "eviction_policy": "lru",
            "blocks_per_chunk": 1,
            "offload_prompt_only": True,
            "store_threshold": 2,
        },
    }


def test_a_disk_behind_it_slowed_on_purpose(tmp_path: Path) -> None:
    config = connector_config(
        engine_id="e",
        host_bytes=MIB,
        disk_root=tmp_path,
        policy="arc",
        blocks_per_chunk=4,
        offload_prompt_only=False,
        read_threads=3,
        write_threads=2,
        backpressure={"backpressure_cls": "EMABackpressureDetector"},
        host_throttle=5e6,
        disk_throttle=1e6,
    )
    extra = config["kv_connector_extra_config"]
    assert isinstance(extra, dict)
    assert extra["secondary_tiers"] == [
        {
            "type": "PacedFileSystemTier",
            "module_path": "kvbench_paced_disk",
            "root_dir": str(tmp_path),
            "n_read_threads": 3,
            "n_write_threads": 2,
            "read_bandwidth_bytes_per_s": 1e6,
        }
    ]
    assert extra["spec_name"] == "HostCopyTieringSpec"
    assert (extra["blocks_per_chunk"], extra["offload_prompt_only"], extra["eviction_policy"]) == (4, False, "arc")
    assert extra["kvbench_host_bandwidth_bytes_per_s"] == 5e6
    assert extra["backpressure"] == {"backpressure_cls": "EMABackpressureDetector"}
    assert json.loads(json.dumps(config)) == config


def test_every_module_that_a_configuration_names_lies_on_the_plugins_path() -> None:
    for module in (SERVER_MODULE, "kvbench_host_copy", "kvbench_paced_disk"):
        assert (plugin_path() / f"{module}.py").is_file()


# ---- pace


@pytest.fixture
def pace() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kvbench_pace", plugin_path() / "kvbench_pace.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_all_who_pay_share_one_bandwidth(pace: ModuleType) -> None:
    link = pace.Pace(1e6)
    began = time.monotonic()
    payers = [threading.Thread(target=link.pay, args=(25_000, began)) for _ in range(4)]
    for payer in payers:
        payer.start()
    for payer in payers:
        payer.join()
    assert time.monotonic() - began >= 0.1, "100 kB at 1 MB/s"


def test_time_spent_on_the_copy_itself_counts(pace: ModuleType) -> None:
    link = pace.Pace(1e6)
    began = time.monotonic() - 60
    link.pay(1_000_000, began)
    assert time.monotonic() - began < 61


def test_without_a_bandwidth_and_after_closing_nothing_waits(pace: ModuleType) -> None:
    pace.Pace(None).pay(10**18, time.monotonic())
    link = pace.Pace(1.0)
    link.close()
    link.pay(10**9, time.monotonic())


@pytest.mark.parametrize("bandwidth", [0, -1.0, float("nan")])
def test_a_bandwidth_must_be_positive(pace: ModuleType, bandwidth: float) -> None:
    with pytest.raises(ValueError, match="above zero"):
        pace.Pace(bandwidth)


# ---- copies


@pytest.mark.engine
def test_copies_are_byte_exact_for_every_chunk_size(engine_env: EngineEnvironment) -> None:
    program = Path(__file__).parent / "in_engine" / "copy_worker.py"
    ran = subprocess.run(
        [engine_env.python, program, "7", "60"],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(plugin_path())},
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    checked = json.loads(ran.stdout.splitlines()[-1])
    assert checked["blocks_per_chunk"] == [1, 2, 3, 4, 5, 8]
    assert checked["bytes"] > MIB


# ---- a server


class Server:
    """A running engine with what a test asks of it."""

    def __init__(self, base_url: str, pids: tuple[int, ...]) -> None:
        self._client = httpx.Client(base_url=base_url, timeout=120, trust_env=False)
        self.pids = pids

    def ask(self, prompt: list[int], output_tokens: int = 8) -> list[int]:
        body = {"model": "tiny", "prompt": prompt, "max_tokens": output_tokens, "temperature": 0}
        answer = self._client.post("/v1/completions", json=body | {"ignore_eos": True, "return_token_ids": True})
        answer.raise_for_status()
        return list(answer.json()["choices"][0]["token_ids"])

    def forget_device(self, *, host: bool = False) -> None:
        """Empty the device cache; retried while transfers still hold blocks."""
        for _ in range(50):
            answer = self._client.post("/reset_prefix_cache", params={"reset_external": str(host).lower()})
            if answer.json()["success"]:
                return
            time.sleep(0.1)
        raise AssertionError("the caches stay busy")

    def metrics(self) -> dict[str, float]:
        """Name with labels (without engine and model) → value."""
        time.sleep(1.0)  # scheduler metrics come with the step after the answer
        found = {}
        for line in self._client.get("/metrics").text.splitlines():
            if line.startswith("vllm:"):
                name, value = line.rsplit(" ", 1)
                found[name.replace('engine="0",', "").replace('model_name="tiny"', "").replace("{,", "{")] = float(
                    value
                )
        return found

    def tokens_by_source(self) -> dict[str, float]:
        prefix = 'vllm:prompt_tokens_cached_by_source_total{source="'
        return {
            name.removeprefix(prefix).partition('"')[0]: value
            for name, value in self.metrics().items()
            if name.replace(',source="', 'source="').startswith(prefix)
        }


def serving(env: EngineEnvironment, where: Path, tiers: dict) -> Iterator[Server]:
    profile = Profile.model_validate(
        {
            "name": "arm",
            "engine": {"kind": "vllm", "environment": env.name, "model": "tiny", "args": {"max-model-len": 4096}},
            "tiers": {"device": {"blocks": 40}, **tiers},
        }
    )
    disk = plan_disk_directory(where / "kv", "arm-1") if "disk" in tiers else None
    engine = VllmEngine(profile, Launch(where, where / "engine-1.log", disk, "arm-1"))
    try:
        endpoint = engine.start(print)
        yield Server(endpoint.base_url, engine.state().pids)
    finally:
        engine.stop()


def prompt(seed: int, tokens: int = 1024) -> list[int]:
    source = random.Random(seed)
    return [source.randint(32, 255) for _ in range(tokens)]


@pytest.fixture(scope="module")
def tiered(engine_env: EngineEnvironment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Device 40 blocks, host 32 in chunks of two, and a disk that reads half a MiB a second."""
    tiers = {
        "host": {"size": 32 * BLOCK_BYTES, "blocks_per_chunk": 2},
        "disk": {"path": str(tmp_path_factory.mktemp("disk")), "throttle": "524288B/s"},
    }
    yield from serving(engine_env, tmp_path_factory.mktemp("tiered"), tiers)


@pytest.mark.engine
def test_outputs_are_those_of_recomputation_from_every_tier(tiered: Server) -> None:
    # Given eight prompts of eight blocks, more than device and host hold together
    computed = [tiered.ask(prompt(seed)) for seed in range(8)]
    before = tiered.tokens_by_source()
    # When the latest is asked again at once, then without the device, and the first after all that
    assert tiered.ask(prompt(7)) == computed[7]
    after_device = tiered.tokens_by_source()
    tiered.forget_device()
    assert tiered.ask(prompt(7)) == computed[7]
    after_host = tiered.tokens_by_source()
    assert tiered.ask(prompt(0)) == computed[0]
    after_disk = tiered.tokens_by_source()
    # Then each answer came from the tier that had its blocks, whole but for a last block that is computed
    steps = pairwise((before, after_device, after_host, after_disk))
    for source, (earlier, later) in zip(("device", "host", "disk"), steps, strict=True):
        moved = {name: later[name] - earlier.get(name, 0) for name in later if later[name] != earlier.get(name, 0)}
        assert moved.keys() == {source}
        assert moved[source] >= 7 * BLOCK_TOKENS


@pytest.mark.engine
def test_a_slow_load_holds_up_nobody_else(tiered: Server) -> None:
    # Given a prompt that lies on the disk alone, which takes four seconds to read it
    expected = tiered.ask(prompt(20))
    tiered.metrics()  # a second for the store to the disk
    tiered.forget_device(host=True)
    finished: list[str] = []

    def long() -> None:
        assert tiered.ask(prompt(20)) == expected
        finished.append("long")

    # When a short one is sent after it
    loading = threading.Thread(target=long)
    loading.start()
    time.sleep(0.5)
    tiered.ask(prompt(21, 64), output_tokens=4)
    finished.append("short")
    loading.join()
    # Then it is answered first
    assert finished == ["short", "long"]


@pytest.mark.engine
def test_the_engines_own_metrics_stay_whole(tiered: Server) -> None:
    tiered.ask(prompt(30))
    metrics = tiered.metrics()
    for family in ("store", "load"):
        assert metrics[f"vllm:kv_offload_{family}_bytes_total{{}}"] % BLOCK_BYTES == 0
        assert metrics[f"vllm:kv_offload_{family}_bytes_total{{}}"] > 0
        assert metrics[f"vllm:kv_offload_{family}_time_total{{}}"] > 0
    for family in ("read", "write"):
        assert metrics[f'vllm:kv_offload_tiering_{family}_bytes_total{{tier="1:fs"}}'] > 0
    read_s = metrics['vllm:kv_offload_tiering_read_time_total{tier="1:fs"}']
    read_bytes = metrics['vllm:kv_offload_tiering_read_bytes_total{tier="1:fs"}']
    assert read_bytes / read_s <= 524288 * 1.05, "the metrics tell how slow the disk is"


@pytest.mark.engine
def test_a_running_server_shows_no_name_of_its_region(tiered: Server) -> None:
    maps = [line for pid in tiered.pids for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    regions = [line for line in maps if "/dev/shm/vllm_offload_" in line]
    assert regions
    assert all(line.endswith("(deleted)") for line in regions)


@pytest.mark.engine
def test_a_host_tier_alone_gives_back_what_it_was_given(engine_env: EngineEnvironment, tmp_path: Path) -> None:
    for server in serving(engine_env, tmp_path, {"host": {"size": 64 * BLOCK_BYTES}}):
        expected = [server.ask(prompt(seed)) for seed in range(6)]
        server.forget_device()
        assert [server.ask(prompt(seed)) for seed in range(6)] == expected
        assert server.tokens_by_source()["host"] >= 6 * 7 * BLOCK_TOKENS
        assert "vllm:kv_offload_load_bytes_total{}" in server.metrics()
