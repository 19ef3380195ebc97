"""A bandwidth to hold copies and reads to. Standard library only; runs inside the server. Bytes and seconds."""

from __future__ import annotations

import threading
import time


class Pace:
    """A bandwidth shared by all who pay into it: ``pay(n)`` returns when n bytes would have crossed the link.

    The caller's own time counts, so a copy that is slower than the link is not slowed further.
    """

    def __init__(self, bytes_per_s: float | None) -> None:
        if bytes_per_s is not None and not bytes_per_s > 0:
            raise ValueError(f"a bandwidth must be above zero bytes per second, not {bytes_per_s!r}")
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._link_free_at = 0.0
        self._closed = threading.Event()

    def pay(self, n_bytes: int, started_at: float) -> None:
        """Sleep until the link has carried ``n_bytes`` after everything paid before; on the caller's thread."""
        if self._bytes_per_s is None:
            return
        with self._lock:
            self._link_free_at = max(self._link_free_at, started_at) + n_bytes / self._bytes_per_s
            wait_s = self._link_free_at - time.monotonic()
        if wait_s > 0:
            self._closed.wait(wait_s)

    def close(self) -> None:
        """Let every waiting and later ``pay`` return at once."""
        self._closed.set()
