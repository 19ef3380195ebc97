"""`kvbench compare`: candidates against a baseline, and a verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvbench.commands.options import (
    DEFAULT_OUT,
    OUT_OPTION,
    PROBE_OPTION,
    ROUNDS_OPTION,
    RULES_OPTION,
    WORKLOAD_OPTION,
    ExpectWorkers,
    Json,
    MasterBind,
    SecretEnv,
    Web,
    Workers,
)
from kvbench.errors import InputError
from kvbench.load.spare import driver_ahead
from kvbench.report.streams import people, say
from kvbench.spec.crew import SECRET_ENV, Crew, make_crew

__all__ = ["EXAMPLES", "compare"]

EXAMPLES = (
    "[bold]Examples[/bold]\n\n"
    "kvbench compare baseline.yaml tiered.yaml\n\n"
    "kvbench compare baseline.yaml host.yaml host-and-disk.yaml --workload mixed --rules default --rounds 6\n\n"
    "kvbench compare EXPERIMENT.yaml --dry-run\n\n"
    "kvbench compare cpu/baseline cpu/host-and-disk --workload mixed --probe results/.../probe.json\n\n"
    "kvbench compare --resume results/20260131T120000Z-tiered"
)


def compare(
    profiles: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PROFILE...", help="BASELINE CANDIDATE..., or one experiment file.", show_default=False
        ),
    ] = None,
    workload: Annotated[str | None, WORKLOAD_OPTION] = None,
    rules: Annotated[str | None, RULES_OPTION] = None,
    rounds: Annotated[int | None, ROUNDS_OPTION] = None,
    out: Annotated[Path | None, OUT_OPTION] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Go on with a stopped run: only what is missing is recorded.")
    ] = None,
    allow_difference: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-difference",
            metavar="KEY",
            help="Let arms differ in this key outside their tiers (engine.args.max-num-seqs); may be repeated.",
            show_default="none",
        ),
    ] = None,
    plan: Annotated[
        list[Path] | None,
        typer.Option(
            "--plan",
            metavar="FILE",
            help="Hold what `kvbench plan --out` predicted against what is measured; may be repeated.",
            show_default=False,
        ),
    ] = None,
    probe: Annotated[Path | None, PROBE_OPTION] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would run, how long, and the schedule's reuse.")
    ] = False,
    record: Annotated[
        bool, typer.Option("--record", help="Add the verdict to the history beside the runs.")
    ] = False,
    workers: Workers = None,
    expect_workers: ExpectWorkers = None,
    master_bind: MasterBind = None,
    worker_secret_env: SecretEnv = SECRET_ENV,
    web: Web = None,
    as_json: Json = False,
) -> None:
    """Compare candidates with a baseline and give a verdict: GO, NO_GO, INCONCLUSIVE or INVALID."""
    from kvbench.compare.request import Request, prepared

    request = Request(profiles or [], workload, rules, rounds, tuple(allow_difference or ()))
    console = people()
    crew = make_crew(workers, expect_workers, master_bind, worker_secret_env, web)
    if resume is not None:
        from kvbench.compare import command

        if plan or probe:
            raise InputError("a run knows its own predictions", do="leave --plan and --probe out beside --resume")
        if out is not None and out.resolve() != resume.resolve().parent:
            say(console, f"note: the run stays where it is, so --out {out} changes nothing beside --resume")

        if dry_run:
            command.what_is_missing(resume, request, as_json=as_json)
        command.resume(resume, request, crew, console=console, as_json=as_json, record=record)
    experiment, warnings = prepared(request, console)
    crew = crew or Crew()
    attached = experiment.baseline.engine.kind == "attached"
    with driver_ahead(wanted=attached and crew.single and not dry_run):
        from kvbench.compare import command
        from kvbench.compare.prediction import predicted

        told = predicted(experiment, plan or [], probe)
        if dry_run:
            command.dry_run(experiment, warnings, told, as_json=as_json)
        folder = out or DEFAULT_OUT
        command.compare(experiment, warnings, folder, crew, told, console=console, as_json=as_json, record=record)
