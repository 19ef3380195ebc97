"""Ctrl-C and SIGTERM end a command once, in an orderly way; further signals wait for the clean-up."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from kvbench.errors import Interrupted

__all__ = ["raise_if_stopped", "stop_on_signals"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_received: list[int] = []
"""Signals of the current block, in their order."""


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Within the block the first signal raises `Interrupted` in the main thread; later ones only say so.

    SIGHUP stays ignored where it was (nohup); SIGINT does not, since shells ignore it for every background job.
    """
    _received.clear()
    nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    heeded = [number for number in _SIGNALS if not (nohup and number == signal.SIGHUP)]
    before = {number: signal.signal(number, _handle) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _received.clear()


def _handle(number: int, _frame: FrameType | None) -> None:
    _received.append(number)
    if len(_received) == 1:
        raise Interrupted(number)
    # Not print: the handler may have interrupted a print, whose buffer is locked.
    with contextlib.suppress(OSError):
        os.write(2, b"already stopping; removing what was started ...\n")


def raise_if_stopped() -> None:
    """Raise again what a library swallowed (`except Exception` around the moment of the signal).

    For the steps of whatever goes on for long; never for those of a clean-up.
    """
    if _received:
        raise Interrupted(_received[0])
