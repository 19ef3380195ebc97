"""The head of one HTTP/1.1 answer, taken apart by llhttp: its status, how its body is framed, what follows it.

A server's heads are mostly the same to the byte, so those seen last are known and not taken apart again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import httptools

from kvbench.load.framing import Chunked, Framing, Sized, UntilClose

__all__ = ["Head", "HeadError", "HeadReader"]

HeadError = httptools.HttpParserError
"""The bytes are no head of an HTTP/1.1 answer."""

HEAD_BYTES = 65536
ERROR_BODY_BYTES = 16384
"""As much of an answer with an error status is kept; enough for the server's message."""
_END = re.compile(rb"\n\r?\n")
_BLANK_LINE = b"\r\n\r\n"
_BODYLESS = (204, 304)


@dataclass(frozen=True, slots=True)
class Head:
    """What it says, as far as it matters here."""

    status: int
    content_type: str
    keep_alive: bool
    """Whether the connection takes another request afterwards."""
    gzipped: bool
    chunked: bool
    length: int | None

    def framing(self) -> Framing:
        """How the body is going to end."""
        limit = None if self.status == 200 else ERROR_BODY_BYTES
        if self.status in _BODYLESS:
            return Sized(0)
        if self.chunked:
            return Chunked(gzipped=self.gzipped, limit=limit)
        if self.length is not None:
            return Sized(self.length, gzipped=self.gzipped, limit=limit)
        return UntilClose(gzipped=self.gzipped, limit=limit)


_KNOWN: dict[bytes, Head] = {}
_MOST_KNOWN = 64
"""A head with the time of day or an id in it is a new one each time; these must not fill the memory."""


class HeadReader:
    """Reads one head out of bytes that may be cut anywhere."""

    def __init__(self) -> None:
        self.head: Head | None = None
        """Set when it is complete. Until then the reader and its parser refer to each other."""
        self._parser: httptools.HttpResponseParser | None = None
        self._text = b""
        self._content_type = ""
        self._gzipped = self._chunked = False
        self._length: int | None = None

    def take(self, data: bytes) -> bytes:
        """Feed it what comes; returns what lies behind the head. HeadError when it is none."""
        if not self._text:
            end = data.find(_BLANK_LINE) + len(_BLANK_LINE)
            self.head = _KNOWN.get(data[:end])
            if self.head is not None:
                return data[end:]
        if self._parser is None:
            self._parser = httptools.HttpResponseParser(self)
        before = len(self._text)
        self._text += data
        found = _END.search(self._text, max(0, before - 2))
        end = found.end() - before if found else len(data)
        try:
            self._parser.feed_data(data[:end])
        except httptools.HttpParserUpgrade as error:
            raise HeadError(f"{error}") from error
        if len(self._text) > HEAD_BYTES:
            raise HeadError("its head is longer than 64 KiB")
        if self.head is not None:
            self._parser = None  # nobody collects cycles during a round
            self._remember(self._text[: before + end], self.head)
        elif found and self._text.strip():
            raise HeadError("its head ends too early")
        return data[end:]

    @staticmethod
    def _remember(text: bytes, head: Head) -> None:
        if text.find(_BLANK_LINE) == len(text) - len(_BLANK_LINE):
            if len(_KNOWN) >= _MOST_KNOWN:
                del _KNOWN[next(iter(_KNOWN))]
            _KNOWN[text] = head

    # -- called by the parser ---------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        key, value = name.lower(), value.strip().lower()
        if key == b"content-type":
            self._content_type = value.decode("latin-1")
        elif key == b"content-encoding":
            self._gzipped = value in (b"gzip", b"x-gzip")
        elif key == b"transfer-encoding":
            self._chunked = value.endswith(b"chunked")
        elif key == b"content-length":
            self._length = int(value)

    def on_headers_complete(self) -> None:
        if self._parser:
            self.head = Head(
                self._parser.get_status_code(),
                self._content_type,
                self._parser.should_keep_alive(),
                self._gzipped,
                self._chunked,
                self._length,
            )
