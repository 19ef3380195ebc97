"""HTTP/1.1 for the emulated server: requests in, answers and event streams out. Knows nothing of what they mean."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol
from urllib.parse import parse_qs, urlsplit

import httptools

__all__ = ["Connection", "Handler", "Incoming"]

_WORDS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 500: "Internal Server Error"}
MOST_BODY_BYTES = 64 * 2**20


class Incoming:
    """One request, complete."""

    __slots__ = ("body", "headers", "method", "path", "query")

    def __init__(self, method: str, target: str, headers: dict[bytes, bytes], body: bytes) -> None:
        parts = urlsplit(target)
        self.method = method
        self.path = parts.path.rstrip("/") or "/"
        self.query = parse_qs(parts.query)
        self.headers = headers
        self.body = body


class Handler(Protocol):
    """Answers requests."""

    def handle(self, connection: Connection, request: Incoming) -> None:
        """Answer now or later."""

    def lost(self, connection: Connection) -> None:
        """The client has gone."""


class Connection(asyncio.Protocol):
    """One client. Answers go out in the order of the requests: the next is taken up when the last is answered."""

    def __init__(self, handler: Handler, accepts: Callable[[], bool]) -> None:
        self._handler = handler
        self._accepts = accepts
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._size = 0
        self._busy = False
        self._queue: list[Incoming] = []

    # -- asyncio ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not isinstance(transport, asyncio.Transport):
            raise TypeError("expected a stream")
        self._transport = transport
        if not self._accepts():
            transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.drop()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._handler.lost(self)

    # -- httptools --------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._target, self._headers, self._body, self._size = b"", {}, [], 0

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size > MOST_BODY_BYTES:
            self.drop()
        else:
            self._body.append(body)

    def on_message_complete(self) -> None:
        method = self._parser.get_method().decode("latin-1")
        self._queue.append(Incoming(method, self._target.decode("latin-1"), self._headers, b"".join(self._body)))
        self._take_next()

    def _take_next(self) -> None:
        if self._queue and not self._busy and self._transport is not None:
            self._busy = True
            self._handler.handle(self, self._queue.pop(0))

    # -- answering --------------------------------------------------------------------------------------------

    def answer(self, status: int, body: bytes, kind: str = "application/json") -> None:
        """A whole answer."""
        head = (
            f"HTTP/1.1 {status} {_WORDS.get(status, 'Status')}\r\nContent-Type: {kind}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self._write(head.encode("latin-1") + body)
        self._over()

    def begin_stream(self) -> None:
        """The head of an event stream."""
        self._write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )

    def events(self, payloads: list[bytes]) -> None:
        """One chunk for each event, all in one write."""
        chunks = []
        for payload in payloads:
            event = b"data: " + payload + b"\n\n"
            chunks.append(b"%x\r\n%s\r\n" % (len(event), event))
        self._write(b"".join(chunks))

    def end_stream(self) -> None:
        """The stream is complete."""
        self._write(b"0\r\n\r\n")
        self._over()

    def drop(self) -> None:
        """Close at once, in the middle of whatever there is; what was written before still goes out."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Reset."""
        if self._transport is not None:
            self._transport.abort()

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _over(self) -> None:
        self._busy = False
        self._take_next()
