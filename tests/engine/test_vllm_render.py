"""The exact command of vLLM for every kind of profile; flags and keys are those of vLLM 0.32.0."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.engine.base import KvEventTarget
from kvbench.engine.create import render_profile
from kvbench.engine.flags import flag_name, shipped_flags
from kvbench.engine.host_copy import plugin_path
from kvbench.engine.vllm import Place, render
from kvbench.errors import InputError
from kvbench.spec.loading import load_profile
from kvbench.spec.profile import Profile

REPOSITORY = Path(__file__).resolve().parents[2]
GPU = Place(
    command=("python3", "-m", "vllm.entrypoints.openai.api_server"),
    embedded=False,
    port=8000,
    engine_id="kvbench-x",
    model="org/model",
    local_model=False,
    disk_directory=Path("/mnt/kv/kvbench-arm-1"),
    cores=8,
)
CPU = Place(
    command=("/e/bin/python", "-m", "kvbench_serve"),
    embedded=True,
    port=8000,
    engine_id="kvbench-x",
    model="/m/tiny",
    local_model=True,
    disk_directory=Path("/mnt/kv/kvbench-arm-1"),
    cores=2,
)
GPU_START = (
    "python3 -m vllm.entrypoints.openai.api_server --model org/model --revision abc --served-model-name org/model "
    "--host 127.0.0.1 --port 8000 --enable-prompt-tokens-details --disable-uvicorn-access-log"
)


def a_profile(
    *, embedded: bool = False, args: dict | None = None, env: dict | None = None, **tiers: dict
) -> Profile:
    where = (
        {"environment": "vllm-cpu", "model": "tiny"}
        if embedded
        else {"command": list(GPU.command), "model": "org/model", "revision": "abc"}
    )
    engine = {"kind": "vllm", "version": "0.32.0", **where, "args": args or {}, "env": env or {}}
    return Profile.model_validate({"name": "arm", "engine": engine, "tiers": tiers})


def option(argv: tuple[str, ...], flag: str) -> str:
    return argv[argv.index(flag) + 1]


def transfer_config(argv: tuple[str, ...]) -> dict:
    return json.loads(option(argv, "--kv-transfer-config"))


def test_a_baseline_has_no_connector_and_silences_telemetry() -> None:
    rendered = render(a_profile(device={"memory_utilization": 0.85}, args={"max-model-len": 32768}), GPU)
    assert shlex.join(rendered.argv) == f"{GPU_START} --gpu-memory-utilization 0.85 --max-model-len 32768"
    assert rendered.env == {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    assert rendered.files == {}


def test_a_native_host_tier_is_asked_for_in_gib() -> None:
    argv = render(a_profile(host={"size": "16GiB"}), GPU).argv
    assert shlex.join(argv) == (
        f"{GPU_START} --kv-offloading-size 16 --kv-offloading-backend native "
        """--kv-transfer-config '{"engine_id": "kvbench-x"}'"""
    )


@given(st.integers(min_value=1, max_value=2**44))
def test_no_byte_is_lost_on_the_way_through_gib(size: int) -> None:
    argv = render(a_profile(host={"size": size}), GPU).argv
    assert int(float(option(argv, "--kv-offloading-size")) * 2**30) == size


def test_an_explicit_host_tier_is_asked_for_in_bytes() -> None:
    argv = render(a_profile(host={"size": "16GiB", "via": "offloading"}), GPU).argv
    assert transfer_config(argv) == {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "engine_id": "kvbench-x",
        "kv_connector_extra_config": {"spec_name": "CPUOffloadingSpec", "cpu_bytes_to_use": 16 * 2**30},
    }
    assert "--kv-offloading-size" not in argv


@pytest.mark.parametrize("via", ["native", "offloading"])
def test_a_disk_tier_stands_behind_the_host_in_this_launchs_own_directory(via: str) -> None:
    disk = {"path": "/mnt/kv", "read_threads": 32, "write_threads": 8}
    argv = render(a_profile(host={"size": "1GiB", "via": via}, disk=disk), GPU).argv
    extra = transfer_config(argv)["kv_connector_extra_config"]
    assert extra["spec_name"] == "TieringOffloadingSpec"
    assert extra["secondary_tiers"] == [
        {"type": "fs", "root_dir": "/mnt/kv/kvbench-arm-1", "n_read_threads": 32, "n_write_threads": 8}
    ]
    assert ("cpu_bytes_to_use" in extra) == (via == "offloading")


def test_what_a_host_tier_says_beyond_its_size_reaches_the_connector() -> None:
    host = {
        "size": "1GiB",
        "policy": "arc",
        "chunk_tokens": 256,
        "store_threshold": 2,
        "offload_prompt_only": False,
    }
    assert transfer_config(render(a_profile(host=host), GPU).argv)["kv_connector_extra_config"] == {
        "eviction_policy": "arc",
        "block_size": 256,
        "store_threshold": 2,
        "offload_prompt_only": False,
    }


def test_device_blocks_and_kv_dtype_have_their_flags() -> None:
    argv = render(a_profile(device={"blocks": 256, "kv_dtype": "fp8"}), GPU).argv
    assert option(argv, "--num-gpu-blocks-override") == "256"
    assert option(argv, "--kv-cache-dtype") == "fp8"


def test_the_embedded_engine_runs_offline_on_its_own_plugin() -> None:
    profile = a_profile(embedded=True, device={"blocks": 130}, host={"size": "96MiB"}, disk={"path": "/mnt/kv"})
    rendered = render(profile, CPU)
    extra = transfer_config(rendered.argv)["kv_connector_extra_config"]
    assert extra["spec_name"] == "HostCopyTieringSpec"
    assert extra["cpu_bytes_to_use"] == 96 * 2**20
    assert "--enforce-eager" in rendered.argv
    assert option(rendered.argv, "--dtype") == "float32"
    assert rendered.env["PYTHONPATH"] == str(plugin_path())
    assert rendered.env["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert rendered.env["OMP_NUM_THREADS"] == "2"
    assert rendered.env["OMP_WAIT_POLICY"] == "PASSIVE"
    assert rendered.env["HF_HUB_OFFLINE"] == "1"


def test_chunks_of_the_embedded_engine_are_counted_in_its_blocks() -> None:
    host = {"size": "96MiB", "chunk_tokens": 512}
    argv = render(a_profile(embedded=True, host=host), CPU).argv
    assert transfer_config(argv)["kv_connector_extra_config"]["blocks_per_chunk"] == 4
    argv = render(a_profile(embedded=True, host=host, args={"block-size": 64}), CPU).argv
    assert transfer_config(argv)["kv_connector_extra_config"]["blocks_per_chunk"] == 8


def test_what_a_profile_says_wins_over_defaults() -> None:
    profile = a_profile(
        embedded=True,
        device={"blocks": 130},
        args={"dtype": "bfloat16", "enforce-eager": False},
        env={"VLLM_CPU_KVCACHE_SPACE": "4", "PYTHONPATH": "/mine"},
    )
    rendered = render(profile, CPU)
    assert option(rendered.argv, "--dtype") == "bfloat16"
    assert "--enforce-eager" not in rendered.argv
    assert "--no-enforce-eager" in rendered.argv
    assert rendered.env["VLLM_CPU_KVCACHE_SPACE"] == "4"
    assert rendered.env["PYTHONPATH"] == f"{plugin_path()}{os.pathsep}/mine"


def test_a_profiles_environment_is_passed_and_stays_out_of_the_arguments() -> None:
    rendered = render(a_profile(env={"HF_ENDPOINT": "hunter2"}), GPU)
    assert rendered.env["HF_ENDPOINT"] == "hunter2"
    assert not any("hunter2" in argument for argument in rendered.argv)


def test_the_vllm_script_takes_its_model_as_an_operand() -> None:
    place = Place(**{**GPU.__dict__, "command": ("vllm", "serve")})
    assert render(a_profile(), place).argv[:5] == ("vllm", "serve", "org/model", "--revision", "abc")


@pytest.mark.parametrize("flag", ["kv-transfer-config.kv_role", "uds", "disable_log_stats.x"])
def test_flags_that_would_undo_the_profile_are_refused(flag: str) -> None:
    with pytest.raises(InputError, match="is kvbench's to set"):
        render(a_profile(args={flag: "x"}), GPU)


@pytest.mark.parametrize("name", ["baseline", "host", "host-and-disk", "fp8"])
def test_every_shipped_gpu_profile_renders_with_flags_that_its_version_has(name: str) -> None:
    rendered = render_profile(load_profile(REPOSITORY / "profiles" / "vllm" / f"{name}.yaml"))
    known = shipped_flags("0.32.0")
    assert known is not None
    flags = [argument for argument in rendered.argv if argument.startswith("--")]
    assert {flag_name(flag) for flag in flags} <= set(known.choices)
    assert option(rendered.argv, "--port") == "8000"


def test_a_profile_of_the_embedded_engine_renders_before_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVBENCH_HOME", str(tmp_path))
    rendered = render_profile(a_profile(embedded=True, disk={"path": "~/kv"}, host={"size": "1GiB"}))
    assert rendered.argv[0] == str(tmp_path / "engines" / "vllm-cpu" / "bin" / "python")
    assert option(rendered.argv, "--model").startswith(str(tmp_path / "models" / "tiny"))
    assert str(Path("~/kv").expanduser() / "kvbench-arm") in option(rendered.argv, "--kv-transfer-config")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("embedded", [True, False])
def test_a_flag_that_the_pinned_version_does_not_have_shows_in_the_rendering(embedded: bool) -> None:
    with pytest.raises(InputError, match="did you mean max-model-len"):
        render_profile(a_profile(embedded=embedded, args={"max-modle-len": 1}))


def test_a_server_that_is_attached_to_has_no_command() -> None:
    attached = {"kind": "attached", "base_url": "http://127.0.0.1:1", "model": "/m"}
    with pytest.raises(InputError, match="no command to show"):
        render_profile(Profile.model_validate({"name": "arm", "engine": attached}))


LISTENER = KvEventTarget("tcp://127.0.0.1:40001", "kvbench-1f")


@pytest.mark.parametrize("place", [GPU, CPU], ids=["gpu", "embedded"])
def test_an_engine_publishes_its_kv_events_where_somebody_listens(place: Place) -> None:
    """To an address without a wildcard vLLM connects, so nothing of it listens on a network."""
    arm = a_profile(embedded=place is CPU, host={"size": "1GiB"}, disk={"path": "/mnt/kv"})
    argv = render(arm, replace(place, kv_events=LISTENER)).argv
    assert json.loads(option(argv, "--kv-events-config")) == {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": "tcp://127.0.0.1:40001",
        "topic": "kvbench-1f",
    }
    (disk,) = transfer_config(argv)["kv_connector_extra_config"]["secondary_tiers"]
    assert disk["enable_kv_events"] is True
    assert "--kv-events-config" not in render(arm, place).argv, "nobody listens"


@pytest.mark.parametrize(
    "args",
    [{"kv-events-config": {"enable_kv_cache_events": True}}, {"data-parallel-size": 2}],
    ids=["own", "ranks"],
)
def test_events_that_somebody_else_has_are_left_to_him(args: dict) -> None:
    argv = render(a_profile(args=args), replace(GPU, kv_events=LISTENER)).argv
    assert "tcp://127.0.0.1:40001" not in " ".join(argv)


@pytest.mark.parametrize(("version", "told"), [("0.31.2", False), ("0.32.0", True), ("1.0", True), (None, False)])
def test_releases_that_tell_less_are_not_asked(version: str | None, told: bool) -> None:
    engine = {
        "kind": "vllm",
        "command": list(GPU.command),
        "model": "org/model",
        "revision": "abc",
        "version": version,
    }
    arm = Profile.model_validate({"name": "arm", "engine": engine})
    assert ("--kv-events-config" in render(arm, replace(GPU, kv_events=LISTENER)).argv) is told


def test_the_command_that_is_shown_publishes_to_a_stand_in() -> None:
    rendered = render_profile(load_profile(REPOSITORY / "profiles" / "vllm" / "host-and-disk.yaml"))
    assert json.loads(option(rendered.argv, "--kv-events-config"))["endpoint"] == "tcp://127.0.0.1:5557"
