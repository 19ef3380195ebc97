"""`kvbench selftest`: known faults must give the right verdicts."""

from __future__ import annotations

from typing import Annotated

import typer

from kvbench.commands.options import Json
from kvbench.report.streams import people, print_document

__all__ = ["EXAMPLES", "selftest"]

EXAMPLES = "[bold]Examples[/bold]\n\nkvbench selftest\n\nkvbench selftest --only slower-tail --only freeze --json"


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
