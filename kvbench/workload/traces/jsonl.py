"""The formats with one JSON record a line: Mooncake, sessions (LMCache, WEKA overlays, generators) and Bailian."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import IO

from kvbench.errors import InputError, Where
from kvbench.workload.traces.at_once import add_at_once
from kvbench.workload.traces.bad_lines import BadLines
from kvbench.workload.traces.fields import (
    Json,
    block_ids,
    number,
    optional_number,
    parse_json,
    text_or_none,
    tokens,
)
from kvbench.workload.traces.lines import chunks_of_lines
from kvbench.workload.traces.trace import Columns, Record

__all__ = ["READERS", "read_lines"]


def read_lines(
    stream: IO[bytes], path: Path, columns: Columns, read: Callable[[Json, Where], Record], bad: BadLines
) -> None:
    """Add every record of the file. Blank lines are skipped; InputError names the line at fault.

    Many lines are parsed at once where all of them are as they should be; where any is not, one after the other.
    """
    line_number = 1
    for lines in chunks_of_lines(stream):
        if not add_at_once(lines, columns, sessions=read is _sessions, chats=read is _bailian):
            _one_by_one(lines, line_number, path, columns, read, bad)
        line_number += len(lines)


def _one_by_one(
    lines: Iterable[bytes],
    first: int,
    path: Path,
    columns: Columns,
    read: Callable[[Json, Where], Record],
    bad: BadLines,
) -> None:
    for line_number, line in enumerate(lines, start=first):
        if line.isspace():
            continue
        where = Where(path, line_number)
        with bad.skipping():
            record = parse_json(line, where)
            if not isinstance(record, dict):
                raise InputError("expected a JSON object", where=where)
            columns.add(read(record, where), where)


def _mooncake(record: Json, where: Where) -> Record:
    """Milliseconds; no sessions, so every request stands alone."""
    return Record(
        time=number(record, "timestamp", where),
        input_tokens=tokens(record, "input_length", where),
        output_tokens=tokens(record, "output_length", where),
        blocks=block_ids(record, "hash_ids", where),
        label=text_or_none(record, "type") or text_or_none(record, "model"),
    )


def _sessions(record: Json, where: Where) -> Record:
    """Milliseconds, with `session_id` and where known `think_time_s`."""
    plain = _mooncake(record, where)
    return Record(
        time=plain.time,
        input_tokens=plain.input_tokens,
        output_tokens=plain.output_tokens,
        blocks=plain.blocks,
        session=_name(record, "session_id", where),
        label=plain.label,
        think_s=_pause(record, where),
    )


def _bailian(record: Json, where: Where) -> Record:
    """Seconds; every request names itself and the one before it, -1 for none."""
    plain = _mooncake(record, where)
    parent = _name(record, "parent_chat_id", where)
    return Record(
        time=plain.time,
        input_tokens=plain.input_tokens,
        output_tokens=plain.output_tokens,
        blocks=plain.blocks,
        chat=_name(record, "chat_id", where),
        parent=None if parent in (-1, "-1") else parent,
        label=plain.label,
    )


def _pause(record: Json, where: Where) -> float | None:
    pause = optional_number(record, "think_time_s", where)
    if pause is not None and pause < 0:
        raise InputError(f"think_time_s: a pause cannot be negative, got {pause:g}", where=where)
    return pause


def _name(record: Json, name: str, where: Where) -> Hashable:
    value = record.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | str)):
        raise InputError(f"{name}: expected a number or a text", where=where)
    return value


READERS: dict[str, tuple[Callable[[Json, Where], Record], float]] = {
    "mooncake": (_mooncake, 1e-3),
    "sessions": (_sessions, 1e-3),
    "bailian": (_bailian, 1.0),
}
"""By format: how a record is read, and the unit of its times in seconds."""
