"""`kvbench demo`: the first verdict, on the embedded engine."""

from __future__ import annotations

from pathlib import Path

from kvbench.commands.options import Json, Out
from kvbench.report.streams import people

__all__ = ["EXAMPLES", "demo"]

EXAMPLES = "[bold]Example[/bold]\n\nkvbench demo --out results"


def demo(
    out: Out = Path("results"),
    as_json: Json = False,
) -> None:
    """Install the embedded engine and compare device-only against host + disk on it."""
    from kvbench.compare import command

    command.demo(out, console=people(), as_json=as_json)
