"""`kvbench analyze`: the reuse of a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvbench.commands.options import Json
from kvbench.report.streams import print_document

__all__ = ["EXAMPLES", "analyze"]

EXAMPLES = (
    "[bold]Examples[/bold]\n\nkvbench analyze conversation_trace.jsonl\n\n"
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
