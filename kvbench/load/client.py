"""The streaming client: one selector loop over all sockets, a pool that grows as needed, deadlines.

Requests go out when they are handed over, on an idle connection or a new one: there is no limit and no queue. No
proxies, no redirects, and no retries but one: a kept-alive connection that the server closed before it can have
seen the request is replaced once, and that is counted. To be used from one thread; only `wake` may be called from
others.
"""

from __future__ import annotations

import os
import select
import time
from collections import deque
from collections.abc import Callable
from operator import call
from time import monotonic_ns

from kvbench.errors import LoadError
from kvbench.load.clock import Clock
from kvbench.load.connection import STREAM_READ_BYTES, Connection
from kvbench.load.deadlines import Deadlines
from kvbench.load.dialing import Dialing
from kvbench.load.exchange import Exchange
from kvbench.load.framing import SHORTEST
from kvbench.load.outcome import Failure, no_connection
from kvbench.load.target import Target

__all__ = ["Client"]

EXACT_WAIT_NS = 3_000_000
"""epoll rounds its timeout up to a millisecond; the last stretch before something is due is waited for by select,
which takes microseconds."""

ENDINGS_NS = 300_000
"""Answers that may be over are looked into for this long, then the sockets are looked at again: a hundred that end
together would otherwise hold up the reading of all others for as many times 0.3 ms."""

READ_AT_ONCE = 32
"""Sockets that are read before it is looked at what came, in 0.2 ms; the clock is read once for all of them."""
OTHERS_FIRST = 8
"""Sockets with anything else (an answer that begins, one to write to) that are looked after before these."""
GATHER_NS = 2_000_000
GATHER_PER_ANSWER_NS = 10_000
"""When sockets become ready faster than this, the next look at them comes no sooner, so that it finds several:
10 us for each answer under way, at most 2 ms. Arrival times are the kernel's, so nothing is lost but wake-ups; one
answer's tokens come further apart."""


class Client:
    """Drives all connections to one server."""

    def __init__(
        self,
        target: Target,
        clock: Clock,
        on_over: Callable[[Exchange], None],
        *,
        connect_timeout_s: float = 10.0,
    ) -> None:
        self.clock = clock
        self.connections_opened = 0
        self.resent = 0
        self.active: set[Exchange] = set()
        self._target = target
        self._on_over = on_over
        self._connect_timeout_ns = int(connect_timeout_s * 1e9)
        self._idle: list[Connection] = []
        self._connections: dict[int, Connection] = {}
        self._writing: set[int] = set()
        self._ending: deque[Connection] = deque()
        """Connections whose answer may be over, in the order of arrival."""
        self._first = target.addresses[0]
        """Where connecting worked last."""
        self._dialing: dict[int, Dialing] = {}
        """Of the exchanges whose connection does not stand yet."""
        self._pieces_of_closed = 0
        self._deadlines = Deadlines()
        self._closed = False
        self.stall_max_ns = 0
        """The longest stretch in which nobody looked at the sockets: from one look to when the next was begun."""
        self._looked_ns = monotonic_ns()
        self.gathering_until_ns = 0
        """Before this the sockets are better left alone; see `GATHER_NS`."""
        self._epoll = select.epoll()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake_fd, select.EPOLLIN)

    # -- what a player does -----------------------------------------------------------------------------------

    def message(self, name: str, body: bytes) -> bytes:
        """What `send` takes: a whole request, made before its time."""
        return self._target.message(name, body)

    def send(self, exchange: Exchange) -> None:
        """Send now. `on_over` is called for it once, from `poll`, `expire`, `abort`, or before this returns."""
        exchange.sent_ns = self.clock.now_ns()
        self.active.add(exchange)
        self._deadlines.add(exchange.deadline_ns, exchange, _ANSWER)
        self._dispatch(exchange)

    def poll(self, wait_ns: int, due_ns: int | None = None) -> int:
        """Wait at most `wait_ns` for something to arrive and handle it; how many sockets had something.

        Returns as soon as it is `due_ns`, also in the middle of what has arrived: the rest is found the next time.
        """
        now_ns = monotonic_ns()
        self.stall_max_ns = max(self.stall_max_ns, now_ns - self._looked_ns)
        until_ns = due_ns if due_ns is not None and now_ns < due_ns else _NEVER_NS
        ready = self._arrived(0 if self._ending else wait_ns)
        self._looked_ns = self.clock.watch()
        get = self._connections.get
        streaming: list[Connection] = []
        others: list[tuple[Connection | None, int]] = []
        for entry in ready:
            connection = get(entry[0])
            if entry[1] == _IN and connection is not None and connection.streaming is not None:  # nearly always
                streaming.append(connection)
            elif connection is not None or entry[0] == self._wake_fd:
                # Not the number: another connection may have it before it is the turn of this one.
                others.append((connection, entry[1]))
        # Where time is always short, neither may keep the others waiting for ever.
        in_time = self._turn_to_each(others[:OTHERS_FIRST], until_ns)
        for start in range(0, len(streaming), READ_AT_ONCE):
            in_time = in_time and self._read_streams(streaming[start : start + READ_AT_ONCE]) < until_ns
        in_time = in_time and self._turn_to_each(others[OTHERS_FIRST:], until_ns)
        if self._ending:
            self._look_at_endings(ENDINGS_NS if in_time else 0)
        return len(ready)

    def begin(self) -> None:
        """What kept from looking at the sockets until now does not count."""
        self._looked_ns = monotonic_ns()
        self.stall_max_ns = 0

    def _read_streams(self, connections: list[Connection]) -> int:
        """One read of each, of which all is put aside; the time then.

        All are read before anything is looked at: this is where a busy client spends most of its time, and the
        interpreter is slow right after every system call, when its own code and data have left the caches.
        """
        got: list[tuple[bytes, list[tuple[int, int, bytes]], int, object]] = []
        receive = iter([connection.receive_some for connection in connections])
        failed: list[tuple[Connection, OSError]] = []
        more: list[Connection] = []
        while True:
            try:
                got.extend(map(call, receive))
                break
            except OSError as error:
                # Those before it are in `got`, those behind it are still to be read.
                failed.append((connections.pop(len(got)), error))
        read_ns = monotonic_ns()
        for connection, (data, ancillary, _, _) in zip(connections, got, strict=True):
            exchange = connection.streaming
            if exchange is None or not data:
                connection.taken(data, ancillary)
                continue
            reads = exchange.reads
            reads.append(data)
            exchange.stamps.append(ancillary[0][2] if ancillary else b"")
            exchange.read_ns.append(read_ns)
            size = len(data)
            if data.endswith(connection.last_bytes) or len(reads) >= connection.walk_at or size < SHORTEST:
                connection.look_soon()
            if size == STREAM_READ_BYTES:
                more.append(connection)
        for connection in more:
            connection.readable()
        for connection, reason in failed:
            connection.unreadable(reason)
        return read_ns

    def _turn_to_each(self, ready: list[tuple[Connection | None, int]], until_ns: int) -> bool:
        """Whether it was done before `until_ns`."""
        for connection, events in ready:
            self._turn_to(connection, events)
            if monotonic_ns() >= until_ns:
                return False
        return True

    def _turn_to(self, connection: Connection | None, events: int) -> None:
        """Everything but the usual: something to read of an answer under way and nothing else. None: `wake`."""
        if connection is None:
            os.eventfd_read(self._wake_fd)
            return
        if connection.open and (events & _OUT or (not connection.connected and events & _LOST)):
            connection.writable()
        if events & _READABLE and connection.open and connection.connected:
            connection.readable()

    def _arrived(self, wait_ns: int) -> list[tuple[int, int]]:
        """What epoll has to tell within `wait_ns`."""
        ready = self._epoll.poll(0) if wait_ns <= 0 else self._waited_for(wait_ns)
        if ready:
            self.gathering_until_ns = monotonic_ns() + min(GATHER_NS, len(self.active) * GATHER_PER_ANSWER_NS)
        return ready

    def _waited_for(self, wait_ns: int) -> list[tuple[int, int]]:
        poll = self._epoll.poll
        now_ns = monotonic_ns()
        end_ns = now_ns + wait_ns
        if now_ns < self.gathering_until_ns:
            time.sleep(min(wait_ns, self.gathering_until_ns - now_ns) / 1e9)
            if ready := poll(0):
                return ready
            wait_ns = end_ns - monotonic_ns()
        if wait_ns >= EXACT_WAIT_NS:
            return poll((wait_ns - EXACT_WAIT_NS // 2) // 1_000_000 / 1e3)
        if wait_ns > 0:
            select.select((self._epoll,), (), (), wait_ns / 1e9)
        return poll(0)

    def _look_at_endings(self, for_ns: int) -> None:
        """For so long, but into one at least."""
        until_ns = monotonic_ns() + for_ns
        while self._ending:
            self._ending.popleft().look_for_the_end()
            if monotonic_ns() >= until_ns:
                break

    def next_deadline_ns(self) -> int | None:
        """When `expire` has something to do next."""
        return self._deadlines.next_ns

    def expire(self, now_ns: int) -> None:
        """Fail what is over its deadline."""
        while (due := self._deadlines.take(now_ns)) is not None:
            at_ns, exchange, kind = due
            if kind == _ANSWER:
                self.abort(exchange, Failure("timeout", _progress(exchange)))
            elif (dialing := self._dialing.get(exchange.id)) is None:
                continue
            elif kind == _CONNECT:
                self.abort(
                    exchange, Failure("connect", f"no connection after {self._connect_timeout_ns / 1e9:g} s")
                )
            elif dialing.is_due(at_ns):
                self._try_next(exchange, dialing)

    def abort(self, exchange: Exchange, failure: Failure | None) -> None:
        """End it now, whatever its state, and close its connection. None: its user left."""
        connection = exchange.connection
        if connection:
            connection.look_for_the_end()  # what has come counts, also where nobody has looked into it yet
            if exchange.over_ns is not None:
                return
            connection.settle()
            connection.exchange = None
            self._drop(connection)
        self._end_dialing(exchange)
        exchange.over_ns = self.clock.now_ns()
        self._finish(exchange, failure)

    def wake(self) -> None:
        """Make `poll` return soon. Safe from any thread."""
        if not self._closed:
            os.eventfd_write(self._wake_fd, 1)

    def close(self) -> None:
        """Close every socket. Exchanges under way must have been aborted."""
        for connection in list(self._connections.values()):
            self._drop(connection)
        self._closed = True
        self._epoll.close()
        os.close(self._wake_fd)

    @property
    def pieces(self) -> int:
        """Reads of bodies so far: the sign of life of a server that is streaming."""
        under_way = sum(len(exchange.reads) for exchange in self.active)
        return self._pieces_of_closed + under_way + sum(link.pieces for link in self._connections.values())

    # -- what a connection reports ----------------------------------------------------------------------------

    def may_be_over(self, connection: Connection) -> None:
        self._ending.append(connection)

    def wants_write(self, connection: Connection, wanted: bool) -> None:
        if wanted != (connection.fd in self._writing):
            (self._writing.add if wanted else self._writing.discard)(connection.fd)
            self._epoll.modify(connection.fd, _WATCHED | (select.EPOLLOUT if wanted else 0))

    def exchange_over(self, connection: Connection, exchange: Exchange, failure: Failure | None) -> None:
        if connection.open:
            self._idle.append(connection)
        else:
            self._forget(connection)
        self._finish(exchange, failure)

    def ready(self, connection: Connection, exchange: Exchange) -> None:
        exchange.connected_ns = self.clock.now_ns()
        exchange.connection = connection
        self._first = connection.address
        self._end_dialing(exchange, but=connection)

    def connect_failed(self, connection: Connection, exchange: Exchange, failure: Failure) -> None:
        self._forget(connection)
        dialing = self._dialing[exchange.id]
        dialing.failed(failure, connection)
        self._try_next(exchange, dialing)

    def stale(self, connection: Connection, exchange: Exchange) -> None:
        self._forget(connection)
        self.resent += 1
        exchange.resent = True
        self._open(exchange)

    def idle_closed(self, connection: Connection) -> None:
        self._idle.remove(connection)
        self._forget(connection)

    # -- inside -----------------------------------------------------------------------------------------------

    def _dispatch(self, exchange: Exchange) -> None:
        while self._idle:
            connection = self._idle.pop()  # the one used last is the least likely to have been closed
            if connection.open:
                exchange.connection = connection
                connection.send(exchange, exchange.message)
                return
        self._open(exchange)

    def _open(self, exchange: Exchange) -> None:
        """Connect for it, within the time that this may take, to any of the server's addresses."""
        dialing = self._dialing[exchange.id] = Dialing(self._target.addresses, self._first)
        self._deadlines.add(self.clock.now_ns() + self._connect_timeout_ns, exchange, _CONNECT)
        self._try_next(exchange, dialing)

    def _try_next(self, exchange: Exchange, dialing: Dialing) -> None:
        """Begin to connect to an address that was not tried. The exchange is over when every attempt has failed."""
        while (address := dialing.next_address(self.clock.now_ns())) is not None:
            try:
                connection = Connection(self, address, self.clock)
            except OSError as error:  # out of file descriptors, most likely, or no address of this kind here
                dialing.failed(no_connection(error))
                continue
            self.connections_opened += 1
            self._connections[connection.fd] = connection
            self._epoll.register(connection.fd, _WATCHED)
            dialing.links.append(connection)
            if dialing.next_ns is not None:
                self._deadlines.add(dialing.next_ns, exchange, _NEXT_ADDRESS)
            connection.connect(exchange, exchange.message)
            return
        if not dialing.links:
            exchange.over_ns = self.clock.now_ns()
            self._finish(exchange, dialing.failure)

    def _end_dialing(self, exchange: Exchange, but: Connection | None = None) -> None:
        """No further address is tried, and what is under way is dropped, except for `but`."""
        dialing = self._dialing.pop(exchange.id, None)
        for link in dialing.links if dialing else ():
            if link is not but:
                link.exchange = None
                self._drop(link)

    def _drop(self, connection: Connection) -> None:
        connection.close()
        self._forget(connection)

    def _forget(self, connection: Connection) -> None:
        if self._connections.get(connection.fd) is connection:
            del self._connections[connection.fd]
            self._writing.discard(connection.fd)
            self._pieces_of_closed += connection.pieces

    def _finish(self, exchange: Exchange, failure: Failure | None) -> None:
        if exchange not in self.active:
            raise LoadError(f"request {exchange.id} ended twice")
        self.active.discard(exchange)
        self._dialing.pop(exchange.id, None)
        exchange.connection = None
        exchange.message = b""
        exchange.failure = failure
        self._on_over(exchange)


_ANSWER, _CONNECT, _NEXT_ADDRESS = range(3)
"""What is to happen by a deadline: the answer is over; a connection stands; or another address is tried."""
_IN, _OUT = select.EPOLLIN, select.EPOLLOUT
_NEVER_NS = 1 << 63
_WATCHED = select.EPOLLIN | select.EPOLLRDHUP
_LOST = select.EPOLLERR | select.EPOLLHUP
_READABLE = select.EPOLLIN | select.EPOLLRDHUP | _LOST


def _progress(exchange: Exchange) -> str:
    if exchange.status is None:
        return "no answer yet"
    return f"{len(exchange.reads)} pieces of the answer had come"
