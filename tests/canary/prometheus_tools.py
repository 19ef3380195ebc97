"""Where tests find a real Prometheus and its promtool: on the PATH, else Debian's package unpacked in KVBENCH_HOME.

Nothing is installed into the system. Without either the tests that ask skip; under `CI=true` they fail.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from kvbench.engine.environment import kvbench_home
from tests.missing import missing

__all__ = ["prometheus", "promtool"]


def promtool() -> Path:
    """The program that checks and tests rules."""
    return _program("promtool")


def prometheus() -> Path:
    """The server."""
    return _program("prometheus")


@cache
def _program(name: str) -> Path:
    if (found := shutil.which(name)) is not None:
        return Path(found)
    folder = kvbench_home() / "tools" / "prometheus"
    program = folder / "usr" / "bin" / name
    with _one_at_a_time(folder):
        if not program.is_file() and (reason := _unpack(folder)) is not None:
            missing(f"no {name}: {reason}")
    return program


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Within the block no other test process unpacks there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / ".prometheus.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _unpack(folder: Path) -> str | None:
    """Download the package and unpack it to `folder`; what stands against it, or None."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        return "it is not on the PATH, and this is no Debian that could fetch it"
    with tempfile.TemporaryDirectory(prefix="prometheus-", dir=folder.parent) as name:
        place = Path(name)
        try:
            _run(["apt-get", "download", "prometheus"], place)
            (package,) = place.glob("prometheus_*.deb")
            _run(["dpkg", "-x", str(package), "unpacked"], place)
        except (subprocess.SubprocessError, ValueError) as error:
            return f"Debian's package cannot be fetched ({error})"
        shutil.rmtree(folder, ignore_errors=True)
        (place / "unpacked").rename(folder)
    return None


def _run(command: list[str], place: Path) -> None:
    subprocess.run(command, cwd=place, check=True, capture_output=True, timeout=120)
