"""Ctrl-C and SIGTERM end a run once, in an orderly way; further signals wait for the clean-up."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from kvbench.errors import Interrupted

__all__ = ["stop_on_signals"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Within the block the first signal raises `Interrupted` in the main thread; later ones only say so."""
    raised = False

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal raised
        if raised:
            print("already stopping; removing what was started ...", file=sys.stderr)
            return
        raised = True
        raise Interrupted(number)

    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
