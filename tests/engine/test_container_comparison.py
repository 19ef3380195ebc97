"""`kvbench compare` of two arms in real containers, the emulated engine in both; skips where none can run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml

from tests.cli.files import RULES, WORKLOAD
from tests.cli.invoke import kvbench
from tests.engine.real_containers import Runtime

REPOSITORY = Path(__file__).resolve().parents[2]


def written(real: Runtime, folder: Path, name: str, tiers: dict) -> Path:
    places = [Path("/usr"), REPOSITORY, Path(sys.prefix), Path(sys.base_prefix)]
    container = {
        "runtime": real.name,
        "gpus": "none",
        "mounts": [{"source": str(place)} for place in dict.fromkeys(places)],
        "entrypoint": [sys.executable, "-m", "tests.standin.emulated_vllm"],
        "ulimits": real.ulimits,
    }
    engine = {
        "kind": "vllm",
        "image": real.image,
        "model": "org/model",
        "revision": "abc",
        "served_name": "m",
        "args": {"max-model-len": 2048},
        "env": {"PYTHONPATH": str(REPOSITORY)},
        "container": container,
    }
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump({"name": name, "engine": engine, "tiers": {"device": {"blocks": 40}, **tiers}}))
    return file


def test_two_arms_in_containers_are_compared(
    real: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVBENCH_HOME", str(tmp_path / "home"))
    base = written(real, tmp_path, "base", {})
    tiered = written(real, tmp_path, "tiered", {"host": {"size": "1GiB"}})
    (tmp_path / "workload.yaml").write_text(WORKLOAD)
    (tmp_path / "rules.yaml").write_text(RULES)
    answer = kvbench(
        "compare", base, tiered, "--workload", tmp_path / "workload.yaml", "--rules", tmp_path / "rules.yaml",
        "--out", tmp_path / "results", "--rounds", "1", "--json", timeout_s=300,
    )  # fmt: skip
    verdict = json.loads(answer.out)
    assert verdict["verdict"] in ("GO", "NO_GO", "INCONCLUSIVE"), answer.text
    assert verdict["rounds"]["done"] == 1
    promoted = verdict["sources"]["tiered"]["host"]
    assert promoted > 0, "the flags of the host tier reached the engine in its container"
    (run,) = (tmp_path / "results").iterdir()
    assert real.image in (run / "run.json").read_text()
    assert (
        "Application startup complete"
        in next((run / "arms" / "tiered" / "round-1").glob("engine-*.log")).read_text()
    )
    assert real.names() == []
    assert list((tmp_path / "home" / "leases").glob("*")) == []
