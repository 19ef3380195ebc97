"""Ctrl-C and SIGTERM end a command once, in an orderly way; further signals wait for the clean-up."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from kvbench.errors import Interrupted, KvbenchError

__all__ = ["raise_if_stopped", "stop_on_signals", "undisturbed"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_received: list[int] = []
"""Signals of the current block, in their order."""

_undisturbed: list[None] = []
"""One for each `undisturbed` block that the main thread is in."""


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
    except KvbenchError:
        raise
    except Exception as error:
        if _received:  # some libraries make an error of their own of the one that the signal raised in them
            raise Interrupted(_received[0]) from error
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _received.clear()


def _handle(number: int, _frame: FrameType | None) -> None:
    _received.append(number)
    first = len(_received) == 1
    if first and not _undisturbed:
        raise Interrupted(number)
    # Not print: the handler may have interrupted a print, whose buffer is locked.
    with contextlib.suppress(OSError):
        os.write(2, b"%s; removing what was started ...\n" % (b"stopping" if first else b"already stopping"))


@contextmanager
def undisturbed() -> Iterator[None]:
    """Within the block a first signal is only noted; `Interrupted` is raised when the block is done.

    For what must not be left half done: starting a process, ending it and removing what it left. What the block
    itself raises is raised, and the signal stays noted.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals come to the main thread alone
        return
    before = len(_received)
    _undisturbed.append(None)
    try:
        yield
    finally:
        _undisturbed.pop()
    if not _undisturbed and not before:
        raise_if_stopped()


def raise_if_stopped() -> None:
    """Raise again what a library swallowed (`except Exception` around the moment of the signal).

    For the steps of whatever goes on for long; never for those of a clean-up.
    """
    if _received:
        raise Interrupted(_received[0])
