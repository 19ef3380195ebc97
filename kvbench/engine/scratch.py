"""A directory of one piece of work, gone when the work is over, whatever ends it; its child processes likewise.

A lease names it before it is there, so that the next command removes what a kvbench that was killed left of it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from kvbench.engine.environment import kvbench_home
from kvbench.engine.leases import MARKER, drop_lease, new_lease, reclaim, write_lease
from kvbench.engine.remains import MARK, make_directory
from kvbench.errors import RunError
from kvbench.interrupts import undisturbed

__all__ = ["Scratch", "scratch"]

_BOOT = (
    "import ctypes, os, signal, sys; "
    "ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0); "  # PR_SET_PDEATHSIG, linux/prctl.h
    "os.getppid() == int(sys.argv[1]) or sys.exit(1); "
    "os.execv(sys.argv[2], sys.argv[2:])"
)


class Scratch:
    """The directory, and how what is started for the work is recognised."""

    def __init__(self, directory: Path, lease_id: str) -> None:
        self.directory = directory
        self.kept = False
        self.environment = {MARKER: lease_id, "TMPDIR": str(directory)}
        """For processes that are started for the work; whatever carries the marker ends with it."""

    def keep(self) -> None:
        """Leave the directory where it is, for its user to look at."""
        self.kept = True

    def run(self, argv: Sequence[str | Path], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, with what it says. It is killed when this process is."""
        return subprocess.run(
            [sys.executable, "-I", "-S", "-c", _BOOT, str(os.getpid()), *argv],
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            env={**env, **self.environment},
        )


@contextmanager
def scratch(label: str, parent: Path | None = None) -> Iterator[Scratch]:
    """Make it under `parent`, else among the temporary files. OSError when that cannot be done."""
    lease = new_lease(label)
    directory = (parent or Path(tempfile.gettempdir())).expanduser().absolute() / f"kvbench-{label}-{lease.id}"
    lease = lease._replace(temp_directory=str(directory))
    path = kvbench_home() / "leases" / f"{lease.id}.json"
    place = Scratch(directory, lease.id)
    try:
        with contextlib.suppress(OSError):  # where there is no home to write to, only this process removes it
            write_lease(lease, path)
        make_directory(directory)
        yield place
    finally:
        with undisturbed():
            if place.kept:
                (directory / MARK).unlink(missing_ok=True)
                drop_lease(path)
            else:
                kept = reclaim(lease, path).kept
                if kept:
                    raise RunError(f"what {label} needed could not be removed: {'; '.join(kept)}")
