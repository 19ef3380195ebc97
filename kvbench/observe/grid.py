"""A steady beat on the monotonic clock: beats that were missed are skipped, never made up for."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

__all__ = ["beats"]


def beats(period_s: float, stop: threading.Event) -> Iterator[float]:
    """Yield at each beat, at once the first time, until `stop` is set; the value is the beat's own moment."""
    start = time.monotonic()
    number = 0
    while not stop.wait(max(0.0, start + number * period_s - time.monotonic())):
        yield start + number * period_s
        number = max(number, int((time.monotonic() - start) / period_s)) + 1
