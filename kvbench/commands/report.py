"""`kvbench report`: a stored run judged again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvbench.commands.options import Json
from kvbench.report.streams import people

__all__ = ["EXAMPLES", "report"]

EXAMPLES = "[bold]Example[/bold]\n\nkvbench report results/20260131T120000Z-tiered"


def report(
    run_directory: Annotated[Path, typer.Argument(metavar="RUN", help="A folder that compare or run wrote.")],
    as_json: Json = False,
) -> None:
    """Judge a stored run again and rebuild all its reports; the exit code is that of the verdict.

    Of a recording of one arm, its figures.
    """
    from kvbench.compare import command

    command.report(run_directory, console=people(), as_json=as_json)
