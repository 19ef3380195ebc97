"""A trace in columns, whatever file it came from: one row a request, in the order of time.

Times in seconds from the first request, lengths in tokens. Block ids are numbered from 0 in the order of their
first appearance in the file; what the file called them does not matter.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from kvbench.errors import InputError, Where
from kvbench.workload.traces.block_tree import BlockLists, BlockTree
from kvbench.workload.traces.numbering import Whole

__all__ = ["MOST_TOKENS", "SMALLEST_ID", "Columns", "Floats", "Record", "Rows", "Trace", "Whole"]

Floats = NDArray[np.float64]

MOST_TOKENS = 100_000_000
"""A longer request is a slip: no model reads a tenth of it."""


SMALLEST_ID = -(1 << 62) + 1
_NAMED = SMALLEST_ID - 1
_BEYOND = 1 << 63


@dataclass(frozen=True, slots=True)
class Record:
    """One request as a file tells it. `time` counts in the unit of the file's format."""

    time: float
    input_tokens: int
    output_tokens: int
    blocks: Sequence[int | str]
    session: Hashable = None
    """None: a request of its own."""
    chat: Hashable = None
    parent: Hashable = None
    """Where a file names every request (`chat`) and the one before it (`parent`) instead of sessions."""
    label: str | None = None
    """The kind of request or the model, where the file says."""
    think_s: float | None = None
    """The client's pause between the end of the previous turn and this request."""


@dataclass(frozen=True)
class Rows:
    """Many records as columns. An empty list stands for nothing in every row."""

    times: Floats
    input_tokens: Whole
    output_tokens: Whole
    counts: Whole
    """Block ids of each."""
    blocks: Whole
    """Ids of all, one after the other; none is below `SMALLEST_ID`."""
    sessions: Sequence[Hashable] = ()
    chats: Sequence[Hashable] = ()
    parents: Sequence[Hashable] = ()
    labels: Sequence[str | None] = ()
    pauses: Sequence[float | None] = ()


@dataclass(frozen=True)
class Trace:
    """`n` requests in the order of time (equal times: in the order of the file)."""

    path: Path
    format: str
    block_tokens: int | None
    """Tokens that one id stands for; None for a trace without ids."""
    times_s: Floats
    input_tokens: Whole
    output_tokens: Whole
    offsets: Whole
    """Request i names `blocks[offsets[i] : offsets[i + 1]]`; n + 1 values."""
    tree: BlockTree | None
    """The blocks of all requests, where ids are known to be chained."""
    listed: Whole
    """Else those blocks, one request after the other."""
    sessions: Whole
    """A number per session, or -1 for a request of its own."""
    previous: Whole
    """The request before this one in its session, or -1."""
    think_s: Floats
    """NaN where the file does not say."""
    labels: tuple[str | None, ...]

    def __len__(self) -> int:
        return len(self.times_s)

    @property
    def duration_s(self) -> float:
        """From the first request to the last."""
        return float(self.times_s[-1]) if len(self) else 0.0

    @property
    def references(self) -> int:
        """Blocks that all requests name."""
        return int(self.offsets[-1])

    @property
    def has_identity(self) -> bool:
        """Whether it says which blocks are equal."""
        return self.block_tokens is not None and self.references > 0

    @cached_property
    def blocks(self) -> Whole:
        """All of them, which takes 8 bytes a reference."""
        return self.listed if self.tree is None else self.tree.lists(self.offsets)

    def ids(self, index: int) -> Whole:
        """The block ids of one request, first block first."""
        return self.blocks[self.offsets[index] : self.offsets[index + 1]]

    def is_chained(self) -> bool:
        """Whether every id stands for everything before it as well: it always follows the same id."""
        if self.tree is not None:
            return True
        first = np.zeros(len(self.blocks), bool)
        first[self.offsets[:-1][self.offsets[:-1] < self.offsets[1:]]] = True
        before = np.where(first, -1, np.roll(self.blocks, 1))
        order = np.argsort(self.blocks, kind="stable")
        same = self.blocks[order][1:] == self.blocks[order][:-1]
        return not bool(np.any(same & (before[order][1:] != before[order][:-1])))

    def head(self, count: int) -> Trace:
        """The first `count` requests."""
        if count >= len(self):
            return self
        offsets = self.offsets[: count + 1]
        if self.tree is None:
            listed = self.listed[: offsets[-1]]
        else:
            listed = BlockTree(self.tree.before, self.tree.last[:count]).lists(offsets)
        return replace(
            self,
            times_s=self.times_s[:count],
            input_tokens=self.input_tokens[:count],
            output_tokens=self.output_tokens[:count],
            offsets=offsets,
            tree=None,
            listed=listed,
            sessions=self.sessions[:count],
            previous=self.previous[:count],
            think_s=self.think_s[:count],
            labels=self.labels[:count],
        )


@dataclass
class Columns:
    """Collects records in the order of a file; 8 bytes a value, and no object per request or id is kept."""

    path: Path
    longest: float = math.inf
    """A record whose time is further from the first one's cannot be; in the unit of the file's times."""
    _times: array[float] = field(default_factory=lambda: array("d"))
    _input: array[int] = field(default_factory=lambda: array("q"))
    _output: array[int] = field(default_factory=lambda: array("q"))
    _lists: BlockLists = field(default_factory=BlockLists)
    _sessions: array[int] = field(default_factory=lambda: array("q"))
    _think: array[float] = field(default_factory=lambda: array("d"))
    _labels: list[str | None] = field(default_factory=list)
    _parents: list[Hashable] = field(default_factory=list)
    _block_names: dict[int | str, int] = field(default_factory=dict)
    """Numbers for what is no plain number: from `_NAMED` downwards."""
    _session_numbers: dict[Hashable, int] = field(default_factory=dict)
    _label_texts: dict[str, str] = field(default_factory=dict)
    _chats: dict[Hashable, int] = field(default_factory=dict)

    @property
    def first_time(self) -> float | None:
        """Of the first record of the file; None before there is one."""
        return self._times[0] if self._times else None

    @property
    def chats(self) -> Mapping[Hashable, int]:
        """Rows by the name that their file gives them."""
        return self._chats

    def add(self, record: Record, where: Where) -> None:
        """Append one record; InputError at `where` when its values cannot be."""
        if not math.isfinite(record.time):
            raise InputError("the time is not a finite number", where=where)
        if self._times and abs(record.time - self._times[0]) > self.longest:
            raise InputError(
                f"its time, {record.time:.15g}, is more than a year from the first one's, {self._times[0]:.15g}",
                where=where,
            )
        for tokens, name in ((record.input_tokens, "input"), (record.output_tokens, "output")):
            if not 0 <= tokens <= MOST_TOKENS:
                raise InputError(f"an {name} of {tokens} tokens cannot be", where=where)
        if record.chat is not None and record.chat in self._chats:
            raise InputError(f"another request has the chat id {record.chat!r}", where=where)
        if record.chat is not None:
            self._chats[record.chat] = len(self._times)
        self._lists.add(self._plain(record.blocks))
        self._row(record)

    def add_rows(self, rows: Rows) -> None:
        """Append many records at once that are known to be right."""
        count, first = len(rows.times), len(self._times)
        self._lists.add_rows(rows.blocks, rows.counts)
        self._times.frombytes(np.ascontiguousarray(rows.times, np.float64).tobytes())
        self._input.frombytes(np.ascontiguousarray(rows.input_tokens, np.int64).tobytes())
        self._output.frombytes(np.ascontiguousarray(rows.output_tokens, np.int64).tobytes())
        sessions, texts = self._session_numbers, self._label_texts
        self._sessions.extend(
            [-1 if name is None else sessions.setdefault(name, len(sessions)) for name in rows.sessions]
            or [-1] * count
        )
        self._think.extend([math.nan if pause is None else pause for pause in rows.pauses] or [math.nan] * count)
        self._labels.extend(
            [None if label is None else texts.setdefault(label, label) for label in rows.labels] or [None] * count
        )
        self._chats.update((chat, first + place) for place, chat in enumerate(rows.chats) if chat is not None)
        self._parents.extend(rows.parents or [None] * count)

    def _plain(self, blocks: Sequence[int | str]) -> array[int]:
        """Ids as numbers; texts, and numbers that no column holds, get one of their own."""
        try:
            plain = array("q", cast("Sequence[int]", blocks))  # of texts TypeError
            if not plain or min(plain) > _NAMED:
                return plain
        except (TypeError, OverflowError):
            pass  # then one by one
        return array("q", [self._number_of(id_) for id_ in blocks])

    def _number_of(self, id_: int | str) -> int:
        if isinstance(id_, int) and _NAMED < id_ < _BEYOND:
            return id_
        return _NAMED - self._block_names.setdefault(id_, len(self._block_names))

    def _row(self, record: Record) -> None:
        self._times.append(record.time)
        self._input.append(record.input_tokens)
        self._output.append(record.output_tokens)
        sessions = self._session_numbers
        self._sessions.append(-1 if record.session is None else sessions.setdefault(record.session, len(sessions)))
        self._think.append(math.nan if record.think_s is None else record.think_s)
        self._labels.append(
            None if record.label is None else self._label_texts.setdefault(record.label, record.label)
        )
        self._parents.append(record.parent)

    def trace(self, format_: str, unit_s: float, block_tokens: int | None) -> Trace:
        """The trace; `unit_s` is how many seconds a unit of the file's times is, such as 1e-3."""
        times = np.array(self._times, np.float64)
        order = np.argsort(times, kind="stable")
        times = times[order]
        per_second = round(1.0 / unit_s)
        sessions, previous = self._turns(order)
        counts, tree, listed = self._lists.finished()
        in_order = bool(np.all(order[1:] > order[:-1]))
        if tree is not None:
            tree = replace(tree, last=tree.last[order])
        elif not in_order:
            ends = np.cumsum(counts)
            listed = np.concatenate([listed[ends[i] - counts[i] : ends[i]] for i in order])
        return Trace(
            path=self.path,
            format=format_,
            block_tokens=block_tokens,
            times_s=(times - times[0]) / per_second if len(times) else times,
            input_tokens=np.asarray(self._input, np.int64)[order],
            output_tokens=np.asarray(self._output, np.int64)[order],
            offsets=np.concatenate(([0], np.cumsum(counts[order]))),
            tree=tree,
            listed=listed,
            sessions=sessions,
            previous=previous,
            think_s=np.asarray(self._think, np.float64)[order],
            labels=tuple(self._labels[i] for i in order),
        )

    def _turns(self, order: NDArray[np.intp]) -> tuple[Whole, Whole]:
        """Session and previous request of every request, in the order of time."""
        if self._chats:
            return self._conversations(order)
        sessions = np.asarray(self._sessions, np.int64)[order]
        previous = np.full(len(order), -1, np.int64)
        by_session = np.argsort(sessions, kind="stable")
        same = (sessions[by_session][1:] == sessions[by_session][:-1]) & (sessions[by_session][1:] >= 0)
        previous[by_session[1:][same]] = by_session[:-1][same]
        return sessions, previous

    def _conversations(self, order: NDArray[np.intp]) -> tuple[Whole, Whole]:
        """From parents; a parent that is not in the trace, or comes later, makes its child a first request."""
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        sessions = np.full(len(order), -1, np.int64)
        previous = np.full(len(order), -1, np.int64)
        for index, row in enumerate(order):
            parent = self._chats.get(self._parents[row])
            if parent is not None and place[parent] < index:
                previous[index] = place[parent]
            sessions[index] = index if previous[index] < 0 else sessions[previous[index]]
        return sessions, previous
