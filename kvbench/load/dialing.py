"""Which addresses of a server's name are tried for one request, and what has become of them; opens nothing itself.

As in RFC 8305 ("Happy Eyeballs") an address that does not answer is not given up: after a while the next one is
tried beside it, and the connection that stands first is used. Times are monotonic ns.
"""

from __future__ import annotations

from collections import deque

from kvbench.load.connection import Address, Connection
from kvbench.load.outcome import CLIENT_LIMIT, Failure

__all__ = ["NEXT_ADDRESS_NS", "Dialing"]

NEXT_ADDRESS_NS = 250_000_000
"""The delay between attempts that RFC 8305, section 8, recommends."""


class Dialing:
    """The attempts for one request, until one of them stands."""

    __slots__ = ("_failures", "_untried", "links", "next_ns")

    def __init__(self, addresses: list[Address], first: Address) -> None:
        self._untried = deque([first, *(address for address in addresses if address is not first)])
        self._failures: list[Failure] = []
        self.links: list[Connection] = []
        """Attempts under way."""
        self.next_ns: int | None = None
        """When the next address is tried; None: there is no other, or nothing is under way."""

    def next_address(self, now_ns: int) -> Address | None:
        """The address to be tried now; None when all have been."""
        address = self._untried.popleft() if self._untried else None
        self.next_ns = now_ns + NEXT_ADDRESS_NS if self._untried else None
        return address

    def is_due(self, at_ns: int) -> bool:
        """Whether the next address is to be tried: `at_ns` is its time, and none of those before has answered."""
        return at_ns == self.next_ns and not any(link.connected for link in self.links)

    def failed(self, failure: Failure, link: Connection | None = None) -> None:
        """Note an attempt that failed; without `link` it could not even be begun."""
        if link is not None:
            self.links.remove(link)
        self._failures.append(failure)

    @property
    def failure(self) -> Failure:
        """Why there is no connection, once every attempt has failed. This host may have no address of one kind,
        such as of IPv6, while the server is away at the other."""
        told = (failure for failure in self._failures if failure.cause != CLIENT_LIMIT)
        return next(told, self._failures[-1])
