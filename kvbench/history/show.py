"""The history on a terminal: a table for each candidate with the course of every rule, then what changed."""

from __future__ import annotations

import math

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvbench.history.nights import Night
from kvbench.history.trend import Comparison, Series
from kvbench.history.words import change_sentence, drift, figure, headline, limit
from kvbench.report.plain import plain
from kvbench.report.terminal import STATUS_TONES, TONES, encodable
from kvbench.report.wording import MISSING, STATUSES

__all__ = ["course", "show_history"]

STEPS = ("▁▂▃▄▅▆▇█", "_.-=+*%#")
"""Low to high; the second for terminals that cannot show the first."""
GAP = "·"
COURSE_LENGTH = 30
"""Runs; the newest are shown."""


def show_history(console: Console, comparisons: list[Comparison], night: Night | None) -> None:
    """Print everything; letters that the terminal cannot show are replaced."""
    with console.capture() as capture:
        for each in comparisons:
            console.print(Text(headline(each), style="bold"), soft_wrap=True)
            console.print(_table(each, console.encoding), highlight=False)
            for series in each.series:
                for change in series.changes:
                    console.print(Text(f"! {change_sentence(series, change)}", style="yellow"), soft_wrap=True)
            console.print()
        if night is not None:
            _show_night(console, night)
    console.file.write(encodable(capture.get(), console.encoding))


def _table(each: Comparison, encoding: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("newest", no_wrap=True)
    for heading in ("rule", "value", "limit", "drift", "runs"):
        table.add_column(heading, overflow="fold")
    newest = each.runs[-1].name
    for series in each.series:
        point = series.points[-1]
        value, interval = figure(series, point)
        status = point.status if point.run.name == newest else "unknown"
        table.add_row(
            Text(f"{STATUSES[status]} {status}", style=STATUS_TONES[status]),
            Text(plain(series.rule)),
            Text(" ".join(part for part in (value, interval) if part) if point.run.name == newest else MISSING),
            Text(limit(series, point)),
            Text(drift(series)),
            Text(course(series, encoding)),
        )
    return table


def course(series: Series, encoding: str = "utf-8") -> str:
    """The values as steps between the lowest and the highest, the newest last; a run without one is a gap."""
    steps = STEPS[0] if _shows(encoding) else STEPS[1]
    points = series.points[-COURSE_LENGTH:]
    values = [point.value if point.counts else None for point in points]
    scaled = [math.log(v) if v is not None and series.logarithmic else v for v in values]
    known = [value for value in scaled if value is not None]
    if not known:
        return ""
    low, span = min(known), max(known) - min(known)
    return "".join(
        GAP if value is None else steps[round((value - low) / span * (len(steps) - 1)) if span else 0]
        for value in scaled
    )


def _shows(encoding: str) -> bool:
    try:
        STEPS[0].encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def _show_night(console: Console, night: Night) -> None:
    tone = TONES[night.verdict]
    console.print(
        Text.assemble((night.verdict.value, tone), f": {plain(night.run)} against the {night.asked} nights before"),
        soft_wrap=True,
    )
    console.print(Text(f"  against its own baseline: {night.own.value}"), soft_wrap=True)
    if not night.rules:
        console.print(Text(f"  ? {plain(night.text)}"), soft_wrap=True)
    for rule in night.rules:
        line = Text(f"  {STATUSES[rule.status]} {plain(rule.text)}", style=STATUS_TONES[rule.status])
        console.print(line, soft_wrap=True)
