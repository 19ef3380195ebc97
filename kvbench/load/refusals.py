"""Whether a server refuses every request: what its driver counts, and what whoever watches makes of it.

A refusal is an answer with a status of 500 or more. Times in seconds on any clock that goes on.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvbench.load.exchange import Exchange

__all__ = ["REFUSALS", "REFUSING_S", "Refusals", "Taken"]

REFUSALS = 10
REFUSING_S = 5.0
"""So many in a row, over so long, and nothing of any other answer in between: shorter is what an overloaded server
or a gateway does for a moment, and counts as errors."""


class Taken:
    """How the server took the requests of one driver so far."""

    def __init__(self) -> None:
        self._refused = 0
        self._status: int | None = None
        self._pieces = 0

    def over(self, exchange: Exchange) -> None:
        """Count a request that is over."""
        if exchange.status is None:
            return
        if exchange.status >= 500:
            self._refused += 1
            self._status = exchange.status
        elif exchange.status == 200:
            self._pieces += 1 + len(exchange.chunks)

    def told(self, active: Iterable[Exchange]) -> dict[str, object]:
        """For a progress event; `active` are the requests under way."""
        under_way = sum(len(exchange.reads) for exchange in active if exchange.status == 200)
        return {"refused": self._refused, "refused_with": self._status, "served": self._pieces + under_way}


class Refusals:
    """Follows what drivers tell."""

    def __init__(self) -> None:
        self.status: int | None = None
        """Of the newest refusal."""
        self.in_a_row = 0
        self._served = 0.0
        self._refused_before = 0
        self._refused = 0
        self._since_s: float | None = None
        self._newest_s = 0.0

    def tell(self, now_s: float, *, refused: int, served: float, status: int | None) -> None:
        """Refusals so far, and a figure that changes whenever anything of another answer has come."""
        if served != self._served:
            self._served, self._refused_before, self._since_s = served, refused, None
        if refused > self._refused:
            self._newest_s, self.status = now_s, status
            self._since_s = now_s if self._since_s is None else self._since_s
        self._refused = refused
        self.in_a_row = refused - self._refused_before

    @property
    def every(self) -> bool:
        """Whether the server has gone over to refusing everything."""
        lasted_s = 0.0 if self._since_s is None else self._newest_s - self._since_s
        return self.in_a_row >= REFUSALS and lasted_s >= REFUSING_S

    @property
    def text(self) -> str:
        """What it does, for a sentence about the server."""
        return f"refuses every request with {self.status}, {self.in_a_row} in a row"
