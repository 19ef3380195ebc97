"""One comparison as rows of the history: one row per rule and candidate. Pure; values in the rule's base unit."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime

import pyarrow as pa

from kvbench.errors import InputError
from kvbench.judge.verdict import CandidateVerdict, RuleResult, Verdict
from kvbench.record.manifest import Manifest
from kvbench.report.wording import is_ratio, is_upper, what_is_judged

__all__ = ["HISTORY", "VERSIONS", "content_digest", "rows_of"]

SECONDS = pa.timestamp("s", tz="UTC")
HISTORY = pa.schema(
    [
        ("schema", pa.int32()),
        ("run", pa.string()),  # the run's folder name
        ("run_digest", pa.string()),  # the same run wherever its folder lies
        ("created", SECONDS),
        ("recorded", SECONDS),
        ("baseline", pa.string()),
        ("candidate", pa.string()),
        ("verdict", pa.string()),  # of this candidate
        ("rounds", pa.int32()),
        ("confidence", pa.float64()),
        ("engine", pa.string()),
        ("baseline_engine", pa.string()),
        ("driver", pa.string()),
        ("kvbench", pa.string()),
        ("profile_digest", pa.string()),
        ("baseline_digest", pa.string()),
        ("workload_digest", pa.string()),
        ("rules_digest", pa.string()),
        ("kernel", pa.string()),
        ("cpu", pa.string()),
        ("rule", pa.string()),
        ("kind", pa.string()),
        ("status", pa.string()),
        ("what", pa.string()),
        ("metric", pa.string()),
        ("class", pa.string()),
        ("unit", pa.string()),
        ("ratio", pa.bool_()),  # effect, interval and limit are candidate / baseline
        ("upper", pa.bool_()),  # the limit is the most that is allowed
        ("baseline_value", pa.float64()),
        ("candidate_value", pa.float64()),
        ("effect", pa.float64()),  # null: not measured
        ("ci_low", pa.float64()),
        ("ci_high", pa.float64()),
        ("limit", pa.float64()),
        ("text", pa.string()),
    ]
)
"""Later versions add columns at the end."""
VERSIONS = {
    "engine": "engine",
    "baseline_engine": "engine of the baseline",
    "driver": "driver",
    "kvbench": "kvbench",
    "profile_digest": "profile",
    "baseline_digest": "profile of the baseline",
    "workload_digest": "workload",
    "rules_digest": "rules",
    "kernel": "kernel",
    "cpu": "processor",
}
"""Columns that say what a run was made with, and their names for people."""
NOT_CONTENT = frozenset({"recorded"})


def rows_of(manifest: Manifest, verdict: Verdict, recorded: datetime) -> pa.Table:
    """A row for each rule of each candidate, schema `HISTORY`. InputError when run.json holds no usable date."""
    try:
        created = datetime.fromisoformat(manifest.created_utc).astimezone(UTC)
    except ValueError:
        raise InputError(f"run.json of {manifest.run_id} holds no date: {manifest.created_utc!r}") from None
    run = {
        "schema": 1,
        "run": manifest.run_id,
        "run_digest": _run_digest(manifest),
        "created": created.replace(microsecond=0),
        "recorded": recorded.replace(microsecond=0),
        "confidence": manifest.rules.confidence,
        "kvbench": manifest.kvbench,
        "driver": _text(manifest.host.get("gpu_driver")),
        "kernel": _text(manifest.host.get("kernel")),
        "cpu": _text(manifest.host.get("cpu_model")),
        "workload_digest": manifest.digests.get("workload"),
        "rules_digest": manifest.digests.get("rules"),
    }
    rows = [
        {**run, **_arms(manifest, candidate), **_rule(result, manifest)}
        for candidate in verdict.candidates or [verdict]
        for result in candidate.rules
    ]
    return pa.Table.from_pylist(rows, schema=HISTORY)


def content_digest(table: pa.Table) -> str:
    """sha256 of what the rows say, whenever they were written: the same verdict on the same run has the same."""
    content = table.drop_columns(list(NOT_CONTENT)).to_pylist()
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def _run_digest(manifest: Manifest) -> str:
    """Two machines can begin runs of one name in one second; what they are about and where tells them apart."""
    identity = [manifest.run_id, manifest.created_utc, manifest.seed, manifest.host, manifest.digests]
    return hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()


def _arms(manifest: Manifest, verdict: CandidateVerdict) -> dict[str, object]:
    return {
        "baseline": verdict.baseline,
        "candidate": verdict.candidate,
        "verdict": verdict.verdict.value,
        "rounds": verdict.rounds.done,
        "engine": _engine(manifest, verdict.candidate),
        "baseline_engine": _engine(manifest, verdict.baseline),
        "profile_digest": manifest.digests.get(f"profile {verdict.candidate}"),
        "baseline_digest": manifest.digests.get(f"profile {verdict.baseline}"),
    }


def _engine(manifest: Manifest, arm: str) -> str:
    """`vllm 0.32.0`: the version that ran, else the one that was asked for."""
    ran = [r.engine_version for r in manifest.rounds if r.arm == arm and r.state == "done" and r.engine_version]
    engine = manifest.arm(arm).profile.engine
    return f"{engine.kind} {ran[-1] if ran else engine.version or '(version not told)'}"


def _rule(result: RuleResult, manifest: Manifest) -> dict[str, object]:
    low, high = result.ci or result.decision_ci or (None, None)
    return {
        "rule": result.rule,
        "kind": result.kind,
        "status": result.status,
        "what": what_is_judged(result, manifest.rules),
        "metric": result.metric,
        "class": result.class_,
        "unit": result.unit,
        "ratio": is_ratio(result, manifest.rules),
        "upper": is_upper(result, manifest.rules),
        "baseline_value": result.baseline,
        "candidate_value": result.candidate,
        "effect": result.effect,
        "ci_low": low,
        "ci_high": high,
        "limit": result.limit,
        "text": result.text,
    }


def _text(value: object) -> str | None:
    return None if value is None else str(value)
