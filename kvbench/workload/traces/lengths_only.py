"""Tables of arrivals and lengths without any identity of blocks: Azure's CSV files of 2023, and BurstGPT's."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kvbench.errors import InputError, Where
from kvbench.workload.traces.bad_lines import BadLines
from kvbench.workload.traces.fields import checked_line
from kvbench.workload.traces.trace import Columns, Record

__all__ = ["LAYOUTS", "Layout", "layout_of", "read_rows"]


@dataclass(frozen=True)
class Layout:
    """Names of the columns that count; a table may have others."""

    time: str
    input_tokens: str
    output_tokens: str
    label: str | None
    dates: bool
    """Times are dates; otherwise seconds."""


LAYOUTS: Mapping[str, Layout] = {
    "azure": Layout("TIMESTAMP", "ContextTokens", "GeneratedTokens", None, dates=True),
    "burstgpt": Layout("Timestamp", "Request tokens", "Response tokens", "Model", dates=False),
}
"""Azure's times have 100 ns resolution, BurstGPT's one second."""


def layout_of(line: bytes) -> str | None:
    """The table that begins with this line, told by its first column; None for anything else."""
    name = line.removeprefix(b"\xef\xbb\xbf").split(b",")[0].strip().decode("ascii", "replace")
    return next((key for key, layout in LAYOUTS.items() if name == layout.time and b"," in line), None)


def read_rows(lines: Iterable[bytes], path: Path, columns: Columns, layout: Layout, bad: BadLines) -> None:
    """Add every row. Times count from the first row, so that their decimals are kept. InputError names the line.

    A line is a row: a quote that is opened and not closed spoils its own line and no other.
    """
    start: datetime | None = None
    places: dict[str, int] | None = None
    for line_number, line in enumerate(lines, start=1):
        if line.isspace():
            continue
        where = Where(path, line_number)
        with bad.skipping():
            row = _row(line, where)
            if places is None:
                places = _places(row, layout, where)
                continue
            if len(row) < max(places.values()) + 1:
                raise InputError(f"expected {max(places.values()) + 1} columns, got {len(row)}", where=where)
            if layout.dates:
                whole, part_s = _moment(row[places["time"]], where)
                time_s = (whole - (start or whole)).total_seconds() + part_s
            else:
                time_s = _seconds(row[places["time"]], where)
            prompt, answer = (_count(row[places[key]], where) for key in ("input_tokens", "output_tokens"))
            label = row[places["label"]].strip() if "label" in places else None
            columns.add(Record(time_s, prompt, answer, (), label=label), where)
            if layout.dates:
                start = start or whole


def _row(line: bytes, where: Where) -> list[str]:
    try:
        text = checked_line(line, where).decode("utf-8-sig" if where.line == 1 else "utf-8")
    except UnicodeDecodeError:
        raise InputError("not UTF-8 text", where=where) from None
    try:
        return next(csv.reader((text,), strict=True), [])
    except csv.Error as error:
        raise InputError(f"not a row of a CSV file: {error}", where=where) from None


def _places(header: list[str], layout: Layout, where: Where) -> dict[str, int]:
    names = [name.strip() for name in header]
    wanted = {"time": layout.time, "input_tokens": layout.input_tokens, "output_tokens": layout.output_tokens}
    missing = [name for name in wanted.values() if name not in names]
    if missing:
        raise InputError(f"expected the header {','.join(wanted.values())}", where=where)
    places = {key: names.index(name) for key, name in wanted.items()}
    return places | ({"label": names.index(layout.label)} if layout.label in names else {})


def _moment(text: str, where: Where) -> tuple[datetime, float]:
    """A whole second and the rest of it; `datetime` itself keeps six decimals only."""
    seconds, _, decimals = text.strip().removesuffix("Z").removesuffix("+00:00").partition(".")
    try:
        whole = datetime.fromisoformat(seconds).replace(tzinfo=UTC)
        return whole, float(f"0.{decimals}") if decimals else 0.0
    except ValueError:
        raise InputError(
            f"expected a time such as 2023-11-16 18:17:03.9799600, got {text[:40]!r}", where=where
        ) from None


def _seconds(text: str, where: Where) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"expected a time in seconds, got {text[:40]!r}", where=where) from None


def _count(text: str, where: Where) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise InputError(f"expected a whole number of tokens, got {text[:40]!r}", where=where)
    return int(text)
