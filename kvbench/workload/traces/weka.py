"""WEKA's native files: one JSON document a session, whose sub-agents are sessions of their own. Times in seconds.

Block ids are local to a file, so that one file is one trace.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kvbench.errors import InputError, Where
from kvbench.workload.traces.fields import (
    Json,
    block_ids,
    number,
    optional_number,
    parse_json,
    text_or_none,
    tokens,
)
from kvbench.workload.traces.trace import Columns, Record

__all__ = ["read_document"]

_REQUESTS = ("n", "s")
"""Answered at once, or streamed."""


def read_document(text: bytes, path: Path, columns: Columns) -> int:
    """Add every request of the file, those of sub-agents included; returns the file's block size in tokens."""
    document = parse_json(text, Where(path))
    if not isinstance(document, dict) or not isinstance(document.get("requests"), list):
        raise InputError("expected one JSON object with a list of 'requests'", where=Where(path))
    block = tokens(document, "block_size", Where(path))
    if block == 0:
        raise InputError("block_size: expected at least one token", where=Where(path))
    session = text_or_none(document, "id") or path.stem
    for record, where in _requests(document["requests"], session, 0.0, path, "requests"):
        columns.add(record, where)
    return block


def _requests(
    entries: list[object], session: str, start_s: float, path: Path, key: str
) -> Iterator[tuple[Record, Where]]:
    for index, entry in enumerate(entries):
        place = f"{key}[{index}]"
        where = Where(path, key=place)
        if not isinstance(entry, dict):
            raise InputError("expected a JSON object", where=where)
        at_s = start_s + number(entry, "t", where)
        kind = entry.get("type")
        if kind == "subagent":
            inner = entry.get("requests")
            if not isinstance(inner, list):
                raise InputError("a sub-agent needs a list of 'requests'", where=where)
            agent = text_or_none(entry, "agent_id") or f"agent-{index}"
            yield from _requests(inner, f"{session}/{agent}", at_s, path, f"{place}.requests")
        elif kind in _REQUESTS:
            yield _request(entry, session, at_s, where), where
        else:
            raise InputError(f"type: expected one of n, s, subagent, got {kind!r}", where=where)


def _request(entry: Json, session: str, at_s: float, where: Where) -> Record:
    pause = optional_number(entry, "think_time", where)
    return Record(
        time=at_s,
        input_tokens=tokens(entry, "in", where),
        output_tokens=tokens(entry, "out", where),
        blocks=block_ids(entry, "hash_ids", where),
        session=session,
        label=text_or_none(entry, "model"),
        think_s=None if pause is None else max(0.0, pause),
    )
