"""Requests on their way in virtual time, and the moments at which something is due to happen to them. Seconds."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass

from kvbench.engine.emulated.fates import Fate
from kvbench.engine.emulated.request import Request
from kvbench.load.agenda import Turn

__all__ = ["Moments", "Sent"]


@dataclass(slots=True, eq=False)
class Sent:
    """A request on its way."""

    turn: Turn
    request: Request
    fate: Fate
    sent_s: float
    over: bool = False


class Moments:
    """One for each kind of thing that happens; nothing happens any more to what is over."""

    def __init__(self) -> None:
        self._queue: list[tuple[float, int, Sent]] = []
        self._added = 0

    def add(self, at_s: float, sent: Sent) -> None:
        """Of those at the same moment the first added comes first."""
        self._added += 1
        heapq.heappush(self._queue, (at_s, self._added, sent))

    @property
    def first_s(self) -> float:
        """The next moment; infinite: there is none."""
        while self._queue and self._queue[0][2].over:
            heapq.heappop(self._queue)
        return self._queue[0][0] if self._queue else math.inf

    def until(self, now_s: float) -> Iterator[tuple[float, Sent]]:
        """Take everything up to `now_s`; what is over when its turn comes is left out."""
        while self.first_s <= now_s:
            at_s, _, sent = heapq.heappop(self._queue)
            yield at_s, sent
