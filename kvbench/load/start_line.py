"""Where a player waits, primed and with its first prompts encoded, until time zero is agreed on."""

from __future__ import annotations

import threading
import time

__all__ = ["StartLine"]


class StartLine:
    """`wait` is the playing thread's; `open` may be called from any other, and only its first call counts."""

    def __init__(self) -> None:
        self._zero_ns: int | None = None
        self._opened = threading.Event()

    def wait(self) -> int:
        """Time zero in monotonic ns; now, when the round was called off."""
        self._opened.wait()
        return time.monotonic_ns() if self._zero_ns is None else self._zero_ns

    def open(self, zero_ns: int | None) -> None:
        """Let the player go with this time zero, or with None: the round was called off."""
        if not self._opened.is_set():
            self._zero_ns = zero_ns
            self._opened.set()
