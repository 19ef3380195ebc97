"""By when something is to happen to exchanges that are not over by then. Times are monotonic ns."""

from __future__ import annotations

import heapq

from kvbench.load.exchange import Exchange

__all__ = ["Deadlines"]

FEWEST = 1024
"""So many are not looked through for what is over; it takes some tens of microseconds."""


class Deadlines:
    """In the order of their times.

    What is over is passed over, and soon let go: behind a request that hangs all those would wait that were sent
    after it and answered long ago.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Exchange, int]] = []
        self._sequence = 0
        self._sweep_at = FEWEST

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, at_ns: int, exchange: Exchange, kind: int = 0) -> None:
        """`kind`: what is to happen, for whoever takes it."""
        self._sequence += 1
        heapq.heappush(self._heap, (at_ns, self._sequence, exchange, kind))
        if len(self._heap) > self._sweep_at:
            self._heap = [entry for entry in self._heap if entry[2].over_ns is None]
            heapq.heapify(self._heap)
            self._sweep_at = max(FEWEST, 2 * len(self._heap))  # so that it costs the same for each, however many

    @property
    def next_ns(self) -> int | None:
        """When `take` has something next."""
        heap = self._heap
        while heap and heap[0][2].over_ns is not None:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def take(self, now_ns: int) -> tuple[int, Exchange, int] | None:
        """The first whose time has come, with its time and kind; it is taken out."""
        heap = self._heap
        while heap and heap[0][0] <= now_ns:
            at_ns, _, exchange, kind = heapq.heappop(heap)
            if exchange.over_ns is None:
                return at_ns, exchange, kind
        return None
