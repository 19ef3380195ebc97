"""Server-sent events out of bytes that may be cut anywhere. Knows nothing of what the events say.

Follows "Interpreting an event stream" of the HTML standard: lines end in LF, CR or CRLF, a blank line ends an
event, lines that begin with a colon are comments, several data lines are joined by LF.
"""

from __future__ import annotations

__all__ = ["EventDecoder"]

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class EventDecoder:
    """Feed it bytes as they come; it returns the data of every event that they complete."""

    __slots__ = ("_after_cr", "_data", "_fresh", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._after_cr = False
        self._fresh = True

    def feed(self, chunk: bytes) -> list[bytes]:
        """Data of the events whose last byte is in `chunk`."""
        # Nearly every chunk of a completion is exactly one event of one line: no need to take it apart.
        if (
            chunk.startswith(b"data: ")
            and chunk.find(b"\n", 6) == len(chunk) - 2
            and chunk.endswith(b"\n\n")
            and not (self._rest or self._data or self._after_cr)
            and b"\r" not in chunk
        ):
            self._fresh = False
            return [chunk[6:-2]]
        return self._feed_lines(chunk)

    def _feed_lines(self, chunk: bytes) -> list[bytes]:
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
