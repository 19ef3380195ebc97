"""`kvbench gate`: may this canary stay? Judged from live metrics; with `--rehearse`, its rollback is rehearsed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvbench.commands.options import Json
from kvbench.report.streams import people, print_document

__all__ = ["EXAMPLES", "gate"]

EXAMPLES = (
    "[bold]Examples[/bold]\n\nkvbench gate canary.yaml --once\n\n"
    "kvbench gate canary.yaml --for 2h --every 15s --junit gate.xml\n\n"
    "kvbench gate canary.yaml --for 2h --serve 9109\n\n"
    "kvbench gate staging.yaml --rehearse --markdown rehearsal.md"
)


def gate(
    canary: Annotated[Path, typer.Argument(metavar="CANARY", help="The file that says what is judged, and how.")],
    once: Annotated[bool, typer.Option("--once", help="Judge what there is and end.")] = False,
    for_: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="TIME",
            help="How long to watch; with --once, how far to look back; with --rehearse, how long before the hook.",
            show_default="1h, before a rehearsal 2m",
        ),
    ] = None,
    every: Annotated[
        str | None,
        typer.Option("--every", metavar="TIME", help="How often to look.", show_default="15s, in a rehearsal 2s"),
    ] = None,
    rehearse: Annotated[
        bool,
        typer.Option(
            "--rehearse",
            help="For staging: run the armed hook on purpose, prove the tier off and TTFT back, and say the cost.",
        ),
    ] = False,
    junit: Annotated[
        Path | None, typer.Option("--junit", help="Write the verdict as JUnit XML.", show_default=False)
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", help="Write it as Markdown, for a job summary.", show_default=False)
    ] = None,
    serve: Annotated[
        str | None,
        typer.Option(
            "--serve",
            metavar="[HOST:]PORT",
            help="Serve /verdict, /healthz and /metrics until stopped; on 127.0.0.1 unless a host is given.",
            show_default=False,
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            "--state", metavar="DIR", help="Where the watch is remembered.", show_default="KVBENCH_HOME/gates"
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Judge a canary from live metrics, once or until the verdict is certain; the exit code is the verdict's."""
    from kvbench.canary.command import Asked, run_gate, run_rehearsal

    asked = Asked(canary, once, for_, every, junit, markdown, serve, state)
    if rehearse:
        rehearsed, document = run_rehearsal(asked, people(), as_json=as_json)
        code = rehearsed.exit_code
    else:
        verdict, document = run_gate(asked, people(), as_json=as_json)
        code = verdict.exit_code
    if as_json:
        print_document(document)
    raise typer.Exit(code)
