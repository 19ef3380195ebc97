"""Parses many JSON lines at once, where all of them are as a format wants them; says so where they are not.

Only a shortcut: whatever is refused here is read line by line, which also finds what is wrong and where.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from kvbench.workload.traces.trace import MOST_TOKENS, SMALLEST_ID, Columns, Rows

__all__ = ["add_at_once"]

_FEW = 64
"""Below it, line by line is as fast."""
_NEEDED = (
    ("timestamp", pa.float64()),
    ("input_length", pa.int64()),
    ("output_length", pa.int64()),
    ("hash_ids", pa.list_(pa.int64())),
)
_TIME_LIMIT = 1e18


def add_at_once(lines: Sequence[bytes], columns: Columns, *, sessions: bool, chats: bool) -> bool:
    """Whether all lines were added; otherwise none was. `sessions`, `chats`: what the format has besides."""
    if len(lines) < _FEW:
        return False
    table = _parsed(b"".join(lines))
    if table is None or table.num_rows != len(lines) or not (_right(table) and _near(table, columns)):
        return False
    wanted = ("type", "model", "think_time_s") if sessions else ("type", "model")
    optional = {"think_time_s": [], **{name: _optional(table, name) for name in wanted}}
    names = {
        "session_id": _identities(table, "session_id", wanted=sessions),
        "chat_id": _identities(table, "chat_id", wanted=chats),
        "parent_chat_id": _identities(table, "parent_chat_id", wanted=chats),
    }
    unusable = any(column is None for column in (*optional.values(), *names.values()))
    if unusable or not _pauses_right(optional["think_time_s"] or (), needed=sessions):
        return False
    if chats and not _new(names["chat_id"] or [], columns):
        return False
    columns.add_rows(_rows(table, optional, names))
    return True


def _new(chats: list[Any], columns: Columns) -> bool:
    """Whether no chat id was there before."""
    return len(set(chats)) == len(chats) and columns.chats.keys().isdisjoint(chats)


def _parsed(text: bytes) -> pa.Table | None:
    options = pj.ParseOptions(explicit_schema=pa.schema(_NEEDED), unexpected_field_behavior="infer")
    try:
        return pj.read_json(
            pa.BufferReader(text),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(text) + 1),
            parse_options=options,
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _right(table: pa.Table) -> bool:
    """Every needed value is there and can be."""
    for name, _ in _NEEDED:
        if table[name].null_count:
            return False
    times = table["timestamp"].to_numpy()
    if not np.all(np.abs(times) <= _TIME_LIMIT):
        return False
    for name in ("input_length", "output_length"):
        lengths = table[name].to_numpy()
        if lengths.min(initial=0) < 0 or lengths.max(initial=0) > MOST_TOKENS:
            return False
    values = table["hash_ids"].combine_chunks().flatten()
    if values.null_count:
        return False
    return len(values) == 0 or bool(pc.min(values).as_py() >= SMALLEST_ID)


def _near(table: pa.Table, columns: Columns) -> bool:
    """Whether all times are as near the file's first one as they must be."""
    times = table["timestamp"].to_numpy()
    first = times[0] if columns.first_time is None else columns.first_time
    return bool(np.all(np.abs(times - first) <= columns.longest))


def _optional(table: pa.Table, name: str) -> list[Any] | None:
    """Values of a column that may be missing; None: it holds what a line-by-line reader must look at."""
    if name not in table.column_names:
        return []
    kind = table.schema.field(name).type
    if name == "think_time_s":
        usable = pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind)
    else:
        usable = pa.types.is_string(kind) or pa.types.is_null(kind)
    return table[name].to_pylist() if usable else None


def _identities(table: pa.Table, name: str, *, wanted: bool) -> list[Any] | None:
    if not wanted or name not in table.column_names:
        return []
    kind = table.schema.field(name).type
    usable = pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind)
    return table[name].to_pylist() if usable else None


def _pauses_right(pauses: Sequence[object], *, needed: bool) -> bool:
    return not needed or all(
        pause is None or (isinstance(pause, int | float) and 0 <= pause <= _TIME_LIMIT and not math.isnan(pause))
        for pause in pauses
    )


def _rows(table: pa.Table, optional: dict[str, list[Any] | None], names: dict[str, list[Any] | None]) -> Rows:
    lists = table["hash_ids"].combine_chunks()
    types, models = optional["type"] or (), optional["model"] or ()
    return Rows(
        times=table["timestamp"].to_numpy(),
        input_tokens=table["input_length"].to_numpy(),
        output_tokens=table["output_length"].to_numpy(),
        counts=pc.list_value_length(lists).to_numpy(zero_copy_only=False),
        blocks=lists.flatten().to_numpy(zero_copy_only=False),
        sessions=names["session_id"] or (),
        chats=names["chat_id"] or (),
        parents=[None if parent in (-1, "-1") else parent for parent in names["parent_chat_id"] or ()],
        labels=[kind or model for kind, model in zip_longest(types, models)],
        pauses=optional["think_time_s"] or (),
    )
