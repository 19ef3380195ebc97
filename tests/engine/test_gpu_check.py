"""`make gpu-check` says plainly when there is no GPU, and what it shows elsewhere goes onto the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvbench.engine.create import render_profile
from tests.proofs import gpu_check
from tests.proofs.gpu_check import Line, append, main, profiles


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
    assert "KVBENCH_GPU_COMMAND" in capsys.readouterr().out


def test_what_was_shown_is_appended_with_date_gpu_and_version(page: Path) -> None:
    append(
        page, ["NVIDIA H100, 81559 MiB, 570.1"], [Line("host", True, "promotions from host: 512 tokens")], "0.32.0"
    )
    text = page.read_text()
    assert text.startswith("## On a GPU\n\n### 20")
    assert ": NVIDIA H100, 81559 MiB, 570.1; vLLM 0.32.0\n" in text
    assert "| host | ok | promotions from host: 512 tokens |\n" in text


def test_its_profiles_render_and_their_tiers_are_in_reach(tmp_path: Path) -> None:
    made = list(
        profiles({"command": ["python3", "-m", "vllm.entrypoints.openai.api_server"]}, "/m", tmp_path / "kv")
    )
    assert [profile.name for profile in made] == [
        "baseline",
        "host",
        "host-offloading-connector",
        "host-and-disk",
        "fp8",
    ]
    assert all(render_profile(profile).argv for profile in made)
    assert gpu_check.DEVICE_BLOCKS * gpu_check.BLOCK < gpu_check.PROMPTS * gpu_check.PROMPT, (
        "the device is too small"
    )
