"""`kvbench probe`: what a token costs from each source, by prefix length."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvbench.commands.options import Json, Out
from kvbench.errors import InputError
from kvbench.report.streams import people, print_document, say
from kvbench.spec.bounds import MOST_TOKENS, RATE, TIME, Range, check_option
from kvbench.spec.quantity import parse_quantity

__all__ = ["EXAMPLES", "probe"]

FINENESS = Range(0.001, 1.0, "0.1% and 100%")
"""Of an interval: 0.1 % of a cost lies below what changes between two starts of an engine."""

EXAMPLES = (
    "[bold]Examples[/bold]\n\nkvbench probe profiles/cpu/host-and-disk.yaml\n\n"
    "kvbench probe profiles/vllm/host.yaml --lengths 1024,8192,32768 --interval 5% --limit 20m --background 2/s"
)


def probe(
    profile: Annotated[str, typer.Argument(help="The profile whose tiers are probed.")],
    lengths: Annotated[
        str | None,
        typer.Option(
            "--lengths", metavar="N,N,...", help="Prefix lengths in tokens.", show_default="from the engine's sizes"
        ),
    ] = None,
    interval: Annotated[
        str, typer.Option("--interval", help="Go on until every cost is known within so much of itself.")
    ] = "10%",
    limit: Annotated[str, typer.Option("--limit", help="Or until so much time is over.")] = "210s",
    background: Annotated[
        str | None,
        typer.Option(
            "--background",
            metavar="RATE",
            help="Probe again beside so many requests, such as 2/s.",
            show_default=False,
        ),
    ] = None,
    out: Out = Path("results"),
    as_json: Json = False,
) -> None:
    """Measure what a token costs from each source, and from which prefix length on a hit beats recompute."""
    from kvbench.probe.setting import Options
    from kvbench.spec.loading import load_profile

    options = Options(
        lengths=_lengths(lengths),
        interval=_positive("--interval", interval, "fraction", FINENESS),
        limit_s=_positive("--limit", limit, "seconds", TIME),
        background_per_s=None if background is None else _positive("--background", background, "per second", RATE),
    )
    loaded = load_profile(profile)
    from kvbench.probe.command import probe_profile

    console = people()
    found, directory = probe_profile(loaded, options, out, lambda line: say(console, line))
    if as_json:
        print_document(found)
        return
    from rich.console import Console

    from kvbench.report.probe import show_probe

    show_probe(Console(highlight=False), found)
    say(console, f"{directory / 'probe.json'}; with a drawing: {directory / 'probe.html'}")


def _lengths(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and part.isascii() and 0 < int(part[:20]) <= MOST_TOKENS for part in parts):
        raise InputError(
            f"--lengths: expected whole numbers of tokens such as 1024,8192, each at most {MOST_TOKENS}, "
            f"got {text[:60]!r}"
        )
    return tuple(int(part) for part in parts)


def _positive(option: str, text: str, kind: str, range_: Range) -> float:
    try:
        value = parse_quantity(text, kind)
    except ValueError as error:
        raise InputError(f"{option}: {error}") from error
    if value <= 0:
        raise InputError(f"{option}: expected more than zero, got {text}")
    return check_option(option, value, range_, text)
