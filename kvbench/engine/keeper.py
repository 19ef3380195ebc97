"""The process between kvbench and an engine: starts it, writes its log, and outlives kvbench to clean up after it.

kvbench holds the other end of this process's stdin. When that end closes, on purpose or because kvbench died in
any way, the engine and all its descendants are ended and what they left is removed. Reports are JSON lines on
stdout. Standard library only, so that it starts at once. Times in seconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, NoReturn

from kvbench.engine.leases import Lease, drop_lease, read_lease, release, write_lease
from kvbench.engine.processes import Process, ShmFile, descendants, identify, is_running
from kvbench.engine.remains import end_processes, keep_watch

__all__ = ["Order", "main"]

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h

FIRST_LOOK_S, LONGEST_LOOK_S = 0.5, 5.0
"""`/dev/shm` mappings are looked for often while the engine starts, when it makes them, and seldom later."""

OWNER_LOOK_S = 1.0
"""Beside the pipe, whose other end a forked child of kvbench might hold open, the owner itself is watched."""


class Order(NamedTuple):
    """The first line on stdin."""

    lease: str
    argv: list[str]
    env: dict[str, str]
    cwd: str
    log: str
    grace_s: float


class Log:
    """Appends lines with a UTC timestamp each; a carriage return ends a line too (progress bars)."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._rest = b""

    def feed(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data.replace(b"\r", b"\n")).split(b"\n")
        for line in lines:
            self._write(line)

    def close(self) -> None:
        if self._rest:
            self._write(self._rest)
        os.close(self._file)

    def _write(self, line: bytes) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00")
        # A full disk must not stop the engine that is being measured; the record of the run reports it itself.
        with contextlib.suppress(OSError):
            os.write(self._file, b"%sZ %s\n" % (now.encode(), line))


class Keeper:
    """One engine, from its start until nothing of it is left."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._lease_path = Path(order.lease)
        self._lease: Lease = read_lease(self._lease_path)._replace(keeper=identify(os.getpid()))
        self._unwritten = False
        self._write_lease()
        self._log = Log(order.log)
        self._shm: set[ShmFile] = set()
        self._exit_code: int | None = None
        self._told_to_stop = False
        self._look_at, self._look_every_s = time.monotonic() + FIRST_LOOK_S, FIRST_LOOK_S
        self._owner_at = time.monotonic() + OWNER_LOOK_S
        signal.signal(signal.SIGTERM, self._on_terminate)

    def run(self) -> None:
        """Start the engine and stay with it to its end."""
        try:
            engine, self._output = start_engine(self._order)
        except OSError as error:
            say({"event": "failed", "why": f"{self._order.argv[0]}: {error.strerror}"})
            self._finish()
            return
        self._engine = engine
        self._lease = self._lease._replace(engine=identify(engine))
        self._write_lease()
        say({"event": "started", "pid": engine})
        while self._exit_code is None and not self._told_to_stop:
            self._turn(0.2)
            self._look()
        self._stop()

    def _on_terminate(self, _number: int, _frame: object) -> None:
        self._told_to_stop = True

    def _turn(self, wait_s: float) -> None:
        """Wait for output, an order or a child's end, and take in whatever there is."""
        watched = [self._output] if self._told_to_stop else [0, self._output]
        readable, _, _ = select.select(watched, [], [], wait_s)
        if self._output in readable:
            data = os.read(self._output, 65536)
            if data:
                self._log.feed(data)
            else:
                time.sleep(wait_s)  # the engine closed its output; its end is still to come
        if 0 in readable and not os.read(0, 4096):
            self._told_to_stop = True
        self._reap()

    def _reap(self) -> bool:
        """Collect what has ended; False when there is no descendant any more."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._engine:
                self._exit_code = os.waitstatus_to_exitcode(status)
                say({"event": "exited", "code": self._exit_code})

    def _look(self) -> None:
        now = time.monotonic()
        if now >= self._owner_at:
            self._owner_at = now + OWNER_LOOK_S
            self._told_to_stop |= not is_running(self._lease.owner)
        if now >= self._look_at:
            self._look_every_s = min(2 * self._look_every_s, LONGEST_LOOK_S)
            self._look_at = now + self._look_every_s
            self._note_shm()

    def _note_shm(self) -> None:
        if keep_watch(self._shm, (stat.pid for stat in descendants(os.getpid()))):
            self._lease = self._lease._replace(shm=tuple(sorted(self._shm)))
            self._unwritten = True
        if self._unwritten:
            self._write_lease()

    def _write_lease(self) -> None:
        """A full disk must not stop the engine either: it is written at a later look."""
        try:
            write_lease(self._lease, self._lease_path)
            self._unwritten = False
        except OSError:
            self._unwritten = True

    def _stop(self) -> None:
        """End every descendant: as their subreaper this process is the parent of any that lost its own.

        A container's client is told alone and hands it on: podman's monitor, told too, would be gone before it had
        said how the container ended, for which the client waits.
        """
        self._note_shm()
        client = None if self._lease.container is None else self._lease.engine

        def left() -> list[Process]:
            return [Process(stat.pid, stat.start) for stat in descendants(os.getpid())]

        survivors = end_processes(
            left,
            self._order.grace_s,
            first=client,
            while_waiting=lambda: self._turn(0.02),
            before_kill=self._tell_of_kill,
        )
        self._reap()
        self._drain()
        self._finish(survivors)

    def _tell_of_kill(self, left: Sequence[Process]) -> None:
        """Of a container it is the client that did not end, which waits for the engine."""
        say({"event": "killed", "after_s": self._order.grace_s, "engine": self._lease.engine in left})

    def _drain(self) -> None:
        os.set_blocking(self._output, False)
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._output, 65536):
                self._log.feed(data)

    def _finish(self, survivors: Sequence[Process] = ()) -> None:
        """What stays keeps its lease, for kvbench to try again and to tell."""
        self._log.close()
        _, kept = release(self._lease._replace(shm=tuple(sorted(self._shm))))
        if not kept and not survivors:
            drop_lease(self._lease_path)


def start_engine(order: Order) -> tuple[int, int]:
    """Fork and execute; returns its pid and the reading end of its output. OSError when it cannot be executed."""
    output, engine_output = os.pipe()
    failure, engine_failure = os.pipe()
    keeper = os.getpid()
    pid = os.fork()
    if pid == 0:
        _become_engine(order, keeper, engine_output, engine_failure)
    os.close(engine_output)
    os.close(engine_failure)
    with os.fdopen(failure, "rb") as report:
        number = report.read()
    if number:
        os.waitpid(pid, 0)
        os.close(output)
        raise OSError(int(number), os.strerror(int(number)))
    return pid, output


def _become_engine(order: Order, keeper: int, output: int, failure: int) -> NoReturn:
    try:
        os.setpgid(0, 0)
        # Should the keeper be killed, the kernel tells the engine to end; what it leaves is for the next sweep.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != keeper:
            os._exit(1)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(order.cwd)
        os.execvpe(order.argv[0], order.argv, order.env)  # noqa: S606 (an argument list, no shell)
    except OSError as error:
        os.write(failure, str(error.errno).encode())
    finally:
        os._exit(127)


def say(event: dict[str, object]) -> None:
    """One JSON line to kvbench; nobody may be there any more to read it."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(event).encode() + b"\n")


def _read_order() -> Order | None:
    line = b""
    while not line.endswith(b"\n"):
        data = os.read(0, 65536)
        if not data:
            return None
        line += data
    return Order(**json.loads(line))


def main() -> None:
    """Read the order from stdin and carry it out."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        sys.exit("prctl(PR_SET_CHILD_SUBREAPER) failed")
    order = _read_order()
    if order is not None:
        Keeper(order).run()
