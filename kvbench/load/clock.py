"""The driver's clock: monotonic nanoseconds, and the kernel's receive times brought onto them.

The kernel stamps segments with the real-time clock. Both clocks are slewed alike, so the offset between them is
constant except when somebody sets the time; `watch` notices that.
"""

from __future__ import annotations

import socket
import struct
import time
from array import array

__all__ = ["ANCILLARY_BYTES", "Clock", "ask_for_receive_times"]

SO_TIMESTAMPNS = 35
"""Linux, <asm-generic/socket.h>; the control message that carries the time has the same number."""

_TIMESPEC = struct.Struct("@ll")
ANCILLARY_BYTES = socket.CMSG_SPACE(_TIMESPEC.size)

SAMPLE_NS = 10_000
"""An offset whose two readings lie further apart was disturbed by the scheduler and says nothing."""
STEP_NS = 100_000
"""Ten times what an undisturbed sample can be off: a larger change means that the real-time clock was set."""


class Clock:
    """Monotonic time in ns, with kernel stamps converted to it."""

    __slots__ = ("_doubtful", "_offset_ns", "lags_ns", "steps", "unstamped")

    def __init__(self) -> None:
        self.lags_ns = array("q")
        """How much later than they arrived bytes were read, one entry a read; whoever evaluates it empties it."""
        self.unstamped = 0
        """Reads that had to be timed by the clock."""
        self.steps = 0
        """How often the real-time clock was seen to have been set."""
        self._offset_ns = min((self._sample() for _ in range(16)), key=lambda sample: sample[1])[0]
        self._doubtful = False

    now_ns = staticmethod(time.monotonic_ns)

    @staticmethod
    def _sample() -> tuple[int, int]:
        """Real time minus monotonic time, and the width of the bracket it was taken in."""
        before = time.monotonic_ns()
        real = time.time_ns()
        width = time.monotonic_ns() - before
        return real - before - width // 2, width

    def watch(self) -> None:
        """Compare the two clocks; to be called before each batch of reads. Costs three clock readings."""
        offset, width = self._sample()
        if width > SAMPLE_NS:
            return
        self._doubtful = abs(offset - self._offset_ns) > STEP_NS
        if self._doubtful:
            self._offset_ns = offset
            self.steps += 1

    def received_ns(self, ancillary: list[tuple[int, int, bytes]]) -> int:
        """Arrival time of what `recvmsg` just returned with this ancillary data.

        Without a usable kernel stamp (none there, the clock was set, or a stamp from the future) it is the time
        of the read. Bytes of several segments carry the stamp of the last one.
        """
        read_ns = time.monotonic_ns()
        if ancillary and not self._doubtful:
            level, kind, data = ancillary[0]
            if kind == SO_TIMESTAMPNS and level == socket.SOL_SOCKET and len(data) == _TIMESPEC.size:
                seconds, nanoseconds = _TIMESPEC.unpack(data)
                at_ns: int = seconds * 1_000_000_000 + nanoseconds - self._offset_ns
                if at_ns <= read_ns:
                    self.lags_ns.append(read_ns - at_ns)
                    return at_ns
        self.unstamped += 1
        return read_ns


def ask_for_receive_times(sock: socket.socket) -> None:
    """Have the kernel stamp what arrives. Where it cannot, reads are timed by the clock."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    except OSError:
        return
