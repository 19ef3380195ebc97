"""One HTTP/1.1 connection: connects, sends one request at a time, takes the answer apart down to the body's pieces.

Non-blocking; the selector loop in `client` calls `writable` and `readable`. TLS goes through memory buffers, so
that the bytes are still read by `recvmsg` and keep the kernel's receive time.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
import zlib
from typing import Protocol

import httptools

from kvbench.load.clock import ANCILLARY_BYTES, Clock, ask_for_receive_times
from kvbench.load.exchange import Exchange
from kvbench.load.outcome import Failure

__all__ = ["Address", "Connection", "Owner"]

READ_BYTES = 65536
ERROR_BODY_BYTES = 16384
"""As much of an answer with an error status is kept; enough for the server's message."""
SHOWN = 200


class Address:
    """Where a server can be reached: one resolved socket address and how to speak there."""

    __slots__ = ("family", "server_name", "sockaddr", "tls")

    def __init__(
        self, family: int, sockaddr: tuple[object, ...], tls: ssl.SSLContext | None, server_name: str
    ) -> None:
        self.family = family
        self.sockaddr = sockaddr
        self.tls = tls
        self.server_name = server_name


class Owner(Protocol):
    """What a connection tells the client that it belongs to."""

    def wants_write(self, connection: Connection, wanted: bool) -> None: ...

    def exchange_over(self, connection: Connection, exchange: Exchange, failure: Failure | None) -> None:
        """The exchange is finished; the connection can take another one when it is still `open`."""

    def connect_failed(self, connection: Connection, exchange: Exchange, failure: Failure) -> None: ...

    def stale(self, connection: Connection, exchange: Exchange) -> None:
        """A kept-alive connection was closed by the server before any byte of the answer."""

    def idle_closed(self, connection: Connection) -> None:
        """The server closed (or spoke on) a connection that carried nothing."""


class Connection:
    """Created with its first exchange; reused while the server keeps it alive."""

    def __init__(self, owner: Owner, address: Address, clock: Clock) -> None:
        self.owner = owner
        self.clock = clock
        self.open = True
        self.connected = False
        self.connect_by_ns = 0
        """When connecting is given up; kept here for the client."""
        self.reused = False
        self.exchange: Exchange | None = None
        self.pieces = 0
        """Pieces of bodies received so far on this connection."""
        self._message = b""
        self._unsent = memoryview(b"")
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._read_ns = 0
        self._answered = False
        self._complete = False
        self._keep = False
        self._surplus = False
        self._sized = False
        self._gunzip: zlib._Decompress | None = None
        self._kept_bytes = 0
        self.sock = socket.socket(address.family, socket.SOCK_STREAM)
        self.fd = self.sock.fileno()
        self.sock.setblocking(False)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ask_for_receive_times(self.sock)
        self._tls: ssl.SSLObject | None = None
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        if address.tls:
            self._tls = address.tls.wrap_bio(self._incoming, self._outgoing, server_hostname=address.server_name)
        self.secured = self._tls is None
        self._address = address

    @property
    def ready(self) -> bool:
        """Whether the connection, with its TLS, stands."""
        return self.connected and self.secured

    def connect(self, exchange: Exchange, message: bytes) -> None:
        """Begin to connect; `message` goes out as soon as that is done."""
        self.exchange = exchange
        self._message = message
        error = self.sock.connect_ex(self._address.sockaddr)
        if error not in (0, errno.EINPROGRESS):
            self._connect_failed(OSError(error, os.strerror(error)))
            return
        self.owner.wants_write(self, True)

    def send(self, exchange: Exchange, message: bytes) -> None:
        """Send the next request on a connection that is idle."""
        self.exchange = exchange
        self.reused = True
        self._start(message)

    def _start(self, message: bytes) -> None:
        self._answered = False
        self._complete = False
        self._message = b""
        if self._tls:
            self._tls.write(message)
            self._write_encrypted()
        else:
            self._unsent = memoryview(message)
            self._write()

    def _write_encrypted(self) -> None:
        self._unsent = memoryview(bytes(self._unsent) + self._outgoing.read())
        self._write()

    def _write(self) -> None:
        try:
            sent = self.sock.send(self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            # The reason is on the receiving side: perhaps an answer that was given early, certainly the end.
            self._unsent = memoryview(b"")
            self.owner.wants_write(self, False)
            return
        self._unsent = self._unsent[sent:]
        self.owner.wants_write(self, len(self._unsent) > 0)

    def writable(self) -> None:
        """The socket takes bytes again, or its connecting has come to an end."""
        if not self.connected:
            error = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                self._connect_failed(OSError(error, os.strerror(error)))
                return
            self.connected = True
            self._handshake()
        elif self._unsent:
            self._write()
        else:
            self.owner.wants_write(self, False)

    def _handshake(self) -> None:
        if self._tls and not self.secured:
            try:
                self._tls.do_handshake()
                self.secured = True
            except ssl.SSLWantReadError:
                self._write_encrypted()
                return
            except ssl.SSLError as error:
                self._connect_failed(error)
                return
        self._start(self._message)

    def readable(self) -> None:
        """One read; everything that it completes is passed on."""
        try:
            data, ancillary, _, _ = self.sock.recvmsg(READ_BYTES, ANCILLARY_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._read_ns = self.clock.now_ns()
            self._ended(error.strerror or str(error))
            return
        # Never back in time, also when one read had its stamp and the one before had to be timed by the clock.
        self._read_ns = max(self._read_ns, self.clock.received_ns(ancillary))
        if not data:
            self._ended("the server closed the connection")
            return
        if self._tls:
            self._decrypt(data)
        else:
            self._parse(data)

    def _decrypt(self, data: bytes) -> None:
        assert self._tls is not None  # noqa: S101  (for the type checker; `readable` has looked)
        self._incoming.write(data)
        if not self.secured:
            self._handshake()
        while self.secured and self.open:
            try:
                plain = self._tls.read(READ_BYTES)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                plain = b""
            except ssl.SSLError as error:
                self._ended(f"TLS: {error.reason or error}")
                return
            if not plain:
                self._ended("the server closed the connection")
                return
            self._parse(plain)
        if self.open and self._outgoing.pending:
            self._write_encrypted()  # the protocol's own messages, such as a key update

    def _parse(self, data: bytes) -> None:
        parser = self._parser
        if self.exchange is None or parser is None:
            self._idle_closed()  # bytes that nobody asked for
            return
        self._answered = True
        try:
            parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            self._over(Failure("malformed_event", f"the body cannot be read: {error.__context__ or error}"))
            return
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._over(Failure("malformed_event", f"not an HTTP/1.1 response: {error}"))
            return
        if self._complete:
            self._over(None, keep=self._keep and not self._unsent and not self._surplus)

    # -- called by the parser ---------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._complete:
            self._surplus = True  # a second answer to one request: this connection cannot be trusted any more
            return
        self._gunzip = None
        self._sized = False
        self._kept_bytes = 0
        if self.exchange:
            self.exchange.begin_answer()

    def on_header(self, name: bytes, value: bytes) -> None:
        key = name.lower()
        if key == b"content-type" and self.exchange:
            self.exchange.content_type = value.decode("latin-1").lower()
        elif key == b"content-encoding" and value.lower() in (b"gzip", b"x-gzip"):
            self._gunzip = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        elif key in (b"content-length", b"transfer-encoding"):
            self._sized = True

    def on_headers_complete(self) -> None:
        if self.exchange and self._parser and not self._complete:
            self.exchange.status = self._parser.get_status_code()

    def on_body(self, piece: bytes) -> None:
        exchange = self.exchange
        if exchange is None or self._complete:
            return
        if self._gunzip:
            piece = self._gunzip.decompress(piece)
            if not piece:
                return
        if exchange.status != 200:
            self._kept_bytes += len(piece)
            if self._kept_bytes > ERROR_BODY_BYTES:
                return
        self.pieces += 1
        exchange.times_ns.append(self._read_ns)
        exchange.chunks.append(piece)

    def on_message_complete(self) -> None:
        status = self.exchange.status if self.exchange else None
        if self._parser and (status is None or status >= 200):
            self._complete = True
            # The parser knows this only now: before it returns from here it forgets the message.
            self._keep = self._parser.should_keep_alive()

    # -- ends -------------------------------------------------------------------------------------------------

    def _ended(self, why: str) -> None:
        exchange = self.exchange
        if exchange is None:
            self._idle_closed()
        elif not self.ready:
            self._connect_failed(OSError(why))
        elif not self._answered and self.reused and not exchange.resent:
            self.exchange = None
            self.close()
            self.owner.stale(self, exchange)
        elif exchange.status is not None and exchange.status >= 200 and not self._sized:
            self._over(None)  # a body that is as long as the connection lives
        else:
            when = "before an answer began" if exchange.status is None else f"after {len(exchange.chunks)} pieces"
            self._over(Failure("stream_broken", f"{why} {when}"))

    def _idle_closed(self) -> None:
        self.close()
        self.owner.idle_closed(self)

    def _connect_failed(self, error: OSError) -> None:
        exchange = self.exchange
        self.exchange = None
        self.close()
        if exchange:
            refused = error.errno == errno.ECONNREFUSED
            reason = error.strerror or str(error)
            self.owner.connect_failed(self, exchange, Failure("refused" if refused else "connect", reason))

    def _over(self, failure: Failure | None, *, keep: bool = False) -> None:
        exchange = self.exchange
        self.exchange = None
        if failure or not keep:
            self.close()
        if exchange is None:
            return
        exchange.over_ns = self._read_ns
        if failure is None and exchange.status != 200:
            said = b"".join(exchange.chunks)[:SHOWN].decode("utf-8", "backslashreplace").strip()
            failure = Failure("http_status", f"{exchange.status} {said}".rstrip())
        self.owner.exchange_over(self, exchange, failure)

    def close(self) -> None:
        """Close the socket; an exchange under way is the caller's to finish."""
        if self.open:
            self.open = False
            self._parser = None  # it refers back to this connection, and nobody collects cycles during a round
            self.sock.close()
