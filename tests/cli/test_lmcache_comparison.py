"""A baseline against LMCache's memory and file tier, stock code on both sides, on the embedded engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.files import write
from tests.cli.invoke import kvbench

pytestmark = pytest.mark.engine

BASELINE = """\
name: baseline
engine: {kind: vllm, environment: vllm-cpu, model: tiny, args: {max-model-len: 4096}}
tiers: {device: {blocks: 40}}
"""
"""The device holds three documents."""
WORKLOAD = """\
name: documents
seed: 5
arrivals: {process: poisson, rate: 4/s}
phases: [{name: steady, for: 8s}]
classes:
  document: {prefix: {tokens: 1536, pool: 14, popularity: uniform}, suffix_tokens: 64, output_tokens: 4}
prime: each_prefix_once
"""
RULES = """\
guardrails:
  - {id: errors, metric: error_rate, max: 50%}
benefits:
  - {id: ttft, metric: ttft, quantile: 0.5, max_ratio: 0.9}
evidence:
  - {id: from-files, metric: promoted_tokens, source: disk, min: 1}
  - {id: from-memory, metric: promoted_tokens, source: host, min: 1}
rounds: {min: 1, max: 1}
validity: {send_lag_p99: 2s, contention: 4, scrape_coverage: 10%, scrape_gap: 30s}
"""


def compared(folder: Path, name: str, host: str) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The verdict, and its rules by name."""
    disk = f"disk: {{path: {folder / 'kv'}, size_limit: 1GiB}}"
    candidate = BASELINE.replace("name: baseline", f"name: {name}").replace(
        "blocks: 40}", f"blocks: 40}}, host: {host}, {disk}"
    )
    files = write(folder, baseline=BASELINE, candidate=candidate, workload=WORKLOAD, rules=RULES)
    answer = kvbench(
        *("compare", files["baseline"], files["candidate"], "--workload", files["workload"]),
        *("--rules", files["rules"], "--out", folder / "out", "--json"),
        timeout_s=400,
    )
    verdict = json.loads(answer.out)
    assert "error" not in verdict, verdict
    return verdict, {rule["rule"]: rule for rule in verdict["rules"]}


@pytest.mark.usefixtures("lmcache_env")
def test_tokens_come_from_its_memory_and_from_its_files(tmp_path: Path) -> None:
    verdict, rules = compared(tmp_path, "lmcache", "{size: 28MiB, via: lmcache}")
    assert verdict["verdict"] != "INVALID", verdict["reasons"]
    sources = verdict["sources"]["lmcache"]
    assert min(sources[source] for source in ("device", "host", "disk", "computed")) > 0, sources
    assert {rules[name]["status"] for name in ("from-files", "from-memory")} == {"pass"}
    assert verdict["sources"]["baseline"]["host"] == verdict["sources"]["baseline"]["disk"] == 0
    assert not (tmp_path / "kv").exists() or not any((tmp_path / "kv").iterdir())


@pytest.mark.usefixtures("lmcache_env")
def test_lmcache_that_answers_and_never_caches_is_invalid_and_the_cause_is_said(tmp_path: Path) -> None:
    verdict, rules = compared(tmp_path, "inside", "{size: 28MiB, via: lmcache, in_process: true}")
    assert (verdict["verdict"], verdict["exit_code"]) == ("INVALID", 4)
    assert "caches nothing" in rules["config-not-as-asked"]["text"]
