"""From a stored run to its verdict. Reads only; the same evidence gives the same verdict every time."""

from __future__ import annotations

from kvbench.judge.evidence import ArmRound, Comparison, EngineEvent, Prediction, RoundPair, ScrapeSummary
from kvbench.judge.judge import combine, judge
from kvbench.judge.verdict import CandidateVerdict, Verdict
from kvbench.record.manifest import Manifest, RoundRecord
from kvbench.record.run_directory import RunDirectory
from kvbench.record.tables import HOST, LEDGER, LIVES, METRICS, REQUESTS, TOKENS

__all__ = ["candidates", "comparison", "judge_stored", "read_round"]


def candidates(manifest: Manifest) -> list[str]:
    """Names of the candidates, in the order given."""
    return [arm.name for arm in manifest.arms if arm.role == "candidate"]


def read_round(run: RunDirectory, record: RoundRecord) -> ArmRound:
    """A recorded round with its tables."""
    return ArmRound(
        arm=record.arm,
        index=record.index,
        launch=record.launch,
        requests=run.read_table(record.arm, record.index, "requests", REQUESTS),
        tokens=run.read_table(record.arm, record.index, "tokens", TOKENS),
        metrics=run.read_table(record.arm, record.index, "metrics", METRICS),
        host=run.read_table(record.arm, record.index, "host", HOST),
        scrapes=ScrapeSummary(**record.scrapes.model_dump()),
        complete=record.state == "done" and not record.events and not record.load_faults,
        events=tuple(EngineEvent(**event.model_dump()) for event in record.events),
        config_differences=tuple(record.config_differences),
        config_unknown=tuple(record.config_unknown),
        residue=tuple(record.residue),
        residue_unknown=tuple(record.residue_unknown),
        spoiled_attempts=record.spoiled_attempts,
        expected_sources=record.expected_sources,
        capacities=record.capacities,
        load=record.load,
        ledger=run.read_table(record.arm, record.index, "ledger", LEDGER),
        lives=run.read_table(record.arm, record.index, "lives", LIVES),
        load_faults=tuple(record.load_faults),
    )


def comparison(manifest: Manifest, candidate: str, rounds: dict[tuple[str, int], ArmRound]) -> Comparison:
    """All pairs of `candidate` whose two rounds are in `rounds`, keyed by (arm, index)."""
    baseline = manifest.arms[0]
    pairs = tuple(
        RoundPair(index, rounds[baseline.name, index], rounds[candidate, index])
        for index in range(1, manifest.rounds_planned + 1)
        if (baseline.name, index) in rounds and (candidate, index) in rounds
    )
    return Comparison(
        baseline=baseline.profile,
        candidate=manifest.arm(candidate).profile,
        workload=manifest.workload,
        rules=manifest.rules,
        pairs=pairs,
        rounds_planned=manifest.rounds_planned,
        unit=manifest.unit,
        arm_differences=tuple(manifest.arm_differences),
        predictions=tuple(Prediction(**told.model_dump(exclude={"plan"})) for told in manifest.predictions),
        attached=any(arm.profile.engine.kind == "attached" for arm in manifest.arms),
    )


def judge_rounds(manifest: Manifest, rounds: dict[tuple[str, int], ArmRound]) -> Verdict:
    """The verdict on what has been recorded so far."""
    verdicts: list[CandidateVerdict] = [
        judge(comparison(manifest, candidate, rounds)) for candidate in candidates(manifest)
    ]
    return combine(verdicts)


def judge_stored(run: RunDirectory, manifest: Manifest) -> tuple[Verdict, dict[tuple[str, int], ArmRound]]:
    """Read the rounds of a run and judge them. RecordError when a table is damaged."""
    rounds = {(r.arm, r.index): read_round(run, r) for r in manifest.rounds if r.state == "done"}
    return judge_rounds(manifest, rounds), rounds
