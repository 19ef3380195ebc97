"""Prometheus text as samples by family. Engine-neutral; knows no metric by name.

A family that is declared (`# TYPE`) but has no sample yet is zero so far; one that is not declared is unsupported.
No text makes parsing fail: what cannot be read is a fault, and the family that it is about is left out.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from kvbench.observe.labels import LabelReader, ReadLabels

__all__ = ["Exposition", "Sample", "looks_like_exposition", "parse"]

_TYPES = re.compile(r"^[ \t]*#[ \t]+TYPE[ \t]+(\S+)[ \t]+(\S+)", re.M)
_NAME = re.compile(r"[ \t]*(?:#[ \t]+TYPE[ \t]+)?([a-zA-Z_:][a-zA-Z0-9_:]*)")
_SPACED = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)[ \t]+\{")
_WITH_EXEMPLAR = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*[ \t]+[^{}\"#]*)#[ \t]*\{")
_TIMESTAMP = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_SUFFIXES = ("_total", "_sum", "_count")
_SHOWN = 80
"""Characters of a line that a fault quotes."""


class Sample(NamedTuple):
    """`name` as exposed: a counter's ends in `_total`, a histogram's in `_bucket`, `_sum` or `_count`.

    Samples with the same labels share them: not to be changed.
    """

    name: str
    labels: dict[str, str]
    value: float


@dataclass(frozen=True)
class Exposition:
    """Samples by family. Family names as the client library registers them: a counter's is without `_total`."""

    families: dict[str, tuple[Sample, ...]]
    kinds: dict[str, str] = field(default_factory=dict)
    """What a family is declared as: counter, gauge, histogram, ..."""
    faults: tuple[str, ...] = ()
    """Sentences: what could not be read. Such a family is left out, since a part of it would pass for the whole."""
    unread: frozenset[str] = frozenset()
    """The families that were left out: the server has them, and what they say is not known."""

    def __contains__(self, family: str) -> bool:
        return family in self.families

    def __getitem__(self, family: str) -> tuple[Sample, ...]:
        """Empty for a family that is declared and has no sample, and for one that is not there."""
        return self.families.get(family, ())

    def total(self, family: str, **labels: str) -> float | None:
        """Sum of a counter's or gauge's samples with these labels; zero when declared only, None when not there."""
        if family not in self:
            return None
        return sum(s.value for s in self[family] if all(s.labels.get(k) == v for k, v in labels.items()))


def parse(text: str, families: frozenset[str] | None = None, *, buckets: bool = True) -> Exposition:
    """Samples of `text`, of `families` only when given; a histogram's buckets, most of the text, only when wanted.

    The client library's own parser takes half a millisecond for a kilobyte, which once a second would be felt. Here
    a group of lines that nobody wants costs the look at its first and its last, and labels are read once.
    """
    if families is None:
        families = frozenset(_registered(name, kind) for name, kind in _TYPES.findall(text))
    reading = _Reading(_spellings(families, buckets), buckets)
    for comment, start, end in _groups(text):
        reading.group(comment, text, start, end)
    if text and not text.endswith("\n"):
        reading.cut_off(text[text.rfind("\n") + 1 :])
    return reading.result()


def looks_like_exposition(text: str) -> bool:
    """Whether a server's answer is metrics at all, and not a page or JSON with status 200."""
    return text.startswith(("# TYPE ", "# HELP ")) or "\n# TYPE " in text


def _registered(name: str, kind: str) -> str:
    return name.removesuffix("_total") if kind == "counter" else name


@lru_cache(maxsize=16)
def _spellings(families: frozenset[str], buckets: bool) -> dict[str, str]:
    """Names of lines → family. A family's own name wins over another's with a suffix."""
    suffixes = (*_SUFFIXES, "_bucket") if buckets else _SUFFIXES
    with_suffix = {family + suffix: family for family in families for suffix in suffixes}
    return with_suffix | {family: family for family in families}


def _groups(text: str) -> Iterator[tuple[str, int, int]]:
    """Each comment with where the lines after it begin (with the end of its own) and end; first, lines without one.

    The format keeps the lines of a family together, behind its comments. Only `\\n` ends a line: a label may hold
    any other character that Python takes for a line's end.
    """
    at = 0 if text.startswith("#") else _comment(text, 0)
    if at:
        yield "", 0, at
    while at < len(text):
        end = _comment(text, at)
        newline = text.find("\n", at, end)
        start = newline if newline >= 0 else end
        yield text[at:start], start, end
        at = end


def _comment(text: str, at: int) -> int:
    """Where the next comment behind `at` begins. One character is looked for many times as fast as two."""
    found = text.find("#", at + 1)
    while found >= 0 and text[found - 1] != "\n":
        found = text.find("#", found + 1)
    return found if found >= 0 else len(text)


class _Reading:
    """What has been read so far of one text."""

    def __init__(self, spelled: dict[str, str], buckets: bool) -> None:
        self._spelled = spelled
        self._buckets = buckets
        self._labels = LabelReader()
        self._kinds: dict[str, str] = {}
        self._found: defaultdict[str, dict[tuple[str, int], Sample]] = defaultdict(dict)
        self._faults: dict[str, str] = {}
        self._telling: str | None = None
        """The family that the newest comment is about."""

    def group(self, comment: str, text: str, start: int, end: int) -> None:
        """A comment and the lines after it, `text[start:end]`, which begin with the end of the comment's."""
        words = comment.split(None, 4)
        name = words[2] if len(words) > 2 and words[1] in ("TYPE", "HELP") else ""
        family = self._telling = self._spelled.get(name)
        kind = words[3] if len(words) > 3 and words[1] == "TYPE" else ""
        if family is not None and kind:
            self._kinds.setdefault(family, kind)
        if end - start < 2:
            return
        # Lines that belong elsewhere are against the format; then nothing may be skipped.
        tidy = bool(name) and text.startswith(name, text.rfind("\n", start, end - 1) + 1)
        if tidy and family is None:
            return
        if tidy and not self._buckets and self._kinds.get(family or "") == "histogram":
            self._lines(_sums_and_counts(name, text[start:end]))
        else:
            self._lines(text[start + bool(comment) : end].split("\n"))

    def _lines(self, lines: Iterable[str]) -> None:
        """Every line; what is written as servers write it takes the short way, which makes no calls of its own."""
        family_of, read, new, found = self._spelled.get, self._labels.read, self._labels.known, self._found
        for line in lines:
            head, brace, rest = line.partition("{")
            if not brace:
                self._bare(line)
                continue
            family = family_of(head)
            if family is None:
                self._odd(line, head)
                continue
            # A value holds no brace, so the last one closes the labels, unless an exemplar follows.
            text, closed, number = rest.rpartition("}")
            known = (read.get(text) or new(text)) if closed else None
            try:
                value = float(number)
            except ValueError:
                known = None
            if known is None or "_" in number or not number.isascii() or (head, known[1]) in found[family]:
                self._carefully(family, head, rest, line)
            else:
                found[family][head, known[1]] = Sample(head, known[0], value)

    def _bare(self, line: str) -> None:
        """A line without labels, or with nothing that belongs here."""
        name, _, rest = line.partition(" ") if " " in line else line.partition("\t")
        family = self._spelled.get(name)
        if family is not None:
            self._keep(family, name, {}, 0, rest, line)
        elif line[:1] in (" ", "\t"):
            self._again(line.lstrip(" \t"))

    def _odd(self, line: str, head: str) -> None:
        """A line that begins with none of the names: perhaps because of blanks, which the format allows."""
        if line[0] in " \t":
            self._again(line.lstrip(" \t"))
        elif head[-1:] in (" ", "\t"):
            if spaced := _SPACED.match(line):
                self._again(spaced[1] + line[spaced.end() - 1 :])
            elif exemplar := _WITH_EXEMPLAR.match(line):
                self._again(exemplar[1])

    def _again(self, line: str) -> None:
        if line.startswith("#"):
            self.group(line, line, len(line), len(line))
        else:
            self._lines([line])

    def _carefully(self, family: str, name: str, rest: str, line: str) -> None:
        """A timestamp or an exemplar, a series that was there before, or nothing of the kind."""
        text, closed, number = rest.rpartition("}")
        known = self._labels.known(text) if closed else None
        told = ReadLabels(*known, number) if known is not None else self._labels.closed(rest)
        if told is None:
            self._fault(family, line)
        else:
            self._keep(family, name, told.labels, told.number, told.rest, line)

    def _keep(self, family: str, name: str, labels: dict[str, str], number: int, rest: str, line: str) -> None:
        value = _number(rest)
        if value is None:
            self._fault(family, line)
            return
        series = self._found[family]
        before = series.get((name, number))
        if before is None:
            series[name, number] = Sample(name, labels, value)
        elif not _same(before.value, value):
            self._faults.setdefault(family, f"{family}: the same series twice with different values")

    def cut_off(self, line: str) -> None:
        """The page ends inside `line`, whose number may have had more digits, and its family more lines."""
        name = _NAME.match(line)
        for family in (self._telling, self._spelled.get(name[1]) if name else None):
            if family is not None:
                self._faults.setdefault(family, f"{family}: the page ends in the middle of {line[:_SHOWN]!r}")

    def _fault(self, family: str, line: str) -> None:
        self._faults.setdefault(family, f"{family}: cannot read {line[:_SHOWN]!r}")

    def result(self) -> Exposition:
        """All families that are declared and could be read."""
        whole = {
            family: tuple(self._found[family].values()) for family in self._kinds if family not in self._faults
        }
        kinds = {family: self._kinds[family] for family in whole}
        return Exposition(whole, kinds, tuple(self._faults.values()), frozenset(self._faults))


def _sums_and_counts(name: str, text: str) -> list[str]:
    """The lines of a histogram's group that are no buckets; one look is enough where counts have sums beside."""
    total, count = f"{name}_sum", f"{name}_count"
    before, *rests = text.split(f"\n{count}")
    found: list[str] = []
    for rest in rests:
        line, _, after = rest.partition("\n")
        beside = after if after.startswith(total) else before[before.rfind("\n") + 1 :]
        if not beside.startswith(total):
            break
        found += (count + line, beside.partition("\n")[0])
        before = rest
    else:
        if found:
            return found
    return [part + rest.partition("\n")[0] for part in (total, count) for rest in text.split(f"\n{part}")[1:]]


def _same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


def _number(rest: str) -> float | None:
    """The value that stands first in `rest`; a timestamp or an exemplar may follow."""
    # Python takes digits of any script and underscores for a number; the format does not.
    if not rest.isascii() or "_" in rest:
        words = rest.split(None, 1)
        if not words or not words[0].isascii() or "_" in words[0]:
            return None
    try:
        return float(rest)
    except ValueError:
        value, *behind = rest.split(None, 2) or [""]
    if not behind or not _may_follow(*behind):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def _may_follow(word: str, rest: str = "#") -> bool:
    """Whether behind a value stands an exemplar, a timestamp (whole milliseconds, in OpenMetrics any number of
    seconds), or one after the other."""
    return word == "#" or (_TIMESTAMP.fullmatch(word) is not None and rest.startswith("#"))
