"""Watches the size of a launch's disk tier: vLLM's filesystem tier has no limit of its own. Bytes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from kvbench.spec.quantity import show_bytes

__all__ = ["DiskLimit", "size_of"]

LOOK_S = 2.0
"""A walk over ten thousand block files takes some 20 ms; NVMe drives write a few GiB in this time."""


class DiskLimit:
    """Called as often as one likes; looks every two seconds. True means: end the round now, `exceeded` says why."""

    def __init__(
        self, directory: Path | None, limit_bytes: int | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`directory` is the launch's own; without it or without a limit nothing is ever looked at."""
        self.exceeded: str | None = None
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._clock = clock
        self._looked_at = float("-inf")

    def __call__(self) -> bool:
        """Look, at most every two seconds."""
        now = self._clock()
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            self.look()
        return self.exceeded is not None

    def look(self) -> None:
        """Look now; also at the end of a round, for what was written since."""
        if self._directory is None or self._limit_bytes is None or self.exceeded is not None:
            return
        size = size_of(self._directory)
        if size > self._limit_bytes:
            limit = show_bytes(self._limit_bytes)
            self.exceeded = f"the disk tier took {show_bytes(size)}, more than its size_limit of {limit}"


def size_of(directory: Path) -> int:
    """What the files under `directory` occupy on their file system; files that vanish meanwhile count nothing."""
    total = 0
    pending = [os.fspath(directory)]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        total += _occupied(entry)
        except OSError:
            continue
    return total


def _occupied(entry: os.DirEntry[str]) -> int:
    try:
        stat = entry.stat(follow_symlinks=False)
    except OSError:
        return 0
    return max(stat.st_size, stat.st_blocks * 512)
