"""`kvbench compare` of two engines that run already, emulated and embedded: it starts none and stops none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from kvbench.engine.base import Launch
from kvbench.engine.create import create_engine
from kvbench.engine.environment import EngineEnvironment
from kvbench.engine.launch import plan_disk_directory
from kvbench.engine.launched import LaunchedEngine
from kvbench.spec.profile import Profile
from tests.cli.files import write
from tests.cli.invoke import Answer, kvbench
from tests.embedded import embedded_engine

TIERS: Mapping[str, Mapping[str, Any]] = {
    "base": {"device": {"blocks": 66}},
    "tiered": {"device": {"blocks": 66}, "host": {"size": 64 * 2**20}},
}
WITH_DISK: Mapping[str, Mapping[str, Any]] = {
    "base": TIERS["base"],
    "tiered": {"device": {"blocks": 30}, "host": {"size": 8 * 2**20}, "disk": {"path": "kv"}},
}
"""Twelve documents of eight blocks: the device keeps three, the host four, in 256 KiB a block."""
WORKLOAD = """\
name: documents
seed: 3
arrivals: {{process: poisson, rate: {rate}/s}}
phases: [{{name: warm, for: 1s, measured: false}}, {{name: steady, for: 4s}}]
classes:
  long: {{weight: 1, prefix: {{tokens: 1024, pool: 12, popularity: uniform}}, suffix_tokens: 64, output_tokens: 4}}
request_timeout: 30s
"""
EACH_ONCE = "prime: each_prefix_once\n"
"""So that a few requests are enough for some to come from behind the device."""
RULES = """\
guardrails:
  - {id: ttft, metric: ttft, quantile: 0.5, max_ratio: 20}
evidence: [{id: promoted, metric: promoted_tokens, min: 1}]
benefits: [{id: faster, metric: ttft, quantile: 0.5, max_ratio: 0.8}]
rounds: {min: 1, max: 1}
validity: {send_lag_p99: 1s, contention: 100, scrape_coverage: 50%, scrape_gap: 10s}
"""


@dataclass(frozen=True)
class Compared:
    """A comparison, and the engines that were there before it and after it."""

    answer: Answer
    run: Path
    before: dict[str, tuple[int, ...]]
    """Arm → processes of its engine."""
    after: dict[str, tuple[int, ...]]

    @property
    def verdict(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.answer.out)
        return found


def compared(
    folder: Path,
    engine: Mapping[str, object],
    rate: float,
    *,
    tiers: Mapping[str, Mapping[str, Any]] = TIERS,
    more: str = "",
) -> Compared:
    """Start both engines at once, compare them as attached servers, and stop them. `more`: of the workload."""
    engines = {name: started(folder, name, engine, tiers[name]) for name in tiers}
    try:
        with ThreadPoolExecutor(2) as threads:
            ends = list(threads.map(lambda each: each.start(lambda _: None), engines.values()))
        before = {name: engine.state().pids for name, engine in engines.items()}
        profiles = {
            name: yaml.safe_dump(
                {
                    "name": name,
                    "engine": {"kind": "attached", "base_url": end.base_url, "model": "tiny"},
                    "tiers": tiers[name],
                }
            )
            for name, end in zip(engines, ends, strict=True)
        }
        files = write(folder, **profiles, workload=WORKLOAD.format(rate=rate) + more, rules=RULES)
        answer = kvbench(
            "compare", files["base"], files["tiered"], "--workload", files["workload"], "--rules", files["rules"],
            "--out", folder / "results", "--json", timeout_s=400,
        )  # fmt: skip
        after = {name: engine.state().pids for name, engine in engines.items()}
    finally:
        for engine_ in engines.values():
            engine_.stop()
    runs = list((folder / "results").glob("*"))
    assert len(runs) == 1, answer.text
    return Compared(answer, runs[0], before, after)


def started(folder: Path, name: str, engine: Mapping[str, object], tiers: Mapping[str, Any]) -> LaunchedEngine:
    """An engine that is ready to be started."""
    profile = Profile.model_validate({"name": name, "engine": engine, "tiers": tiers})
    directory = folder / f"{name}-server"
    directory.mkdir()
    disk = plan_disk_directory(folder / "kv", f"{name}-1") if "disk" in tiers else None
    made = create_engine(profile, Launch(directory, directory / "engine-1.log", disk, f"{name}-1"))
    assert isinstance(made, LaunchedEngine)
    return made


def holds(found: Compared) -> None:
    """It ran to its end against these servers, nothing was started, and the tier was seen at work."""
    verdict = found.verdict
    assert verdict["verdict"] in ("GO", "NO_GO", "INCONCLUSIVE"), verdict["reasons"]
    assert found.answer.code == verdict["exit_code"]
    assert found.before == found.after, "the same processes as before"
    assert all(found.before.values())
    for name in TIERS:
        rows = pd.read_parquet(found.run / "arms" / name / "round-1" / "requests.parquet")
        assert (rows["status"] == "ok").all(), rows["error"].dropna().unique()
        assert (rows["prompt_tokens_engine"] == rows["prompt_tokens_planned"]).all()
        assert not list((found.run / "arms" / name / "round-1").glob("engine-*.log")), "nothing was launched"
    assert verdict["sources"]["tiered"]["host"] > 0
    assert not verdict["sources"]["base"]["host"]
    manifest = json.loads((found.run / "run.json").read_text())
    assert {record["launch"] for record in manifest["rounds"]} == set(TIERS), "one launch, that of the server"


def test_two_emulated_engines_that_run_already_are_compared(tmp_path: Path) -> None:
    engine = {"kind": "emulated", "model": "tiny", "args": {"block-size": 128, "max-model-len": 4096}}
    holds(compared(tmp_path, engine, rate=10))


def test_what_the_tier_behind_the_host_does_is_measured_on_the_running_server(tmp_path: Path) -> None:
    engine = {"kind": "emulated", "model": "tiny", "args": {"block-size": 128, "max-model-len": 2048}}
    found = compared(tmp_path, engine, rate=20, tiers=WITH_DISK, more=f"{EACH_ONCE}tier_holdout: 40%\n")
    (effect,) = found.verdict["holdout"]
    rows = pd.read_parquet(found.run / "arms" / "tiered" / "round-1" / "requests.parquet")
    measured = rows[rows["measured"]]
    assert effect["held"] == int(measured["holdout"].sum()) > 5
    assert effect["kept"] == int((~measured["holdout"].astype(bool)).sum()) > 5
    assert effect["heeded"] is True
    assert effect["difference_s"] < 0, "computing a document again costs more than reading it"
    assert found.verdict["sources"]["tiered"]["disk"] > 0


@pytest.mark.engine
def test_two_embedded_engines_that_run_already_are_compared(engine_env: EngineEnvironment, tmp_path: Path) -> None:
    holds(compared(tmp_path, embedded_engine(engine_env), rate=3, more=EACH_ONCE))
