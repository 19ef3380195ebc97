"""Runs of many nights, as `compare --record` would leave them: manifests, verdicts and the store that they make."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from kvbench.history.store import append
from kvbench.judge.verdict import Instrument, Outcome, RoundCount, RuleResult, Verdict
from kvbench.record.content import content_digests
from kvbench.record.manifest import ArmRecord, Manifest, RoundRecord
from kvbench.record.run_directory import RunDirectory
from kvbench.spec.profile import Profile
from tests.report.build import RULES, WORKLOAD

FIRST = datetime(2026, 1, 1, 2, 0, tzinfo=UTC)


@dataclass(frozen=True)
class Recorded:
    """One night's comparison, by what differs between nights."""

    night: int
    ratio: float | None = 1.0
    baseline_s: float = 0.2
    verdict: Outcome = Outcome.GO
    engine: str = "0.32.0"
    driver: str | None = "570.86.15"
    kvbench: str = "0.1.0"
    host_mib: int = 64
    seed: int = 1
    candidate: str = "tiered"

    @property
    def name(self) -> str:
        return f"{FIRST + timedelta(days=self.night):%Y%m%dT%H%M%SZ}-base-vs-{self.candidate}"


def manifest(run: Recorded) -> Manifest:
    """Its run.json."""
    profiles = [profile("base", None), profile(run.candidate, run.host_mib)]
    created = (FIRST + timedelta(days=run.night)).strftime("%Y-%m-%dT%H:%M:%SZ")
    whole = Manifest(
        kvbench=run.kvbench,
        name=f"base-vs-{run.candidate}",
        run_id=run.name,
        kind="compare",
        state="finished",
        created_utc=created,
        host={"cpu_model": "x", "kernel": "6.1", **({"gpu_driver": run.driver} if run.driver else {})},
        seed=run.seed,
        arms=[
            ArmRecord(name=each.name, role="candidate" if place else "baseline", profile=each)
            for place, each in enumerate(profiles)
        ],
        workload=WORKLOAD.model_copy(update={"seed": run.seed}),
        rules=RULES,
        rounds_planned=3,
        rounds=[
            RoundRecord(
                arm=each.name, index=1, state="done", launch=each.name, started_utc=created, order=place,
                engine_version=run.engine,
            )
            for place, each in enumerate(profiles)
        ],
    )  # fmt: skip
    return whole.model_copy(update={"digests": content_digests(whole)})


def profile(name: str, host_mib: int | None) -> Profile:
    tiers: dict[str, object] = {"device": {"blocks": 64}}
    if host_mib is not None:
        tiers["host"] = {"size": f"{host_mib}MiB"}
    return Profile.model_validate({"name": name, "engine": {"kind": "vllm", "model": "tiny"}, "tiers": tiers})


def verdict(run: Recorded) -> Verdict:
    """A ratio rule, an absolute rule, a share that is zero, and a validity rule."""
    ratio, low = run.ratio, None if run.ratio is None else run.ratio * 0.9
    tail = RuleResult(
        rule="ttft-p90", kind="guardrail", status="unknown" if ratio is None else "pass", metric="ttft",
        quantile=0.9, unit="s", limit=1.5, baseline=run.baseline_s, effect=ratio,
        candidate=None if ratio is None else run.baseline_s * ratio,
        ci=None if ratio is None or low is None else (low, ratio * 1.1), text="TTFT p90",
    )  # fmt: skip
    errors = RuleResult(
        rule="errors", kind="guardrail", status="pass", metric="error_rate", unit="fraction", limit=0.02,
        baseline=0.0, candidate=0.0, effect=0.0, ci=(0.0, 0.014), text="error rate",
    )  # fmt: skip
    fault = "fail" if run.verdict is Outcome.INVALID else "pass"
    residue = RuleResult(rule="residue", kind="validity", status=fault, text="every tier was empty")
    return Verdict(
        verdict=run.verdict,
        exit_code=run.verdict.exit_code,
        baseline="base",
        candidate=run.candidate,
        reasons=["as it was"],
        rules=[residue, tail, errors],
        sources={},
        rounds=RoundCount(done=3, planned=3, unit="round"),
        instrument=Instrument(),
    )


def record(results: Path, runs: Iterable[Recorded]) -> list[Path]:
    """Add each to the history of `results`."""
    return [append(results, manifest(run), verdict(run)) for run in runs]


def leave_run(results: Path, run: Recorded, content_bytes: int = 0) -> Path:
    """The folder of a run with its run.json and a file of that size."""
    path = results / run.name
    (path / "arms").mkdir(parents=True)
    RunDirectory(path).write_manifest(manifest(run))
    (path / "arms" / "requests.parquet").write_bytes(b"x" * content_bytes)
    return path
