"""`kvbench worker`: works for a master, round after round, each in a process of its own."""

from __future__ import annotations

import json
import os
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from kvbench.errors import InputError, LoadError
from kvbench.load.run import child_number
from kvbench.spec.crew import Address, parse_address, worker_secret

__all__ = ["work_for"]

END_S = 3.0
PAUSE_S = 1.0
"""Between rounds; a master that has no place for this worker is not to be asked all the time."""
MOST_FAILURES = 5
"""In a row: then something is wrong here, and whoever started this worker has to know."""


def work_for(
    master: str, *, secret_env: str, wait_s: float, rounds: int | None, say: Callable[[str], None]
) -> None:
    """Play what the master hands out until there was no round for `wait_s`, or `rounds` have been played.

    InputError for what the user has to mend; LoadError when round after round failed. No process outlives it.
    """
    address = parse_address(master, "--master")
    worker_secret(secret_env, address, "--master")
    _check_known(address)
    played = failures = 0
    while rounds is None or played < rounds:
        say(f"waiting for a round of the master at {address}")
        error = _Round(address, secret_env).play(wait_s, say)
        if error is None:
            say(f"no round began within {wait_s:g} s; leaving")
            return
        played += 1
        failures = failures + 1 if error else 0
        if error:
            say(f"the round did not end well: {error}")
        if failures >= MOST_FAILURES:
            raise LoadError(f"{failures} rounds in a row did not end well; the last: {error}")
        time.sleep(PAUSE_S)


def _check_known(address: Address) -> None:
    try:
        socket.getaddrinfo(address.host, address.port)
    except OSError as error:
        raise InputError(f"the master's host {address.host!r} cannot be resolved: {error.strerror}") from error


class _Round:
    """A worker's process, from joining to the end of one round."""

    def __init__(self, address: Address, secret_env: str) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="kvbench-worker-"))
        # A session of its own: Ctrl-C goes to this process alone, which then closes the other's stdin.
        self._process = subprocess.Popen(
            [
                sys.executable, "-m", "kvbench.load.worker", str(address), os.fspath(self._directory),
                "--secret-env", secret_env,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip

    def play(self, wait_s: float, say: Callable[[str], None]) -> str | None:
        """None: no master in time; else why the round did not end well, or nothing."""
        deadline: float | None = time.monotonic() + wait_s
        error: dict[str, object] | None = None
        joined = False
        try:
            out = child_number(self._process.stdout)
            with selectors.DefaultSelector() as selector:
                selector.register(out, selectors.EVENT_READ)
                rest = b""
                while True:
                    left_s = None if joined or deadline is None else max(0.0, deadline - time.monotonic())
                    if not selector.select(left_s):
                        return None
                    if not (data := os.read(out, 65536)):
                        break
                    *lines, rest = (rest + data).split(b"\n")
                    for event in map(json.loads, lines):
                        if event["event"] == "joined":
                            joined = True
                            say("joined")
                        elif event["event"] == "error":
                            error = event
            code = self._process.wait()
        finally:
            self._end()
        if error is not None and error["exit_code"] == InputError.exit_code:
            do = error["do"]
            raise InputError(str(error["what"]), do=None if do is None else str(do))
        if error is not None:
            return str(error["what"])
        return "" if code == 0 else f"its process ended with {code}"

    def _end(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream:
                stream.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            shutil.rmtree(self._directory, ignore_errors=True)  # the other removes it as well
