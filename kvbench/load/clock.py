"""The driver's clock: monotonic nanoseconds, and the kernel's receive times brought onto them.

The kernel stamps segments with the real-time clock. Both clocks are slewed alike, so the offset between them is
constant except when somebody sets the time; `watch` notices that.
"""

from __future__ import annotations

import socket
import struct
import time
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

__all__ = ["ANCILLARY_BYTES", "Clock", "ask_for_receive_times"]

SO_TIMESTAMPNS = 35
"""Linux, <asm-generic/socket.h>; the control message that carries the time has the same number."""

_TIMESPEC = struct.Struct("@ll")
_NO_STAMP = bytes(_TIMESPEC.size)
ANCILLARY_BYTES = socket.CMSG_SPACE(_TIMESPEC.size)

SAMPLE_NS = 10_000
"""An offset whose two readings lie further apart was disturbed by the scheduler and says little."""
SAMPLES = 16
"""So many are taken at first, and the narrowest is believed; later too, where none is as narrow as that."""
_WIDTH = itemgetter(1)
STEP_NS = 100_000
"""Ten times what an undisturbed sample can be off: a larger change means that the real-time clock was set."""


class Clock:
    """Monotonic time in ns, with kernel stamps converted to it."""

    __slots__ = (
        "_doubtful",
        "_epochs",
        "_offset_ns",
        "_since_ns",
        "_sure_ns",
        "_wide",
        "_width_ns",
        "lags_ns",
        "steps",
        "unstamped",
    )

    def __init__(self) -> None:
        self.lags_ns: list[NDArray[np.int64]] = []
        """How much later than they arrived bytes were read, one value a read; whoever evaluates it empties it."""
        self.unstamped = 0
        """Reads that had to be timed by the clock."""
        self.steps = 0
        """How often the real-time clock was seen to have been set."""
        self._offset_ns, self._width_ns, _ = min((self._sample() for _ in range(SAMPLES)), key=_WIDTH)
        self._wide: list[tuple[int, int, int]] = []
        """The latest samples that were too wide to be believed at once."""
        self._sure_ns = 0
        """When one of them was believed last."""
        self._doubtful = False
        self._since_ns: list[int] = [0]
        self._epochs: list[int | None] = [self._offset_ns]
        """What offset holds for reads made since each of `_since_ns`; None: no stamp can be believed."""

    now_ns = staticmethod(time.monotonic_ns)

    @staticmethod
    def _sample() -> tuple[int, int, int]:
        """Real time minus monotonic time, the width of the bracket it was taken in, and when that began."""
        before = time.monotonic_ns()
        real = time.time_ns()
        width = time.monotonic_ns() - before
        return real - before - width // 2, width, before

    def watch(self) -> int:
        """Compare the two clocks; to be called before each batch of reads. The time then; three clock readings."""
        sample = offset, width, at_ns = self._sample()
        if width > SAMPLE_NS:
            self._keep_wide(sample)
        elif self._doubtful or abs(offset - self._offset_ns) > STEP_NS:
            self._believe(offset, width, STEP_NS, time.monotonic_ns())
        return at_ns

    def _keep_wide(self, sample: tuple[int, int, int]) -> None:
        """Of many such samples the narrowest is believed, as far as it goes: where a clock is read slowly there are
        no others."""
        self._wide.append(sample)
        if len(self._wide) == SAMPLES:
            offset, width, at_ns = min(self._wide, key=_WIDTH)
            since_ns, self._sure_ns = max(self._sure_ns, self._since_ns[-1]), at_ns
            self._wide.clear()
            # Each is off by half its width at most, wherever between its two readings it was disturbed.
            self._believe(offset, width, max(STEP_NS, width, self._width_ns), since_ns)

    def _believe(self, offset: int, width: int, step_ns: int, since_ns: int) -> None:
        """A larger change than `step_ns` means that the clock was set, some time after `since_ns`."""
        if abs(offset - self._offset_ns) > step_ns:
            self._offset_ns, self._width_ns = offset, width
            self.steps += 1
            self._doubtful = True
            self._wide.clear()
            self._begin_epoch(None, since_ns)
        elif self._doubtful:
            self._doubtful = False
            self._begin_epoch(self._offset_ns, time.monotonic_ns())

    def _begin_epoch(self, offset_ns: int | None, since_ns: int) -> None:
        self._since_ns.append(since_ns)
        self._epochs.append(offset_ns)

    def received_ns(self, stamps: Sequence[bytes], read_ns: array[int]) -> NDArray[np.int64]:
        """Arrival times of what was read at `read_ns` with these stamps of the kernel's, in order; int64.

        Without a usable stamp (none there, the clock was set, or a stamp from the future) it is the time of the
        read. Bytes of several segments carry the stamp of the last one. Never back in time.
        """
        read = np.array(read_ns, np.int64)
        packed = b"".join(stamps)
        if len(self._epochs) == 1 and len(packed) == _TIMESPEC.size * len(read) and all(stamps):  # nearly always
            at = _real_ns(packed)
            at -= self._offset_ns
            lags = read - at
            if lags.min(initial=0) >= 0:
                self.lags_ns.append(lags)
                return np.maximum.accumulate(at)
        return self._received_in_part(stamps, read_ns, read)

    def _received_in_part(
        self, stamps: Sequence[bytes], read_ns: array[int], read: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """As `received_ns`, where some stamps are not there or cannot be believed."""
        told = np.array([len(stamp) == _TIMESPEC.size for stamp in stamps], np.bool_)
        real = _real_ns(b"".join(stamp if len(stamp) == _TIMESPEC.size else _NO_STAMP for stamp in stamps))
        epochs = [self._epochs[bisect_right(self._since_ns, one) - 1] for one in read_ns]
        told &= np.array([epoch is not None for epoch in epochs], np.bool_)
        at = real - np.array([epoch or 0 for epoch in epochs], np.int64)
        told &= at <= read
        self.unstamped += len(read) - int(told.sum())
        self.lags_ns.append((read - at)[told])
        return np.maximum.accumulate(np.where(told, at, read))


def _real_ns(packed: bytes) -> NDArray[np.int64]:
    """The kernel's times on its real-time clock, out of one `struct timespec` after the other."""
    fields = np.frombuffer(packed, np.dtype("l"))
    return fields[0::2].astype(np.int64) * 1_000_000_000 + fields[1::2]


def ask_for_receive_times(sock: socket.socket) -> None:
    """Have the kernel stamp what arrives. Where it cannot, reads are timed by the clock."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    except OSError:
        return
