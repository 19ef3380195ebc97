"""What is told before anything starts: settings of an engine that are valid and mislead."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml

from kvbench.compare.preflight import check_host
from kvbench.spec.loading import load_profile
from tests.cli.files import RULES, WORKLOAD, write
from tests.cli.invoke import kvbench_here
from tests.engine import stand_in
from tests.engine.test_vllm_tiers import a_model

TRAP = (
    "tiny: the host tier of 8 MiB is smaller than one prompt of max-model-len (16 MiB); hits of such prompts in a "
    "tier behind it become misses"
)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """A baseline, and a candidate whose host tier is too small for what comes from behind it."""
    monkeypatch.setenv("KVBENCH_HOME", str(tmp_path / "home"))
    engine = {
        "kind": "vllm",
        "command": [sys.executable, "-S", stand_in.__file__],
        "version": "0.32.0",
        "model": a_model(tmp_path),
        "args": {"max-model-len": 8192},
    }
    device = {"blocks": 600}
    tiny = {"device": device, "host": {"size": "8MiB"}, "secondary": [{"type": "example"}]}
    arms = {"base": {"device": device}, "tiny": tiny}
    return write(
        tmp_path,
        **{name: yaml.safe_dump({"name": name, "engine": engine, "tiers": tiers}) for name, tiers in arms.items()},
        workload=WORKLOAD,
        rules=RULES,
    )


def asked(files: dict[str, Path]) -> list[str | Path]:
    return ["compare", files["base"], files["tiny"], "-w", files["workload"], "-r", files["rules"]]


def test_traps_are_returned_to_be_kept_with_the_run_and_said_at_once(files: dict[str, Path]) -> None:
    said: list[str] = []
    warnings = check_host([load_profile(files["base"]), load_profile(files["tiny"])], said.append)
    assert TRAP in warnings
    assert not any(warning.startswith("base: the host tier") for warning in warnings)
    assert f"note: {TRAP}" in said


def test_a_comparison_prints_them_before_it_starts_anything(files: dict[str, Path], tmp_path: Path) -> None:
    """Given a comparison that is then refused, because the arms differ in more than their tiers."""
    profile = yaml.safe_load(files["tiny"].read_text())
    profile["engine"]["args"]["block-size"] = 32
    files["tiny"].write_text(yaml.safe_dump(profile))
    answer = kvbench_here(*asked(files), "--out", tmp_path / "results")
    assert answer.code == 2, answer.text
    assert f"note: {TRAP}" in answer.err.split("--allow-difference")[0]
    assert not list((tmp_path / "results").glob("*"))


def test_a_dry_run_shows_them_to_people_and_machines(files: dict[str, Path]) -> None:
    assert f"note: {TRAP}" in kvbench_here(*asked(files), "--dry-run").out
    document = json.loads(kvbench_here(*asked(files), "--dry-run", "--json").out)
    assert TRAP in document["warnings"]
