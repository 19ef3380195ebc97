"""A load driver that is started before its plan is known, so that it has read its modules when it is needed.

That saves a second where the server is already there; to launch an engine takes longer than a driver needs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kvbench.interrupts import undisturbed

__all__ = ["driver_ahead", "take_driver"]

_waiting: list[subprocess.Popen[bytes]] = []


@contextmanager
def driver_ahead(*, wanted: bool) -> Iterator[None]:
    """Within the block the next driver that is needed is already there. Afterwards it is gone, unless taken."""
    try:
        if wanted:
            with undisturbed():
                _waiting.append(_started())
        yield
    finally:
        with undisturbed():
            while _waiting:
                _end(_waiting.pop())


def take_driver(plan: Path) -> subprocess.Popen[bytes] | None:
    """The driver that is waiting, told its plan; None: none is, or it has ended."""
    if not _waiting:
        return None
    process = _waiting.pop()
    assert process.stdin is not None  # noqa: S101  (for the type checker)
    with suppress(BrokenPipeError):
        os.write(process.stdin.fileno(), os.fsencode(plan) + b"\n")
        if process.poll() is None:
            return process
    _end(process)
    return None


def _started() -> subprocess.Popen[bytes]:
    # A session of its own, and a stdin that only this process holds: as `run` starts it. It has a log once it has
    # its plan.
    return subprocess.Popen(
        [sys.executable, "-m", "kvbench.load.driver", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()  # it has done nothing yet
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream:
            stream.close()
