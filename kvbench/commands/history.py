"""`kvbench history`: recorded comparisons over time, the newest against earlier nights; pruning of old runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvbench.commands.options import Json, Out
from kvbench.errors import InputError
from kvbench.report.streams import people, print_document, say
from kvbench.spec.quantity import parse_quantity

__all__ = ["EXAMPLES", "history"]

EXAMPLES = (
    "[bold]Examples[/bold]\n\n"
    "kvbench compare baseline.yaml tiered.yaml --record\n\n"
    "kvbench history --last 30 --html history.html\n\n"
    "kvbench history --nights 14 --json\n\n"
    "kvbench history --prune --older-than 30d --max-size 50GiB --yes"
)


def history(
    rule: Annotated[
        list[str] | None,
        typer.Option("--rule", metavar="ID", help="This rule alone; may be repeated.", show_default="all"),
    ] = None,
    candidate: Annotated[
        str | None, typer.Option("--candidate", help="This candidate alone.", show_default="all")
    ] = None,
    last: Annotated[
        int | None, typer.Option("--last", min=1, help="The newest so many runs.", show_default="all")
    ] = None,
    nights: Annotated[
        int | None,
        typer.Option(
            "--nights",
            min=1,
            help="Judge the newest run against so many before it; the exit code is that of the worse verdict.",
            show_default=False,
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page with plots.", show_default=False)
    ] = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="Show which runs would be deleted; the history always stays.")
    ] = False,
    older_than: Annotated[
        str | None, typer.Option("--older-than", metavar="AGE", help="Prune runs older than this, such as 30d.")
    ] = None,
    max_size: Annotated[
        str | None,
        typer.Option("--max-size", metavar="SIZE", help="Prune the oldest until the rest fits, such as 50GiB."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Really delete what --prune shows.")] = False,
    out: Out = Path("results"),
    as_json: Json = False,
) -> None:
    """Show recorded comparisons over time: trend and changes of each rule, the newest against earlier nights."""
    if prune:
        _prune(out, older_than, max_size, yes, as_json=as_json)
        return
    if older_than is not None or max_size is not None or yes:
        raise InputError("--older-than, --max-size and --yes belong to --prune", do="add --prune")
    _show(out, rule or [], candidate, last, nights, html, as_json=as_json)


def _show(
    out: Path,
    rules: list[str],
    candidate: str | None,
    last: int | None,
    nights: int | None,
    html: Path | None,
    *,
    as_json: bool,
) -> None:
    from kvbench.history.nights import judge_night
    from kvbench.history.selection import selected
    from kvbench.history.store import FOLDER
    from kvbench.history.trend import comparisons

    rows = selected(out, rules, candidate)
    found = comparisons(rows, last, rules)
    night = None if nights is None else judge_night(rows, nights)
    if html is not None:
        from kvbench.history.page import history_page
        from kvbench.record.atomic import write_text

        write_text(html, history_page(found, night))
    if as_json:
        from kvbench.history.document import history_document

        print_document(history_document(str(out / FOLDER), found, night))
    else:
        from rich.console import Console

        from kvbench.history.show import show_history

        show_history(Console(highlight=False), found, night)
    if html is not None:
        say(people(), f"written to {html}")
    raise typer.Exit(0 if night is None else night.verdict.exit_code)


def _prune(out: Path, older_than: str | None, max_size: str | None, yes: bool, *, as_json: bool) -> None:
    from datetime import UTC, datetime

    from kvbench.history.prune import carry_out, plan_pruning
    from kvbench.history.pruned import pruning_document, show_pruning

    if older_than is None and max_size is None:
        raise InputError("--prune needs a limit", do="say --older-than AGE or --max-size SIZE, or both")
    age_s = _amount("--older-than", older_than, "seconds")
    size = _amount("--max-size", max_size, "bytes")
    pruning = plan_pruning(out, datetime.now(UTC), age_s, None if size is None else round(size))
    pruning = carry_out(pruning) if yes else pruning
    if as_json:
        print_document(pruning_document(pruning))
    else:
        show_pruning(people(), pruning)


def _amount(option: str, given: str | None, kind: str) -> float | None:
    if given is None:
        return None
    try:
        amount = parse_quantity(given, kind)
    except ValueError as error:
        raise InputError(f"{option}: {error}") from error
    if amount < 0:
        raise InputError(f"{option}: {given} is less than nothing")
    return amount
