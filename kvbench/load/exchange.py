"""One request on its way and the bytes that came back, before anybody looks into them. Times are monotonic ns."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from kvbench.load.outcome import Failure

if TYPE_CHECKING:
    from kvbench.load.connection import Connection

__all__ = ["Exchange"]


class Exchange:
    """Filled in by the connection that carries it; `over_ns` is set last."""

    __slots__ = (
        "body",
        "chunks",
        "connection",
        "content_type",
        "deadline_ns",
        "failure",
        "id",
        "name",
        "over_ns",
        "resent",
        "sent_ns",
        "status",
        "times_ns",
    )

    def __init__(self, id_: int, name: str, body: bytes, deadline_ns: int) -> None:
        self.id = id_
        self.name = name
        """Sent as X-Request-Id, so that the server's log can be matched; ASCII."""
        self.body = body
        self.deadline_ns = deadline_ns
        self.sent_ns: int | None = None
        """When the client turned to it: the first connect or send on its behalf."""
        self.status: int | None = None
        self.content_type = ""
        self.chunks: list[bytes] = []
        """The body as it came, content encoding undone, in one piece per HTTP chunk and read."""
        self.times_ns = array("q")
        """Receive time of each of `chunks`."""
        self.resent = False
        self.failure: Failure | None = None
        self.over_ns: int | None = None
        self.connection: Connection | None = None

    def begin_answer(self) -> None:
        """Forget what an interim response (1xx) or a lost connection left."""
        self.status = None
        self.content_type = ""
        self.chunks.clear()
        del self.times_ns[:]
