"""Lines of a file in bounded memory: one that is too long is left out, whatever stands in it. In bytes."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import chain
from typing import IO

__all__ = ["LONGEST_LINE_BYTES", "TOO_LONG", "chunks_of_lines", "lines_of"]

LONGEST_LINE_BYTES = 128 << 20
"""A prompt of ten million tokens has some 40 MB; beyond this a file has no lines at all, or is no trace."""
TOO_LONG = b"\0longer than any line of a trace\n"
"""Stands for a line that is too long; to be told by `is`."""
_CHUNK_BYTES = 16 << 20


def chunks_of_lines(stream: IO[bytes]) -> Iterator[list[bytes]]:
    """Whole lines with their ends, many at a time. What has no end within the limit becomes `TOO_LONG`."""
    begun: list[bytes] = []
    too_long = False
    while chunk := stream.read(_CHUNK_BYTES):
        end = chunk.rfind(b"\n") + 1
        if end and too_long:
            first = chunk.index(b"\n") + 1
            yield [TOO_LONG, *io.BytesIO(chunk[first:end]).readlines()]
        elif end:
            yield io.BytesIO(b"".join((*begun, chunk[:end]))).readlines()
        if end:
            begun, too_long = [], False
        if not too_long:
            begun.append(chunk[end:])
            too_long = sum(map(len, begun)) > LONGEST_LINE_BYTES
        if too_long:
            begun = []
    if too_long or any(begun):
        yield [TOO_LONG if too_long else b"".join(begun)]


def lines_of(stream: IO[bytes]) -> Iterator[bytes]:
    """One line after the other."""
    return chain.from_iterable(chunks_of_lines(stream))
