"""Events of one answer that differ in nothing but their text and token ids, read without parsing each.

Nearly all events of a completion or a chat are so: what lies around the two values is the same to the byte. It is
cut away from many events at once and the values alone are parsed, in a quarter of the time. Where a byte is
otherwise the answer is "cannot be read so", and never a wrong reading.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import methodcaller
from typing import Any

from pydantic_core import from_json

__all__ = ["Alike"]

_TEXT = re.compile(rb'"(?:text|content)": ?("(?:[^"\\]|\\.)*")')
"""Of a completion, and of what a chat adds."""
_IDS = re.compile(rb'"token_ids": ?(\[[0-9, ]*\])')
_OTHER_TEXT, _OTHER_IDS = "~", [1, 2]


class Alike:
    """What lies before, between and behind the two values; without token ids nothing is between."""

    __slots__ = ("_after", "_before", "_between")

    def __init__(self, before: bytes, between: bytes | None, after: bytes) -> None:
        self._before = before
        self._between = between
        self._after = after

    @classmethod
    def of(cls, event: bytes) -> Alike | None:
        """From one event, `data: {...}` with its blank line. None where it is not of the usual kind: one choice
        with text that goes on, no usage in it, the ids behind the text if there are any."""
        if not event.startswith(b"data: {") or event.find(b"\n") != len(event) - 2 or b"\r" in event:
            return None
        text = _TEXT.search(event)
        # A quote inside of a JSON string is escaped, so this is a name wherever it stands.
        if text is None or event.count(b'"text":') + event.count(b'"content":') != 1:
            return None
        ids = _IDS.search(event, text.end())
        between = event[text.end(1) : ids.start(1)] if ids else None
        alike = cls(event[: text.start(1)], between, event[(ids or text).end(1) :])
        return alike if alike._is_right(with_ids=ids is not None) else None

    def _is_right(self, *, with_ids: bool) -> bool:
        """Whether other values in the same places are what is read as text and token ids."""
        values = b'"~"' if self._between is None else b'"~"%s[1,2]' % self._between
        try:
            event: Any = from_json((self._before + values + self._after)[6:])
            choice = event["choices"][0]
            said = {"content": choice["text"]} if "delta" not in choice else choice["delta"]
            return (
                said == {"content": _OTHER_TEXT}
                and choice.get("token_ids") == (_OTHER_IDS if with_ids else None)
                and not choice.get("finish_reason")
                and not event.get("usage")
            )
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            return False

    def columns(self, events: Sequence[bytes]) -> tuple[list[str], list[list[int]] | None] | None:
        """Text and token ids of each of `events`. None: not every one of them is one whole event that is alike."""
        start, end = len(self._before), -len(self._after)
        if not (
            all(map(methodcaller("startswith", self._before), events))
            and all(map(methodcaller("endswith", self._after), events))
            and min(map(len, events)) >= start - end
        ):
            return None
        values = b",".join([event[start:end] for event in events])
        if b"\n" in values or b"\r" in values:  # no value has a line end in it, so there were more events
            return None
        if self._between is not None:
            if values.count(self._between) != len(events):
                return None
            values = values.replace(self._between, b",")
        return self._taken_apart(values, len(events))

    def _taken_apart(self, values: bytes, count: int) -> tuple[list[str], list[list[int]] | None] | None:
        try:
            parsed: list[Any] = from_json(b"[" + values + b"]")
        except ValueError:
            return None
        step = 1 if self._between is None else 2
        texts, ids = parsed[::step], parsed[1::2] if step == 2 else None
        if len(parsed) != step * count or set(map(type, texts)) != {str} or (ids and set(map(type, ids)) != {list}):
            return None
        return texts, ids
