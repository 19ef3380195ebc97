"""The worker processes that a master starts on its own machine. They end when it does, however that comes about."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from kvbench.spec.crew import Address

__all__ = ["LocalWorkers"]

END_S = 2.0
"""A worker whose stdin has ended has this long; then it is killed."""
_LAST_LINES = 6


class LocalWorkers:
    """Each has a directory of its own under the round's for its part files, and a log."""

    def __init__(self, count: int, out: Path, address: Address, secret: bytes, secret_env: str) -> None:
        self.directories = [out / f"worker-{index}" for index in range(count)]
        self._logs = [out / f"worker-{index}.log" for index in range(count)]
        self._processes: list[subprocess.Popen[bytes]] = []
        environment = os.environ | {secret_env: secret.decode()}
        try:
            for index in range(count):
                self._start(index, address, secret_env, environment)
        except BaseException:
            self.end()
            raise

    def _start(self, index: int, address: Address, secret_env: str, environment: dict[str, str]) -> None:
        self.directories[index].mkdir(exist_ok=True)
        # A session of its own: Ctrl-C goes to kvbench alone. Only this process holds the other end of its stdin.
        with self._logs[index].open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [
                        sys.executable, "-m", "kvbench.load.worker", str(address),
                        os.fspath(self.directories[index]), "--secret-env", secret_env, "--index", str(index),
                    ],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    env=environment,
                    start_new_session=True,
                )
            )  # fmt: skip

    def ended(self, index: int) -> str | None:
        """How a worker has ended; None: it lives."""
        code = self._processes[index].poll()
        if code is None:
            return None
        return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def last_words(self, index: int) -> str:
        """The end of its log, or nothing."""
        lines = self._logs[index].read_text("utf-8", "replace").splitlines()[-_LAST_LINES:]
        return "; its last words:\n  " + "\n  ".join(lines) if lines else ""

    def end(self, *, kept: bool = False) -> None:
        """Make sure that all are gone. `kept`: their rows are in the round's files, so theirs can go; otherwise
        what they recorded stays to be looked at."""
        for process in self._processes:
            if process.stdin:
                process.stdin.close()
        deadline = time.monotonic() + END_S
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for directory, log in zip(self.directories, self._logs, strict=True):
            for part in directory.glob("*.part.arrows") if kept else ():
                part.unlink()
            if directory.is_dir() and not any(directory.iterdir()):
                directory.rmdir()
            if log.is_file() and log.stat().st_size == 0:
                log.unlink()
