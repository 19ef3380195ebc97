"""What `analyze` tells people about a trace on the terminal; machines get the document itself."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvbench.report.trace_view import Document, Sheet, trace_view

__all__ = ["show_analysis"]

_STYLES = {"yes": "bold green", "no": "bold red", "unknown": "bold yellow"}


def show_analysis(console: Console, document: Document) -> None:
    """Counts, who shares, what caches and tiers would serve; whether a pilot is worth it comes last."""
    view = trace_view(document)
    console.print(Text(view.title, style="bold"))
    for fact in view.facts:
        console.print(Text(fact))
    for sheet in view.sheets:
        console.print(_table(sheet))
    for missing in view.unknown:
        console.print(Text(f"not known from this trace: {missing}"))
    console.print()
    console.print(Text.assemble(("Pilot: ", "bold"), (view.pilot, _STYLES[view.pilot])))
    console.print(Text(view.advice))
    if view.assumptions:
        console.print(Text("Assumed: " + "; ".join(view.assumptions), style="dim"))


def _table(sheet: Sheet) -> Table:
    table = Table(title=sheet.title, title_justify="left")
    for number, heading in enumerate(sheet.columns):
        table.add_column(heading, justify="left" if number < sheet.words else "right")
    for row in sheet.rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
