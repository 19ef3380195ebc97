"""HTTP/1.1 bodies: where they end, and what is in them. Works on reads that were put aside while they came.

A body is looked into when it may be over and every 64 reads, not at every read. Nothing here knows of times: a
piece says which read completed it.
"""

from __future__ import annotations

import re
import zlib
from abc import ABC, abstractmethod
from operator import methodcaller

__all__ = ["READS_AT_ONCE", "SHORTEST", "Chunked", "Framing", "FramingError", "Sized", "UntilClose"]

READS_AT_ONCE = 64
"""A walk through as many takes some twenty microseconds; it bounds how long the end of a long answer takes."""
SHORTEST = 4
"""A read shorter than this may be no more than a part of the bytes that bodies end with."""
_SIZE_BYTES = 32
"""No chunk's size line is longer than this (extensions included) on the quick way."""
_LINE_BYTES = 8192
"""Longest size line or trailer that is accepted."""
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?")
_BLANK_LINE = b"\r\n\r\n"


class FramingError(ValueError):
    """The bytes are not a body of the kind that the head announced."""


class Framing(ABC):
    """One body. `pieces` are its contents, content encoding undone; `read_of` says in which read each ended."""

    last_bytes: bytes | tuple[bytes, ...] = b""
    """A read with which the body may be over ends so, unless it is shorter than `SHORTEST`. For
    `bytes.endswith`: the empty tuple is no read's end."""

    def __init__(self, *, gzipped: bool = False, limit: int | None = None) -> None:
        """`limit`: after as many bytes nothing is kept any more."""
        self.pieces: list[bytes] = []
        self.read_of: list[int] = []
        self.over = False
        self.surplus = False
        """There were bytes behind the end."""
        self.walked = 0
        """Reads that were looked into."""
        self._gunzip = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS) if gzipped else None
        self._limit = limit
        self._plain = not gzipped and limit is None

    @abstractmethod
    def worth_a_walk(self, data: bytes) -> bool:
        """Whether the body may be over with this read, the latest. Cheap; to be asked once for every read."""

    def walk(self, reads: list[bytes]) -> None:
        """Look into those of the body's `reads` that are new, and empty them. FramingError when they are none."""
        first = self.walked
        try:
            self._walk(reads)
        except FramingError:
            self.walked = len(reads)  # nothing behind the break can be trusted
            raise
        reads[first : self.walked] = [b""] * (self.walked - first)  # what was in them is in `pieces`

    def _walk(self, reads: list[bytes]) -> None:
        for index in range(self.walked, len(reads)):
            self.walked = index + 1
            self._take(reads[index], index)

    @abstractmethod
    def _take(self, data: bytes, index: int) -> None:
        """The next read, from where the quick way gave up or the whole of it."""

    def _keep(self, piece: bytes, index: int) -> None:
        if self._gunzip:
            try:
                piece = self._gunzip.decompress(piece)
            except zlib.error as error:
                raise FramingError(f"the body cannot be read: {error}") from error
        if self._limit is not None:
            piece = piece[: self._limit]
            self._limit -= len(piece)
        if piece:
            self.pieces.append(piece)
            self.read_of.append(index)


class Sized(Framing):
    """`Content-Length`, or no body at all."""

    def __init__(self, length: int, *, gzipped: bool = False, limit: int | None = None) -> None:
        super().__init__(gzipped=gzipped, limit=limit)
        self._left = length
        self.over = length == 0

    def worth_a_walk(self, data: bytes) -> bool:
        return True

    def _take(self, data: bytes, index: int) -> None:
        self.surplus = len(data) > self._left
        piece = data[: self._left]
        self._left -= len(piece)
        self.over = self._left == 0
        self._keep(piece, index)


class UntilClose(Framing):
    """As long as the connection lives."""

    last_bytes = ()

    def worth_a_walk(self, data: bytes) -> bool:
        return False

    def _take(self, data: bytes, index: int) -> None:
        self._keep(data, index)


class Chunked(Framing):
    """`Transfer-Encoding: chunked` (RFC 9112, section 7.1), with chunk extensions and trailers passed over."""

    # The last bytes of every chunked body are those of a blank line, which hardly any other read ends with.
    last_bytes = _BLANK_LINE

    def __init__(self, *, gzipped: bool = False, limit: int | None = None) -> None:
        super().__init__(gzipped=gzipped, limit=limit)
        self._since_walk = 0
        self._left = 0
        """Bytes of the chunk under way that are still to come."""
        self._line = b""
        """Beginning of a size line or trailer that was cut off."""
        self._expect = _SIZE

    def worth_a_walk(self, data: bytes) -> bool:
        self._since_walk += 1
        at_end = data.endswith(_BLANK_LINE) or len(data) < SHORTEST
        return at_end or self._since_walk >= READS_AT_ONCE

    def _walk(self, reads: list[bytes]) -> None:
        self._since_walk = 0
        first = self.walked
        whole = _whole_chunks(reads[first:]) if self._plain else [b""] * (len(reads) - first)
        whole.append(b"")
        while self.walked < len(reads):
            start = self.walked - first
            if whole[start] and self._expect == _SIZE and not self._line:
                stop = whole.index(b"", start)
                run = zip(reads[self.walked : first + stop], whole[start:stop], strict=True)
                self.pieces += [data[len(line) : -2] for data, line in run]
                self.read_of += range(self.walked, first + stop)
                self.walked = first + stop
            else:
                self.walked += 1
                self._take_chunks(reads[self.walked - 1], self.walked - 1)

    def _take_chunks(self, data: bytes, index: int) -> None:
        """The next read, of which most are several chunks and no part of another."""
        at = 0
        while self._expect == _SIZE and self._plain and not self._line:
            line_end = data.find(b"\r\n", at, at + _SIZE_BYTES)
            size = _SIZES.get(data[at:line_end]) if line_end > 0 else None
            start = line_end + 2
            if not size or data[start + size : start + size + 2] != b"\r\n":
                break
            self.pieces.append(data[start : start + size])
            self.read_of.append(index)
            at = start + size + 2
            if at == len(data):
                break
        if at < len(data):
            self._take(data[at:], index)

    def _take(self, data: bytes, index: int) -> None:
        at = 0
        while at < len(data):
            if self.over:
                self.surplus = True
                return
            if self._expect == _DATA:
                piece = data[at : at + self._left]
                at += len(piece)
                self._left -= len(piece)
                self._keep(piece, index)
                if self._left == 0:
                    self._expect = _DATA_END
                continue
            end = data.find(b"\n", at) + 1
            self._line += data[at : end or len(data)]
            if len(self._line) > _LINE_BYTES:
                raise FramingError("a chunk's size line is longer than 8 KiB")
            if self._expect == _DATA_END and not b"\r\n".startswith(self._line):
                raise FramingError(f"a chunk goes on beyond its size: {self._line[:40]!r}")
            if not end:
                return
            at = end
            self._line_over()

    def _line_over(self) -> None:
        line, self._line = self._line, b""
        if not line.endswith(b"\r\n"):
            raise FramingError(f"a line of the chunked body does not end in CR LF: {line[:40]!r}")
        if self._expect == _DATA_END:
            self._expect = _SIZE
        elif self._expect == _TRAILERS:
            self.over = line == b"\r\n"
        else:
            self._left = _size(line[:-2])
            self._expect = _DATA if self._left else _TRAILERS


_SIZE, _DATA, _DATA_END, _TRAILERS = range(4)

_ENDS_A_LINE = methodcaller("endswith", b"\r\n")
_SIZE_LINES = {size + len(line) + 2: line for size in range(1, 0x1000) if (line := b"%x\r\n" % size)}
"""What a read begins with that is one chunk and nothing else, by the length of the read."""


def _whole_chunks(reads: list[bytes]) -> list[bytes]:
    """For each read that is one chunk: its size line. Empty for one that is anything else, or looks different.

    Nearly all are. To ask it of many at once takes a quarter of the time.
    """
    lines = [
        _SIZE_LINES.get(len(data)) or data + b"\n" for data in reads
    ]  # of other lengths, what none begins with
    if all(map(bytes.startswith, reads, lines)) and all(map(_ENDS_A_LINE, reads)):
        return lines
    return [
        line if data.startswith(line) and data.endswith(b"\r\n") else b""
        for data, line in zip(reads, lines, strict=True)
    ]


_SIZES: dict[bytes, int] = {}
"""Size lines that were seen and are right, so that each is looked into once."""
_MOST_SIZES = 10_000


def _size(line: bytes) -> int:
    match = _SIZE_LINE.fullmatch(line)
    if match is None:
        raise FramingError(f"a chunk's size is {line[:40]!r}")
    size = int(match[1], 16)
    if len(_SIZES) < _MOST_SIZES:
        _SIZES[line] = size
    return size
