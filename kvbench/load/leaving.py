"""Users who leave before their answer is over: which exchanges, and when. Sends and closes nothing itself.

An answer that is left after a number of tokens is read while it comes, and again when it is over; the others cost
nothing until their time. Times are monotonic ns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvbench.load.deadlines import Deadlines
from kvbench.load.exchange import Exchange
from kvbench.load.framing import Framing, FramingError
from kvbench.load.outcome import Failure
from kvbench.load.stream import CompletionReader
from kvbench.workload.schedule import PlannedRequest

__all__ = ["Leaving"]


@dataclass(slots=True, eq=False)
class _Watched:
    """An answer that is left after some tokens, and how far it was read."""

    exchange: Exchange
    tokens: int
    framing: Framing | None = None
    reader: CompletionReader | None = None

    def enough(self) -> bool:
        """Whether so many tokens have come. FramingError when the body makes no sense."""
        framing = self.exchange.framing
        if framing is None or self.exchange.status != 200:
            return False
        if framing is not self.framing:  # the first look, or a connection that was lost and replaced
            self.framing, self.reader = framing, CompletionReader(framing.pieces, framing.read_of)
        framing.walk(self.exchange.reads)
        while self.reader is not None and not self.reader.step():
            continue
        return self.reader is not None and self.reader.tokens >= self.tokens


class Leaving:
    """`leave` ends an exchange at once; with None its user left, else the failure that was found."""

    def __init__(self, leave: Callable[[Exchange, Failure | None], None]) -> None:
        self._leave = leave
        self._by_time = Deadlines()
        self._by_tokens: list[_Watched] = []

    def expect(self, request: PlannedRequest, exchange: Exchange, intended_ns: int) -> None:
        """Remember a request that was sent and is to be left."""
        if request.abort_after_s is not None:
            self._by_time.add(intended_ns + int(request.abort_after_s * 1e9), exchange)
        if request.returned_tokens < request.output_tokens:
            self._by_tokens.append(_Watched(exchange, request.returned_tokens))

    @property
    def next_ns(self) -> int | None:
        """When `at` has something to do next."""
        return self._by_time.next_ns

    def at(self, now_ns: int) -> None:
        """Leave those whose time has come."""
        while (due := self._by_time.take(now_ns)) is not None:
            self._go(due[1])

    def read(self) -> None:
        """Leave those of which enough tokens have come; call after new ones may have."""
        if not self._by_tokens:
            return
        self._by_tokens = [watched for watched in self._by_tokens if watched.exchange.over_ns is None]
        for watched in self._by_tokens:
            try:
                if watched.enough():
                    self._go(watched.exchange)
            except FramingError as error:
                self._leave(watched.exchange, Failure("malformed_event", str(error)))

    def _go(self, exchange: Exchange) -> None:
        exchange.left = True
        self._leave(exchange, None)
