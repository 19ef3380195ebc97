"""Reads a canary's series again and again and keeps what came. Unix seconds by the clock of the samples."""

from __future__ import annotations

import time
from collections.abc import Callable

from kvbench.canary.observed import Unread
from kvbench.canary.reading import History, Reader, ReadFailed
from kvbench.canary.state import StateStore
from kvbench.errors import InputError
from kvbench.interrupts import raise_if_stopped

__all__ = ["Feed"]

LATE_S = 60.0
"""A sample may be there so long after its own time, which is the beginning of its scrape: Prometheus waits up to
10 s for an answer unless told otherwise, and servers that are written to remotely learn of it later still."""


class Feed:
    """What is known of a canary so far."""

    def __init__(
        self, reader: Reader, store: StateStore, every_s: float, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.reader = reader
        self.every_s = every_s
        self._store, self._sleep = store, sleep
        self.history = History()
        self.unread: list[Unread] = []
        """Since the last time that something could be read."""
        self._offset_s = 0.0
        self.reads_done = self.reads_failed = 0
        self.last_read_s: float | None = None
        """By our clock."""

    def now(self) -> float:
        """By the clock of the samples, as it was when it could last be asked."""
        return time.time() + self._offset_s

    def ask_now(self) -> float:
        """By the clock of the samples; ours when it cannot be asked, which is noted. InputError as `read`."""
        try:
            now = self.reader.now()
        except (ReadFailed, InputError) as error:
            if isinstance(error, InputError) and self.history.read_until_s is None:
                raise
            now = self.now()
            self.unread.append(Unread(now, error.what))
        else:
            self._offset_s = now - time.time()
        return now

    def resume(self) -> None:
        """Take up what a gate before this one has kept."""
        kept = self._store.scrapes.kept()
        if kept is not None:
            self.history.add(*kept)
            self.reader.not_before(kept[1])

    def read(self, first_since_s: float) -> tuple[float, str | None]:
        """Read what is new, at the first time from `first_since_s` on: the time now, and what stood against it.

        InputError at the first time only: later it may be a credential that is being renewed.
        """
        now = self.now()
        try:
            now = self.reader.now()
            self._offset_s = now - time.time()
            known = self.history.read_until_s
            late_s = max(LATE_S, 2 * self.every_s)
            since_s = known - late_s if known is not None else first_since_s
            read = self.reader.read(since_s, now, raise_if_stopped)
            if not self.reader.looks_back:
                self._store.scrapes.keep(read, now)
            self.history.add(read, now)
        except (ReadFailed, InputError) as error:
            if isinstance(error, InputError) and self.history.read_until_s is None:
                raise
            self.reads_failed += 1
            self.unread.append(Unread(now, error.what))
            return now, error.what
        self.unread.clear()
        self.reads_done += 1
        self.last_read_s = time.time()
        return now, None

    def wait(self, seconds: float) -> None:
        """Until it is time for the next look; raises when the command is to end."""
        if seconds > 0:
            self._sleep(seconds)
        raise_if_stopped()
