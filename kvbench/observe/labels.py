"""The labels of one exposition's lines: the same texts come again and again, so each is read once."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["LabelReader", "ReadLabels"]

# Unrolled, so that no text makes the match backtrack.
_QUOTED = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_PAIR = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*("[^"\\]*(?:\\.[^"\\]*)*")\s*(,|$)', re.S)
_PLAIN = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="([^"\\]*)"')
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
        self._numbers: dict[tuple[tuple[str, str], ...], int] = {(): 0}

    def known(self, text: str) -> tuple[dict[str, str], int] | None:
        """Labels of the text between the braces, and their number; None when it holds none."""
        try:
            return self.read[text]
        except KeyError:
            known = self.read[text] = self._numbered(text)
            return known

    def closed(self, rest: str) -> ReadLabels | None:
        """Labels at the beginning of `rest`, which follows an opening brace, up to the brace that closes it."""
        closed = _CLOSED.match(rest)
        known = self.known(rest[: closed.end() - 1]) if closed else None
        return None if closed is None or known is None else ReadLabels(*known, rest[closed.end() :])

    def _numbered(self, text: str) -> tuple[dict[str, str], int] | None:
        labels = _pairs(text)
        if labels is None:
            return None
        key = tuple(sorted(labels.items()))
        return labels, self._numbers.setdefault(key, len(self._numbers))


def _pairs(text: str) -> dict[str, str] | None:
    plain = _PLAIN.findall(text)
    labels = dict(plain)
    if len(labels) == len(plain) and ",".join([f'{name}="{value}"' for name, value in plain]) == text:
        return labels  # as servers write them: nothing escaped, no blanks
    return _careful_pairs(text)


def _careful_pairs(text: str) -> dict[str, str] | None:
    labels: dict[str, str] = {}
    text, at = text.rstrip(), 0
    while at < len(text):
        pair = _PAIR.match(text, at)
        if pair is None or pair[1] in labels:
            return None
        labels[pair[1]] = _unescaped(pair[2][1:-1])
        at = pair.end()
    return labels


def _unescaped(value: str) -> str:
    """An escape that means nothing stays as it is, as the client library has it."""
    if "\\" not in value:
        return value
    return _ESCAPE.sub(lambda escape: _MEANT.get(escape[1], escape[0]), value)
