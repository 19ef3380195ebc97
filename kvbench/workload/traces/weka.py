"""WEKA's native files: one JSON document a session, whose sub-agents are sessions of their own. Times in seconds.

Block ids are local to a file, so that one file is one trace.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO

from kvbench.errors import InputError, Where
from kvbench.spec.quantity import show_bytes
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
from kvbench.workload.traces.trace import Columns, Record

__all__ = ["read_document"]

_REQUESTS = ("n", "s")
"""Answered at once, or streamed."""
_LARGEST_BYTES = 256 << 20
"""One session of thousands of turns has some megabytes; a document is parsed as a whole."""


def read_document(stream: IO[bytes], path: Path, columns: Columns, bad: BadLines) -> int:
    """Add every request of the file, those of sub-agents included; returns the file's block size in tokens.

    Requests that cannot be read are left out as far as `bad` allows.
    """
    text = stream.read(_LARGEST_BYTES + 1)
    if len(text) > _LARGEST_BYTES:
        raise InputError(f"a session of more than {show_bytes(_LARGEST_BYTES)} cannot be read", where=Where(path))
    document = parse_json(text, Where(path))
    if not isinstance(document, dict) or not isinstance(document.get("requests"), list):
        raise InputError("expected one JSON object with a list of 'requests'", where=Where(path))
    block = tokens(document, "block_size", Where(path))
    if block == 0:
        raise InputError("block_size: expected at least one token", where=Where(path))
    session = text_or_none(document, "id") or path.stem
    _add(document["requests"], session, 0.0, Where(path, key="requests"), columns, bad)
    return block


def _add(
    entries: list[object], session: str, start_s: float, place: Where, columns: Columns, bad: BadLines
) -> None:
    for index, entry in enumerate(entries):
        where = Where(place.file, key=f"{place.key}[{index}]")
        inner: list[object] = []
        at_s = start_s
        with bad.skipping():
            if not isinstance(entry, dict):
                raise InputError("expected a JSON object", where=where)
            at_s += number(entry, "t", where)
            kind = entry.get("type")
            if kind == "subagent":
                inner = _turns(entry, where)
            elif kind in _REQUESTS:
                columns.add(_request(entry, session, at_s, where), where)
            else:
                raise InputError(f"type: expected one of n, s, subagent, got {kind!r}", where=where)
        if inner and isinstance(entry, dict):
            agent = text_or_none(entry, "agent_id") or f"agent-{index}"
            _add(inner, f"{session}/{agent}", at_s, Where(place.file, key=f"{where.key}.requests"), columns, bad)


def _turns(entry: Json, where: Where) -> list[object]:
    """Of a sub-agent."""
    inner = entry.get("requests")
    if not isinstance(inner, list):
        raise InputError("a sub-agent needs a list of 'requests'", where=where)
    return inner


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
