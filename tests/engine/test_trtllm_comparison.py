"""A whole comparison of two TensorRT-LLM profiles, played by the stand-in: who held the KV is known in the end."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pandas as pd
import pytest

from kvbench.judge.findings import PASSES
from tests.cli.invoke import Answer, kvbench

STAND_IN = Path(__file__).with_name("tensorrt_llm_stand_in.py")

PROFILE = """\
name: {name}
engine:
  kind: tensorrt-llm
  command: [{python}, {stand_in}]
  version: 1.2.1
  model: /models/m
  env: {env}
tiers:
  device: {{blocks: 48}}
{host}
"""

WORKLOAD = """\
name: long
seed: 5
arrivals: {process: constant, rate: 12/s}
phases:
  - {name: warm, for: 3s, measured: false}
  - {name: steady, for: 3s}
classes:
  long: {weight: 1, prefix: {tokens: 512, pool: 6}, suffix_tokens: 32, output_tokens: 4}
request_timeout: 10s
"""

RULES = """\
guardrails:
  - {id: ttft-p50, metric: ttft, quantile: 0.5, max_ratio: 3}
  - {id: errors, metric: error_rate, max: 20%}
benefits:
  - {id: long-ttft, metric: ttft, class: long, quantile: 0.5, max_ratio: 0.9}
"""


def a_profile(name: str, *, host: str = "", env: str = "{}") -> str:
    return PROFILE.format(name=name, python=sys.executable, stand_in=STAND_IN, host=host, env=env)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Answer, Path]:
    folder = tmp_path_factory.mktemp("trtllm")
    files = {
        "baseline": a_profile("baseline"),
        "host": a_profile("host", host="  host: {size: 64MiB}"),
        "workload": WORKLOAD,
        "rules": RULES,
    }
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    answer = kvbench(
        *("compare", folder / "baseline.yaml", folder / "host.yaml"),
        *("--workload", folder / "workload.yaml", "--rules", folder / "rules.yaml"),
        *("--rounds", "1", "--json", "--out", folder / "results"),
        timeout_s=300,
    )
    runs = sorted((folder / "results").glob("*")) if (folder / "results").is_dir() else []
    assert runs, answer.text
    return answer, runs[-1]


def test_promotions_from_the_host_are_counted_from_cache_events(compared: tuple[Answer, Path]) -> None:
    answer, _ = compared
    verdict = json.loads(answer.out)
    invalid = {r["rule"]: r["text"] for r in verdict["rules"] if r["kind"] == "validity" and r["status"] == "fail"}
    assert set(invalid) <= set(PASSES), invalid  # what a machine that is busy elsewhere does to a short round
    baseline, host = verdict["sources"]["baseline"], verdict["sources"]["host"]
    assert baseline["host"] == 0
    assert host["host"] > 0
    assert host["disk"] == 0
    assert baseline["computed"] > host["computed"]


def test_the_tables_tell_what_the_server_told_once(compared: tuple[Answer, Path]) -> None:
    _, run = compared
    round_ = run / "arms" / "host" / "round-1"
    metrics = pd.read_parquet(round_ / "metrics.parquet")
    told = {"host_load_blocks", "host_store_blocks", "cache_blocks_reused", "engine_ttft_count"}
    assert told <= set(metrics["name"])
    assert metrics.loc[metrics["name"] == "metric_events_lost", "value"].max() == 0
    requests = pd.read_parquet(round_ / "requests.parquet")
    assert set(requests["status"]) == {"ok"}
    assert requests["cached_tokens"].max() > 0
    assert (requests["output_tokens_received"] == 4).all()
    assert (round_ / "trtllm-records.jsonl.gz").stat().st_size > 0
    assert "host_cache_size: 67108864" in (round_ / "trtllm.yaml").read_text()
