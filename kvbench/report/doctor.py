"""What `doctor` tells people: every check, words first and colour on top, and how many are of each kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvbench.doctor.check import Check
from kvbench.report.plain import plain
from kvbench.report.terminal import WIDE, encodable
from kvbench.spec.quantity import show_bytes, show_seconds

__all__ = ["show_checks", "show_value"]

MARKS = {"ok": "✔", "warn": "!", "fail": "✘", "skipped": "–"}
TONES = {"ok": "green", "warn": "bold yellow", "fail": "bold red", "skipped": "dim"}
INDENT = 11


def show_checks(console: Console, checks: Sequence[Check]) -> None:
    """Every check with its number, what it is held against, what was found and what to do."""
    count = Counter(check.status for check in checks)
    parts = [f"{count[status]} {status}" for status in ("fail", "warn", "ok", "skipped") if count[status]]
    with console.capture() as capture:
        console.print(_table(checks) if console.width >= WIDE else _list(checks))
        console.print(", ".join(parts), style="bold red" if count["fail"] else "", highlight=False)
    text = "\n".join(line.rstrip() for line in capture.get().split("\n"))
    console.file.write(encodable(text, console.encoding))
    console.file.flush()


def _table(checks: Sequence[Check]) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("", "check"):
        table.add_column(name, no_wrap=True)
    for name in ("value", "against"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("what", overflow="fold")
    for check in checks:
        value, limit = (Text(show_value(number, check.unit)) for number in (check.value, check.limit))
        table.add_row(_status(check), Text(check.id), value, limit, _said(check))
    return table


def _list(checks: Sequence[Check]) -> RenderableType:
    """For narrow terminals: the figures on one line, the words under it."""
    lines: list[RenderableType] = []
    for check in checks:
        status = _status(check)
        status.pad_right(INDENT - status.cell_len)
        value, limit = show_value(check.value, check.unit), show_value(check.limit, check.unit)
        figures = f"  {value}" + (f" against {limit}" if limit else "") if value else ""
        lines.append(Text.assemble(status, (check.id, "bold"), figures))
        lines.append(Padding(_said(check), (0, 0, 0, INDENT)))
    return Group(*lines)


def _status(check: Check) -> Text:
    return Text(f"{MARKS[check.status]} {check.status}", style=TONES[check.status])


def _said(check: Check) -> Text:
    said = Text(plain(check.text))
    if check.do:
        said.append(f"\n→ {plain(check.do)}", style="bold" if check.status == "fail" else "")
    return said


def show_value(value: float | None, unit: str) -> str:
    """The number in the unit that reads best; nothing where there is none."""
    if value is None:
        return ""
    if unit == "bytes":
        return show_bytes(value)
    if unit == "bytes/s":
        return f"{show_bytes(value)}/s"
    if unit == "s":
        return show_seconds(value)
    if unit == "fraction":
        return f"{value:.0%}"
    unit = unit.removesuffix("s") if value == 1 else unit
    return f"{value:,.2f} {unit}" if value % 1 else f"{value:,.0f} {unit}".rstrip()
