"""The labels of one exposition's lines: the same texts come again and again, so each is read once."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["LabelReader", "ReadLabels"]

# Unrolled, so that no text makes the match backtrack.
_QUOTED = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_PAIR = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*("[^"\\]*(?:\\.[^"\\]*)*")\s*(,|$)', re.S)
_CLOSED = re.compile(rf'[^"{{}}]*(?:{_QUOTED}[^"{{}}]*)*\}}', re.S)
_ESCAPE = re.compile(r"\\(.)", re.S)
_MEANT = {"n": "\n", '"': '"', "\\": "\\"}


class ReadLabels(NamedTuple):
    """`number` is the same for the same labels, in whatever order they were written; 0 stands for none."""

    labels: dict[str, str]
    number: int
    rest: str
    """What follows the closing brace."""


class LabelReader:
    """Reads what stands between the braces."""

    def __init__(self) -> None:
        self.read: dict[str, tuple[dict[str, str], int] | None] = {}
        """What has been read so far, by its text."""
        self._numbers: dict[str, int] = {"": 0}
        """By the text as servers write it: names sorted, nothing blank, escaped only what has to be."""
        self._names: dict[tuple[str, ...], tuple[str, ...]] = {}
        """What stands around the quoted values of such a text → the names in it."""

    def known(self, text: str) -> tuple[dict[str, str], int] | None:
        """Labels of the text between the braces, and their number; None when it holds none."""
        known = self.read.get(text)
        if known is None:
            known = self.read[text] = self._numbered(text)
        return known

    def closed(self, rest: str) -> ReadLabels | None:
        """Labels at the beginning of `rest`, which follows an opening brace, up to the brace that closes it."""
        closed = _CLOSED.match(rest)
        known = self.known(rest[: closed.end() - 1]) if closed else None
        return None if closed is None or known is None else ReadLabels(*known, rest[closed.end() :])

    def _numbered(self, text: str) -> tuple[dict[str, str], int] | None:
        parts = text.split('"')
        around = tuple(parts[::2])
        names = self._names.get(around)
        # The same labels as before with other values; an even number of parts is a quote that nobody closed.
        if names is not None and len(parts) % 2 and "\\" not in text:
            return dict(zip(names, parts[1::2], strict=True)), self._numbers.setdefault(text, len(self._numbers))
        labels = _pairs(text)
        if labels is None:
            return None
        usual = ",".join([f'{name}="{_escaped(labels[name])}"' for name in sorted(labels)])
        if usual == text and "\\" not in text:
            self._names[around] = tuple(labels)
        return labels, self._numbers.setdefault(usual, len(self._numbers))


def _pairs(text: str) -> dict[str, str] | None:
    labels: dict[str, str] = {}
    text, at = text.rstrip(), 0
    while at < len(text):
        pair = _PAIR.match(text, at)
        if pair is None or pair[1] in labels:
            return None
        labels[pair[1]] = _unescaped(pair[2][1:-1])
        at = pair.end()
    return labels


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _unescaped(value: str) -> str:
    """An escape that means nothing stays as it is, as the client library has it."""
    if "\\" not in value:
        return value
    return _ESCAPE.sub(lambda escape: _MEANT.get(escape[1], escape[0]), value)
