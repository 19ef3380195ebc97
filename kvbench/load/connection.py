"""One HTTP/1.1 connection: connects, sends one request at a time, reads the answer's head and puts its body aside.

Non-blocking; the selector loop in `client` calls `writable` and `readable`. Reads of a body are kept as they come,
with the kernel's stamps, and looked into by `framing` when it may be over. TLS goes through memory buffers, so that
the bytes are still read by `recvmsg` and keep the kernel's receive time.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
from functools import partial
from time import monotonic_ns
from typing import Protocol

from kvbench.load.clock import ANCILLARY_BYTES, Clock, ask_for_receive_times
from kvbench.load.exchange import Exchange
from kvbench.load.framing import READS_AT_ONCE, Framing, FramingError, UntilClose
from kvbench.load.head import HeadError, HeadReader
from kvbench.load.outcome import Failure, no_connection

__all__ = ["STREAM_READ_BYTES", "Address", "Connection", "Owner"]

READ_BYTES = 65536
STREAM_READ_BYTES = 4096
"""While an answer streams; memory for it is had faster. Where that was not all, the rest is read at once."""
SHOWN = 200
_NOTHING = memoryview(b"")
CROSSED_NS = 100_000_000
"""A server's close that crossed the request on its way is noticed a round trip after the sending. This much more is
for one turn of a busy server's event loop, in which it may close what it has not read; what comes later is an
answer: the request was there, and was not served."""


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

    def may_be_over(self, connection: Connection) -> None:
        """The answer may be complete: `look_for_the_end` is to be called soon, once the other sockets were read."""

    def exchange_over(self, connection: Connection, exchange: Exchange, failure: Failure | None) -> None:
        """The exchange is finished; the connection can take another one when it is still `open`."""

    def ready(self, connection: Connection, exchange: Exchange) -> None:
        """A new connection stands, with its TLS; the request goes out on it at once."""

    def connect_failed(self, connection: Connection, exchange: Exchange, failure: Failure) -> None: ...

    def stale(self, connection: Connection, exchange: Exchange) -> None:
        """A kept-alive connection was closed by the server just when the request went out."""

    def idle_closed(self, connection: Connection) -> None:
        """The server closed (or spoke on) a connection that carried nothing."""


class Connection:
    """Created with its first exchange; reused while the server keeps it alive."""

    def __init__(self, owner: Owner, address: Address, clock: Clock) -> None:
        self.owner = owner
        self.clock = clock
        self.open = True
        self.connected = False
        self._connect_ns = 0
        self._round_trip_ns = 0
        """What the TCP handshake took."""
        self.reused = False
        self.exchange: Exchange | None = None
        self.pieces = 0
        """Reads of bodies that are over on this connection."""
        self._message = b""
        self._unsent = _NOTHING
        self._head: HeadReader | None = None
        self._body: Framing | None = None
        """Set while the body of an answer is being received."""
        self.streaming: Exchange | None = None
        """The exchange, while the body of its answer is being received and nothing is to be decrypted: whoever
        calls `receive_some` may put what it returns aside at once."""
        self.last_bytes: bytes | tuple[bytes, ...] = b""
        """Of the body; see there."""
        self.walk_at = 0
        """With so many reads of the body it is looked into in any case."""
        self._answered = False
        self._keep = False
        self._unwalked = False
        """`may_be_over` was told and nobody has looked yet."""
        self.sock = socket.socket(address.family, socket.SOCK_STREAM)
        self.fd = self.sock.fileno()
        self.receive_some = partial(self.sock.recvmsg, STREAM_READ_BYTES, ANCILLARY_BYTES)
        """One read of the socket, while `streaming`."""
        self.sock.setblocking(False)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ask_for_receive_times(self.sock)
        self._tls: ssl.SSLObject | None = None
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        if address.tls:
            self._tls = address.tls.wrap_bio(self._incoming, self._outgoing, server_hostname=address.server_name)
        self.secured = self._tls is None
        self.address = address

    @property
    def ready(self) -> bool:
        """Whether the connection, with its TLS, stands."""
        return self.connected and self.secured

    def connect(self, exchange: Exchange, message: bytes) -> None:
        """Begin to connect; `message` goes out as soon as that is done."""
        self.exchange = exchange
        self._message = message
        self._connect_ns = monotonic_ns()
        error = self.sock.connect_ex(self.address.sockaddr)
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
            self._unsent = _NOTHING
            self.owner.wants_write(self, False)
            return
        self._unsent = self._unsent[sent:] or _NOTHING  # an empty part of the message would keep all of it
        self.owner.wants_write(self, len(self._unsent) > 0)

    def writable(self) -> None:
        """The socket takes bytes again, or its connecting has come to an end."""
        if not self.connected:
            error = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                self._connect_failed(OSError(error, os.strerror(error)))
                return
            self.connected = True
            self._round_trip_ns = monotonic_ns() - self._connect_ns
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
        if self.exchange is not None:
            self.owner.ready(self, self.exchange)
        self._start(self._message)

    def readable(self) -> None:
        """One read, whatever it brings."""
        try:
            data, ancillary, _, _ = self.sock.recvmsg(READ_BYTES, ANCILLARY_BYTES)
        except OSError as error:
            self.unreadable(error)
            return
        self.taken(data, ancillary)

    def unreadable(self, error: OSError) -> None:
        """What the read raised."""
        if not isinstance(error, BlockingIOError):
            self._ended(error.strerror or str(error))

    def look_soon(self) -> None:
        """The body may be over with what was read last."""
        if not self._unwalked:
            self._unwalked = True
            self.owner.may_be_over(self)

    def taken(self, data: bytes, ancillary: list[tuple[int, int, bytes]]) -> None:
        """What the read brought."""
        # The only control message that was asked for is the stamp.
        stamp = ancillary[0][2] if ancillary else b""
        if self._tls:
            self._decrypt(data, stamp)
        elif data:
            self._received(data, stamp)
        else:
            self._ended("the server closed the connection")

    def _decrypt(self, data: bytes, stamp: bytes) -> None:
        assert self._tls is not None  # noqa: S101  (for the type checker; `readable` has looked)
        if not data:
            self._ended("the server closed the connection")
            return
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
            self._received(plain, stamp)
        if self.open and self._outgoing.pending:
            self._write_encrypted()  # the protocol's own messages, such as a key update

    def _received(self, data: bytes, stamp: bytes) -> None:
        """Bytes in the clear."""
        body = self._body
        exchange = self.exchange
        if exchange is None:
            self._idle_closed()  # bytes that nobody asked for
        elif body is None:
            self._begin(exchange, data, stamp)
        else:
            exchange.reads.append(data)
            exchange.stamps.append(stamp)
            exchange.read_ns.append(monotonic_ns())
            if not body.worth_a_walk(data):
                return
            if self.streaming is None:
                self._walk(exchange, body)
            else:
                self.look_soon()

    def _begin(self, exchange: Exchange, data: bytes, stamp: bytes) -> None:
        """The head of an answer, or part of it; what follows it begins the body."""
        self._answered = True
        while data:
            reader = self._head = self._head or HeadReader()
            try:
                data = reader.take(data)
            except HeadError as error:
                self._over(Failure("malformed_event", f"not an HTTP/1.1 response: {error}"))
                return
            head = reader.head
            if head is None:
                continue
            self._head = None
            if head.status < 200:  # interim; the answer follows
                continue
            exchange.status = head.status
            exchange.content_type = head.content_type
            exchange.message = b""  # nothing is sent again once an answer has come
            self._keep = head.keep_alive
            body = exchange.framing = self._body = head.framing()
            self.last_bytes = body.last_bytes
            self.walk_at = READS_AT_ONCE
            self.streaming = None if self._tls else exchange
            if data:
                self._received(data, stamp)
            elif body.over:
                self._walk(exchange, body)
            return

    def look_for_the_end(self) -> None:
        """Look into what was read, if that is due; the exchange may be over with it."""
        if self._unwalked:
            self._unwalked = False
            if self._body is not None and self.exchange is not None:
                self._walk(self.exchange, self._body)

    def _walk(self, exchange: Exchange, body: Framing) -> None:
        try:
            body.walk(exchange.reads)
        except FramingError as error:
            self._over(Failure("malformed_event", str(error)))
            return
        self.walk_at = len(exchange.reads) + READS_AT_ONCE
        if body.over:
            self._over(None, keep=self._keep and not self._unsent and not body.surplus)

    # -- ends -------------------------------------------------------------------------------------------------

    def _ended(self, why: str) -> None:
        self.look_for_the_end()
        if not self.open:
            return
        exchange = self.exchange
        if exchange is None:
            self._idle_closed()
        elif not self.ready:
            self._connect_failed(OSError(why))
        elif self._crossed(exchange):
            self.exchange = None
            self.close()
            self.owner.stale(self, exchange)
        elif isinstance(self._body, UntilClose):
            self._over(None, closed=True)
        else:
            self._over(Failure("stream_broken", why), closed=True)

    def _crossed(self, exchange: Exchange) -> bool:
        """Whether the server closed a connection that it had kept alive before it can have seen the request."""
        if self._answered or not self.reused or exchange.resent or exchange.sent_ns is None:
            return False
        return monotonic_ns() - exchange.sent_ns <= self._round_trip_ns + CROSSED_NS

    def _idle_closed(self) -> None:
        self.close()
        self.owner.idle_closed(self)

    def _connect_failed(self, error: OSError) -> None:
        exchange = self.exchange
        self.exchange = None
        self.close()
        if exchange:
            self.owner.connect_failed(self, exchange, no_connection(error))

    def _over(self, failure: Failure | None, *, keep: bool = False, closed: bool = False) -> None:
        """The exchange ends with the latest read, or with the end of the connection."""
        exchange = self.exchange
        if exchange is None:
            self.close()
            return
        read_ns = self.settle()
        exchange.over_ns = self.clock.now_ns() if closed else read_ns
        self.exchange = None
        if failure or not keep:
            self.close()
        if failure is None and exchange.status != 200:
            said = b"".join(exchange.chunks)[:SHOWN].decode("utf-8", "backslashreplace").strip()
            failure = Failure("http_status", f"{exchange.status} {said}".rstrip())
        if failure and failure.cause == "stream_broken":
            pieces = len(exchange.chunks)
            when = "before an answer began" if exchange.status is None else f"after {pieces} pieces"
            failure = Failure(failure.cause, f"{failure.detail} {when}")
        self.owner.exchange_over(self, exchange, failure)

    def settle(self) -> int:
        """No more of the answer is read; the time of its last read, now if there was none."""
        self._body = None
        self.streaming = None
        if self.exchange is None:
            return self.clock.now_ns()
        self.pieces += len(self.exchange.reads)
        return self.exchange.settle(self.clock) or self.clock.now_ns()

    def close(self) -> None:
        """Close the socket; an exchange under way is the caller's to finish."""
        if self.open:
            self.open = False
            self.sock.close()
