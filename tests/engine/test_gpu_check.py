"""`make gpu-check` says plainly when there is no GPU, and what it shows elsewhere goes onto the page."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kvbench.engine.create import render_profile
from tests.engine import tensorrt_llm_stand_in as stand_in
from tests.proofs.gpu_check import PROMPTS, Line, append, main
from tests.proofs.gpu_engines import (
    BLOCK,
    DEVICE_BLOCKS,
    PROMPT,
    lmcache_profile,
    trtllm_keys,
    trtllm_profiles,
    vllm_profiles,
    why_no_lmcache,
    why_no_vllm,
)


@pytest.fixture
def page(tmp_path: Path) -> Path:
    file = tmp_path / "verified.md"
    file.write_text("## On a GPU\n")
    return file


def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    folder = tmp_path / "bin"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_without_a_gpu_it_says_so_and_writes_nothing(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tool(tmp_path, monkeypatch, "nvidia-smi", "echo 'No devices were found'; exit 6")
    assert main(page) == 0
    assert "there is no GPU here" in capsys.readouterr().out
    assert page.read_text() == "## On a GPU\n"


def test_a_gpu_without_vllm_is_told_how_to_name_it(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tool(tmp_path, monkeypatch, "nvidia-smi", "echo 'NVIDIA H100, 81559 MiB, 570.1'")
    tool(tmp_path, monkeypatch, "python3", "exit 1")
    assert main(page) == 2
    told = capsys.readouterr().out
    assert "KVBENCH_GPU_COMMAND" in told
    assert "KVBENCH_GPU_TRTLLM_COMMAND" in told


def test_what_was_shown_is_appended_with_date_gpu_and_version(page: Path) -> None:
    append(
        page,
        ["NVIDIA H100, 81559 MiB, 570.1"],
        [Line("host", True, "promotions from host: 512 tokens")],
        "vLLM 0.32.0",
    )
    text = page.read_text()
    assert text.startswith("## On a GPU\n\n### 20")
    assert ": NVIDIA H100, 81559 MiB, 570.1; vLLM 0.32.0\n" in text
    assert "| host | ok | promotions from host: 512 tokens |\n" in text


def test_its_profiles_render_and_their_tiers_are_in_reach(tmp_path: Path) -> None:
    vllm = {"command": ["python3", "-m", "vllm.entrypoints.openai.api_server"]}
    made = [
        *vllm_profiles(vllm, "/m", tmp_path / "kv"),
        lmcache_profile(vllm, "/m"),
        *trtllm_profiles({"command": ["trtllm-serve"]}, "/m"),
    ]
    assert [profile.name for profile in made] == [
        "baseline",
        "host",
        "host-offloading-connector",
        "host-and-disk",
        "fp8",
        "lmcache-host",
        "trtllm-baseline",
        "trtllm-host",
    ]
    assert all(render_profile(profile).argv for profile in made)
    assert DEVICE_BLOCKS * BLOCK < PROMPTS * PROMPT, "the device is too small"


def test_what_is_not_here_is_not_run_and_says_how_it_would_be(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "KVBENCH_GPU_IMAGE" in (why_no_vllm(None) or "")
    assert why_no_lmcache({"image": "vllm@sha256:0"}) == (
        "vLLM is in an image, and LMCache's server would have to run beside it"
    )
    assert why_no_lmcache({"command": ["/nowhere/python"]}) == "LMCache is not beside this vLLM"
    monkeypatch.setenv("KVBENCH_GPU_TRTLLM_COMMAND", "/nowhere/trtllm-serve")
    assert trtllm_keys() is None
    monkeypatch.setenv("KVBENCH_GPU_TRTLLM_IMAGE", "trtllm@sha256:0")
    assert trtllm_keys() == {"image": "trtllm@sha256:0"}


def test_a_run_on_a_host_with_tensorrt_llm_alone_shows_its_tiers_and_names_the_rest(
    home: Path, page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given the stand-in of TensorRT-LLM, no vLLM, and a GPU that nvidia-smi names and NVML does not."""
    tool(tmp_path, monkeypatch, "nvidia-smi", "echo 'NVIDIA H100, 81559 MiB, 570.1'")
    tool(tmp_path, monkeypatch, "python3", "exit 1")
    monkeypatch.setenv("KVBENCH_GPU_TRTLLM_COMMAND", f"{sys.executable} {stand_in.__file__}")
    monkeypatch.setenv("KVBENCH_GPU_MODEL", "/models/m")  # the stand-in has blocks of its own size
    assert main(page) == 0, page.read_text()
    rows = [line.split(" | ") for line in page.read_text().splitlines() if line.count(" | ") == 2]
    shown = {(row[0].removeprefix("| "), row[1]): row[2] for row in rows}
    assert shown["vllm", "not run"].startswith("there is no vLLM")
    assert shown["lmcache", "not run"].startswith("there is no vLLM")
    assert ("doctor, host_to_device", "not run") in shown
    assert ("doctor, memory_copy", "ok") in shown
    texts = [row[2] for row in rows if row[0] == "| trtllm-host"]
    assert any(text.startswith("promotions from host: ") and "host: 0" not in text for text in texts), texts
    assert any(text.startswith("answers are the baseline's") for text in texts), texts
