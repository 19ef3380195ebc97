"""Reads the fields of one JSON record of a trace; every error names the place and the field."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from kvbench.errors import InputError, Where
from kvbench.spec.quantity import show_bytes
from kvbench.workload.traces.lines import LONGEST_LINE_BYTES, TOO_LONG

__all__ = ["Json", "block_ids", "checked_line", "number", "optional_number", "parse_json", "text_or_none", "tokens"]

Json = Mapping[str, object]

_LARGEST = 1e18
"""Beyond any time in any unit; JSON numbers have no limit of their own."""
_SHOWN = 40
"""Characters of a wrong value that an error repeats."""


def checked_line(line: bytes, where: Where) -> bytes:
    """The line. InputError for one that is too long to be read."""
    if line is TOO_LONG:
        raise InputError(f"a line of more than {show_bytes(LONGEST_LINE_BYTES)}, which no trace has", where=where)
    return line


def parse_json(text: bytes, where: Where) -> object:
    """Any JSON value. InputError when the text is none."""
    try:
        return json.loads(checked_line(text, where))
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "not UTF-8 text, or nested too deeply"
        raise InputError(f"expected a JSON object: {reason}", where=where) from None


def _shown(value: object) -> str:
    text = repr(value)[: _SHOWN + 1]
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def _present(record: Json, name: str, where: Where) -> object:
    if name not in record:
        raise InputError(f"has no {name!r}", where=where, do="see `format:` for the formats that can be read")
    return record[name]


def number(record: Json, name: str, where: Where) -> float:
    """A finite number."""
    value = _present(record, name, where)
    if not isinstance(value, bool) and isinstance(value, int | float) and abs(value) <= _LARGEST:
        return float(value)
    raise InputError(f"{name}: expected a number, got {_shown(value)}", where=where)


def optional_number(record: Json, name: str, where: Where) -> float | None:
    """A finite number, or None when the field is missing or null."""
    return None if record.get(name) is None else number(record, name, where)


def tokens(record: Json, name: str, where: Where) -> int:
    """A whole number from 0; 12.0 counts as one."""
    value = number(record, name, where)
    if value < 0 or value != int(value):
        raise InputError(f"{name}: expected a whole number of tokens, got {_shown(record[name])}", where=where)
    return int(value)


def block_ids(record: Json, name: str, where: Where) -> Sequence[int | str]:
    """A list of whole numbers or texts."""
    value = _present(record, name, where)
    if not isinstance(value, list) or not set(map(type, value)) <= {int, str}:
        raise InputError(f"{name}: expected a list of ids (numbers or texts), got {_shown(value)}", where=where)
    return value


def text_or_none(record: Json, name: str) -> str | None:
    """A text, or None when there is none."""
    value = record.get(name)
    return value if isinstance(value, str) else None
