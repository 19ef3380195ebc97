"""Azure's CSV files of 2023: arrivals and lengths, without any identity of blocks. Times have 100 ns resolution."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from kvbench.errors import InputError, Where
from kvbench.workload.traces.trace import Columns, Record

__all__ = ["HEADER", "read_rows"]

HEADER = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def read_rows(lines: Iterable[bytes], path: Path, columns: Columns) -> None:
    """Add every row. Times count from the first row, so that their decimals are kept. InputError names the line."""
    start: datetime | None = None
    rows = csv.reader(_texts(lines, path))
    try:
        header = next(rows, [])
        if tuple(name.strip() for name in header) != HEADER:
            raise InputError(f"expected the header {','.join(HEADER)}", where=Where(path, 1))
        for row in rows:
            where = Where(path, rows.line_num)
            if not row:
                continue
            if len(row) != len(HEADER):
                raise InputError(f"expected {len(HEADER)} columns, got {len(row)}", where=where)
            whole, part_s = _moment(row[0], where)
            start = start or whole
            time_s = (whole - start).total_seconds() + part_s
            columns.add(Record(time_s, _count(row[1], where), _count(row[2], where), ()), where)
    except csv.Error as error:
        raise InputError(f"not a CSV file: {error}", where=Where(path, rows.line_num)) from None


def _texts(lines: Iterable[bytes], path: Path) -> Iterator[str]:
    for line_number, line in enumerate(lines, start=1):
        try:
            yield line.decode("utf-8-sig" if line_number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise InputError("not UTF-8 text", where=Where(path, line_number)) from None


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


def _count(text: str, where: Where) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise InputError(f"expected a whole number of tokens, got {text[:40]!r}", where=where)
    return int(text)
