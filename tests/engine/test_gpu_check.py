"""`make gpu-check` says plainly when there is no GPU, and what it shows elsewhere goes onto the page."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from kvbench.engine.create import render_profile
from kvbench.errors import EngineError
from tests.conftest import REPOSITORY
from tests.engine import tensorrt_llm_stand_in as stand_in
from tests.proofs import gpu_check
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
    device, host = DEVICE_BLOCKS * BLOCK, next(p for p in made if p.tiers.disk is not None).tiers.host
    assert host is not None
    assert device < host.size // 1024 < PROMPTS * PROMPT, "each tier has to have some that the one before lost"


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
    rows = rows_of(page)
    shown = {row[:2]: row[2] for row in rows}
    assert shown["vllm", "not run"].startswith("there is no vLLM")
    assert shown["lmcache", "not run"].startswith("there is no vLLM")
    assert ("doctor, host_to_device", "not run") in shown
    assert ("doctor, memory_copy", "ok") in shown
    texts = [row[2] for row in rows if row[0] == "trtllm-host"]
    assert any(text.startswith("promotions from host: ") and "host: 0" not in text for text in texts), texts
    assert any(text.startswith("answers are the baseline's") for text in texts), texts


def rows_of(page: Path) -> list[tuple[str, str, str]]:
    """Profile, mark and text."""
    cells = [line.strip("| ").split(" | ") for line in page.read_text().splitlines() if line.count(" | ") == 2]
    return [(row[0], row[1], row[2]) for row in cells]


def emulated_in_place_of_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with a GPU that nvidia-smi names, and a Python in which vLLM is installed."""
    site = tmp_path / "site"
    (site / "vllm").mkdir(parents=True)
    (site / "vllm" / "__init__.py").touch()
    (site / "vllm-0.32.0.dist-info").mkdir()
    (site / "vllm-0.32.0.dist-info" / "METADATA").write_text("Name: vllm\nVersion: 0.32.0\n")
    tool(tmp_path, monkeypatch, "nvidia-smi", "echo 'NVIDIA H100, 81559 MiB, 570.1'")
    tool(tmp_path, monkeypatch, "python3", f'export PYTHONPATH={site}:{REPOSITORY}; exec {sys.executable} "$@"')
    monkeypatch.setenv("KVBENCH_GPU_COMMAND", "python3 -m tests.standin.emulated_vllm")


def test_a_run_through_vllm_shows_each_tier_and_what_is_not_as_asked(
    home: Path, page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given an engine that has every tier, and no KV in fp8."""
    emulated_in_place_of_vllm(tmp_path, monkeypatch)
    assert main(page) == 1, page.read_text()
    assert ": NVIDIA H100, 81559 MiB, 570.1; vLLM 0.32.0\n" in page.read_text()
    rows = rows_of(page)
    assert [row for row in rows if row[1] == "FAIL"] == [("fp8", "FAIL", "kv_dtype is auto, not fp8 as asked")]
    told = {name: " ".join(row[2] for row in rows if row[0] == name) for name, _, _ in rows}
    for name in ("baseline", "host", "host-offloading-connector", "host-and-disk", "fp8"):
        assert told[name].endswith("stopped, nothing left"), told[name]
    assert "promotions from" not in told["baseline"]
    for name in ("host", "host-offloading-connector", "host-and-disk"):
        assert "promotions from host: " in told[name]
        assert "answers are the baseline's" in told[name]
    assert "promotions from disk: " in told["host-and-disk"]
    assert ("lmcache", "not run", "LMCache is not beside this vLLM") in rows
    assert ("tensorrt-llm", "not run") in {row[:2] for row in rows}


def test_no_profile_is_begun_that_might_not_be_over_in_time(
    home: Path, page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulated_in_place_of_vllm(tmp_path, monkeypatch)
    monkeypatch.setattr(gpu_check, "tried", lambda profile, *_: [Line(profile.name, True, "was run")])
    profiles = list(vllm_profiles({"command": ["python3"]}, "/m", tmp_path))
    least = profiles[0].engine.ready_timeout + gpu_check.MARGIN_S
    for left, text in ((least - 1, "not run: no time was left for its start"), (least + 60, "was run")):
        ends_s = time.monotonic() + left
        found = list(gpu_check._each(profiles, tmp_path, {}, ends_s, None, "vllm"))
        assert [line.text for line in found] == [text] * len(profiles)
    monkeypatch.setattr(gpu_check, "LIMIT_S", least - 1)
    monkeypatch.setattr(gpu_check, "doctors", lambda profile: [])
    assert main(page) == 1
    assert {row[2] for row in rows_of(page) if row[1] == "FAIL"} == {"not run: no time was left for its start"}


def test_its_limit_leaves_time_until_make_ends_it() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    killed = re.search(r"timeout (\d+) \S+ -m tests\.proofs\.gpu_check", makefile)
    assert killed is not None
    assert gpu_check.LIMIT_S + 60 <= int(killed[1]) <= 600


def test_what_was_shown_before_an_interruption_is_on_the_page(page: Path) -> None:
    def lines() -> Iterator[Line]:
        yield Line("baseline", True, "is as asked")
        assert "| baseline | ok | is as asked |\n" in page.read_text(), "at once"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        append(page, ["NVIDIA H100"], lines(), "vLLM 0.32.0")
    assert rows_of(page)[-1] == ("baseline", "ok", "is as asked")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (httpx.ReadTimeout(""), "ReadTimeout: it says no more"),
        (KeyError("usage"), "KeyError: 'usage'"),
        (EngineError("it died\nof memory"), "EngineError: it died"),
    ],
)
def test_what_ends_one_profile_is_its_last_row(
    error: Exception, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Iterator[Line]:
        yield Line("baseline", True, "is as asked")
        raise error

    monkeypatch.setattr(gpu_check, "shown", broken)
    profile = next(vllm_profiles({"command": ["python3"]}, "/m", tmp_path))
    lines = list(gpu_check.tried(profile, tmp_path, {}))
    assert lines == [Line("baseline", True, "is as asked"), Line("baseline", False, text)]
