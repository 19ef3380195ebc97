"""Server-sent events out of bytes that may be cut anywhere. Knows nothing of what the events say.

Follows "Interpreting an event stream" of the HTML standard: lines end in LF, CR or CRLF, a blank line ends an
event, lines that begin with a colon are comments, several data lines are joined by LF.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import methodcaller

__all__ = ["EventDecoder"]

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_ENDS_AN_EVENT = methodcaller("endswith", b"\n\n")


class EventDecoder:
    """Feed it bytes as they come; it returns the data of every event that they complete."""

    __slots__ = ("_after_cr", "_data", "_fresh", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._after_cr = False
        self._fresh = True

    @property
    def idle(self) -> bool:
        """Whether nothing is pending: the next byte begins a line of a new event."""
        return not (self._rest or self._data or self._after_cr)

    def one_each(self, chunks: Sequence[bytes]) -> bytes | None:
        """Where each chunk is exactly one event of one line, as nearly always: their data, separated by commas.

        None: it is otherwise, or something is pending; nothing was taken then and the chunks are to be fed.
        """
        if not self.idle:
            return None
        joined = b"".join(chunks)
        # As many line ends as that, two of them at the end of every chunk, leave none for anywhere else.
        if not (
            joined.count(b"\n") == 2 * len(chunks)
            and joined.startswith(b"data: ")
            and joined.count(b"\n\ndata: ") == len(chunks) - 1
            and all(map(_ENDS_AN_EVENT, chunks))
            and b"\r" not in joined
        ):
            return None
        self._fresh = False
        return joined[6:-2].replace(b"\n\ndata: ", b",")

    def feed(self, chunk: bytes) -> list[bytes]:
        """Data of the events whose last byte is in `chunk`."""
        if not chunk:
            return []
        if self._after_cr:
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")  # the second half of a CRLF that was cut in two
        if b"\r" in chunk:
            self._after_cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = (self._rest + chunk).split(b"\n")
        self._rest = lines.pop()
        events: list[bytes] = []
        for line in lines:
            if self._fresh:
                self._fresh = False
                line = line.removeprefix(_BYTE_ORDER_MARK)  # noqa: PLW2901
            if line:
                self._field(line)
            elif self._data:
                events.append(b"\n".join(self._data))
                self._data.clear()
        return events

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
