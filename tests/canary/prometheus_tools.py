"""Where tests find a real Prometheus, its promtool and a node_exporter: on the PATH, else in KVBENCH_HOME, where
Debian's packages are unpacked.

Nothing is installed into the system. Without either the tests that ask skip; under `CI=true` they fail.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from kvbench.engine.environment import kvbench_home
from kvbench.engine.ports import free_port
from tests.missing import missing

__all__ = ["Running", "node_exporter", "prometheus", "promtool", "running"]


def promtool() -> Path:
    """The program that checks and tests rules."""
    return _program("promtool", "prometheus")


def prometheus() -> Path:
    """The server."""
    return _program("prometheus", "prometheus")


def node_exporter() -> Path:
    """What tells of a host."""
    return _program("prometheus-node-exporter", "prometheus-node-exporter")


class Running:
    """One Prometheus on an address and a folder of its own. Killed and started again, it has its data still."""

    def __init__(self, folder: Path, configuration: str) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "prometheus.yml").write_text(configuration)
        self._address = f"127.0.0.1:{free_port()}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{self._address}"

    def start(self) -> None:
        """Come back when it can be asked."""
        argv = [prometheus(), f"--config.file={self._folder / 'prometheus.yml'}"]
        argv += [f"--storage.tsdb.path={self._folder / 'data'}", f"--web.listen-address={self._address}"]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(argv, stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            assert self._process.poll() is None, (self._folder / "log").read_text()
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/-/ready", timeout=1):
                return
            time.sleep(0.1)
        raise TimeoutError((self._folder / "log").read_text())

    def kill(self) -> None:
        """As a node does that goes away."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@contextmanager
def running(folder: Path, configuration: str) -> Iterator[Running]:
    """A real Prometheus that does as `configuration` (YAML) says meanwhile."""
    it = Running(folder, configuration)
    try:
        it.start()
        yield it
    finally:
        it.kill()


@cache
def _program(name: str, package: str) -> Path:
    if (found := shutil.which(name)) is not None:
        return Path(found)
    folder = kvbench_home() / "tools" / package
    program = folder / "usr" / "bin" / name
    with _one_at_a_time(folder):
        if not program.is_file() and (reason := _unpack(package, folder)) is not None:
            missing(f"no {name}: {reason}")
    return program


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Within the block no other test process unpacks there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / ".prometheus.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _unpack(package: str, folder: Path) -> str | None:
    """Download a package and unpack it to `folder`; what stands against it, or None."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        return "it is not on the PATH, and this is no Debian that could fetch it"
    with tempfile.TemporaryDirectory(prefix="prometheus-", dir=folder.parent) as name:
        place = Path(name)
        try:
            _run(["apt-get", "download", package], place)
            (file,) = place.glob(f"{package}_*.deb")
            _run(["dpkg", "-x", str(file), "unpacked"], place)
        except (subprocess.SubprocessError, ValueError) as error:
            return f"Debian's package cannot be fetched ({error})"
        shutil.rmtree(folder, ignore_errors=True)
        (place / "unpacked").rename(folder)
    return None


def _run(command: list[str], place: Path) -> None:
    subprocess.run(command, cwd=place, check=True, capture_output=True, timeout=120)
