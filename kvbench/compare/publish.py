"""All reports of a run, made from what is stored and written beside it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from kvbench.judge.evidence import ArmRound
from kvbench.judge.verdict import Verdict
from kvbench.record.atomic import write_text
from kvbench.record.content import edited
from kvbench.record.manifest import ArmRecord, Manifest
from kvbench.record.run_directory import RunDirectory
from kvbench.report.data import ArmFacts, HostFacts, ReportData, RoundTables, engine_facts, tier_sentences
from kvbench.report.html import render_html
from kvbench.report.junit import render_junit
from kvbench.report.markdown import render_markdown
from kvbench.report.verdict_json import render_verdict_json

__all__ = ["publish", "report_data"]


def publish(run: RunDirectory, data: ReportData) -> None:
    """Write verdict.json, report.html, report.md and junit.xml."""
    write_text(run.path / "verdict.json", render_verdict_json(data))
    write_text(run.path / "report.md", render_markdown(data))
    write_text(run.path / "junit.xml", render_junit(data))
    write_text(run.path / "report.html", render_html(data))


def report_data(
    run: RunDirectory, manifest: Manifest, verdict: Verdict, rounds: dict[tuple[str, int], ArmRound]
) -> ReportData:
    """What every report is made from."""
    return ReportData(
        verdict=verdict,
        name=manifest.name,
        run_id=manifest.run_id,
        directory=str(run.path),
        started_utc=datetime.fromisoformat(manifest.created_utc),
        kvbench_version=manifest.kvbench,
        host=HostFacts(
            cpu_model=str(manifest.host.get("cpu_model", "")),
            cores=int(manifest.host.get("cores", 0)),
            memory_bytes=int(manifest.host.get("memory_bytes", 0)),
            kernel=str(manifest.host.get("kernel", "")),
        ),
        arms=tuple(_arm(manifest, arm) for arm in manifest.arms),
        workload=manifest.workload,
        rules=manifest.rules,
        warnings=(*_edited(manifest), *manifest.warnings, *_stops(manifest)),
        rounds={
            arm.name: [_tables(rounds[key]) for key in sorted(rounds) if key[0] == arm.name]
            for arm in manifest.arms
        },
    )


def _edited(manifest: Manifest) -> list[str]:
    """A judgement over what was changed afterwards is shown as what it is."""
    changed = edited(manifest)
    return [f"run.json was changed after the run began: {', '.join(changed)}"] if changed else []


def _stops(manifest: Manifest) -> list[str]:
    """How engines had to be stopped, each sentence once for an arm, with its rounds."""
    told: dict[str, list[int]] = {}
    for record in manifest.rounds:
        for remark in record.stop_remarks:
            told.setdefault(f"{record.arm}: {remark}", []).append(record.index)
    return [f"{text} ({_rounds(indices)})" for text, indices in told.items()]


def _rounds(indices: Iterable[int]) -> str:
    several = sorted(set(indices))
    return f"round{'s' if len(several) > 1 else ''} {', '.join(map(str, several))}"


def _arm(manifest: Manifest, arm: ArmRecord) -> ArmFacts:
    records = [r for r in manifest.rounds if r.arm == arm.name and r.state == "done"]
    last = records[-1] if records else None
    return ArmFacts(
        name=arm.name,
        role=arm.role,
        engine=arm.profile.engine.kind,
        engine_version=last.engine_version if last else arm.profile.engine.version,
        model=arm.profile.engine.model,
        tiers=tier_sentences(arm.profile),
        argv=tuple(arm.argv),
        effective=engine_facts(last.effective) if last else (),
        differences=tuple(dict.fromkeys(d for r in records for d in r.config_differences)),
        unproven=tuple(dict.fromkeys(u for r in records for u in r.config_unknown)),
    )


def _tables(round_: ArmRound) -> RoundTables:
    return RoundTables(round_.index, round_.requests, round_.tokens, round_.metrics, round_.host)
