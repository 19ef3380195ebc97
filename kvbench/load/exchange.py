"""One request on its way and the bytes that came back, before anybody looks into them. Times are monotonic ns."""

from __future__ import annotations

from array import array
from contextlib import suppress
from typing import TYPE_CHECKING

from kvbench.load.clock import Clock
from kvbench.load.framing import Framing, FramingError
from kvbench.load.outcome import Failure

if TYPE_CHECKING:
    from kvbench.load.connection import Connection

__all__ = ["Exchange"]


class Exchange:
    """Filled in by the connection that carries it; `over_ns` is set last."""

    __slots__ = (
        "body_bytes",
        "chunks",
        "connected_ns",
        "connection",
        "content_type",
        "deadline_ns",
        "failure",
        "framing",
        "id",
        "left",
        "message",
        "name",
        "over_ns",
        "read_ns",
        "reads",
        "resent",
        "sent_ns",
        "stamps",
        "status",
        "times_ns",
    )

    def __init__(self, id_: int, name: str, message: bytes, deadline_ns: int) -> None:
        self.id = id_
        self.name = name
        """Sent as X-Request-Id, so that the server's log can be matched; ASCII."""
        self.message = message
        """The whole request, head and body; empty once an answer has begun or it is over."""
        self.deadline_ns = deadline_ns
        self.sent_ns: int | None = None
        """When the client turned to it: the first connect or send on its behalf."""
        self.connected_ns: int | None = None
        """When the connection that was made for it stood, with its TLS; None: it went out on one that was there."""
        self.status: int | None = None
        self.content_type = ""
        self.framing: Framing | None = None
        """How the body ends; None before the head is complete."""
        self.reads: list[bytes] = []
        """What was read of the body, framing and all."""
        self.stamps: list[bytes] = []
        """The kernel's time of each of `reads`, as it came; empty where it gave none."""
        self.read_ns = array("q")
        """The clock at each of `reads`."""
        self.chunks: list[bytes] = []
        """Once settled: the body, framing and content encoding undone, in one piece per HTTP chunk and read."""
        self.times_ns: list[int] = []
        """Once settled: receive time of each of `chunks`."""
        self.body_bytes = 0
        """Once `forget` was called: the length of the body."""
        self.resent = False
        self.left = False
        """The user left before the answer was over, as the schedule had it."""
        self.failure: Failure | None = None
        self.over_ns: int | None = None
        self.connection: Connection | None = None

    def begin_answer(self) -> None:
        """Forget what an interim response (1xx) or a lost connection left."""
        self.status = None
        self.content_type = ""
        self.framing = None
        self.reads = []
        self.stamps = []
        self.read_ns = array("q")

    def settle(self, clock: Clock) -> int:
        """No more is read: fill in `chunks` and `times_ns`. Returns the time of the last read, 0 without any."""
        framing = self.framing
        if framing is None or not self.reads:
            return 0
        with suppress(FramingError):  # what came before is kept; that it is broken was noticed, or is too late
            framing.walk(self.reads)
        times_ns: list[int] = clock.received_ns(self.stamps, self.read_ns).tolist()
        self.chunks = framing.pieces
        self.times_ns = [times_ns[index] for index in framing.read_of]
        self.framing = None
        self.reads = []
        self.stamps = []
        self.read_ns = array("q")
        return times_ns[-1]

    def forget(self) -> None:
        """What came was read by all who want it: keep no more of it than its length."""
        self.body_bytes = sum(map(len, self.chunks))
        self.chunks.clear()  # the lists themselves: whoever read them holds them as well
        self.times_ns.clear()
