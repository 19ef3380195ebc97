"""A load process and whoever started it: JSON lines on stdout, orders on stdin, signals, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import gevent

from kvbench.errors import InputError, Interrupted, KvbenchError, LoadError
from kvbench.load.mailbox import Mailbox
from kvbench.load.plan import LOG_FILE, LoadPlan, read_plan

__all__ = ["Orders", "exit_code_of", "play_plan", "say"]


def exit_code_of(work: Callable[[], None], what: str) -> int:
    """Do `work`; the exit code as in `kvbench.errors`, after its error was told. `what` names the process."""
    sys.stdout = sys.stderr  # what a library prints must not come between the lines that are read from here
    try:
        work()
    except KvbenchError as error:
        return _failed(error)
    except Exception as error:  # noqa: BLE001  (recorded on stderr, which the parent keeps, and told as one sentence)
        traceback.print_exc()
        return _failed(LoadError(f"{what} failed: {type(error).__name__}: {error}"))
    return 0


def play_plan(arguments: Sequence[str] | None, module: str, play: Callable[[LoadPlan, bool], None]) -> int:
    """The command line `PLAN.json [--start]`; `play` gets the plan, and whether it is to start at once.

    `-` for the plan: its path is the first line on stdin, and what is said on stderr goes to its log from then on.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    paths = [word for word in words if word != "--start"]

    def work() -> None:
        if len(paths) != 1:
            raise InputError(f"usage: python -m {module} PLAN.json [--start]")
        plan = _plan_on_stdin() if paths == ["-"] else read_plan(Path(paths[0]))
        play(plan, "--start" in words)

    return exit_code_of(work, "the load driver")


def _plan_on_stdin() -> LoadPlan:
    """Interrupted when stdin ends before."""
    line = b""
    while not line.endswith(b"\n"):  # nothing comes behind it before `ready` is told
        data = os.read(0, 4096)
        if not data:
            raise Interrupted(signal.SIGTERM)
        line += data
    plan = read_plan(Path(os.fsdecode(line[:-1])))
    log = os.open(plan.out / LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    os.dup2(log, 2)
    os.close(log)
    return plan


def _failed(error: KvbenchError) -> int:
    print(error, file=sys.stderr)
    say({"event": "error", "what": error.told, "do": error.do, "exit_code": error.exit_code})
    return error.exit_code


def say(event: dict[str, object]) -> None:
    """One line on stdout. Nobody reading it any more is seen as the end of stdin."""
    line = memoryview(json.dumps(event).encode() + b"\n")
    try:
        while line:
            line = line[os.write(1, line) :]
    except BrokenPipeError:
        return


class Orders:
    """What the parent and the system ask for: lines on stdin, its end, signals."""

    def __init__(self) -> None:
        self._signal: int | None = None
        self._mail: Mailbox[str] = Mailbox()
        self._stop: Callable[[], None] | None = None
        self._go: Callable[[], None] | None = None
        for number in (signal.SIGINT, signal.SIGTERM):
            gevent.signal_handler(number, self._interrupted, number)
        threading.Thread(target=self._listen, name="stdin", daemon=True).start()

    def _listen(self) -> None:
        # os.read and not sys.stdin: a thread inside a buffered reader would hold up the interpreter's end.
        rest = b""
        while data := os.read(0, 4096):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._mail.put(line.decode("utf-8", "replace").strip())
        self._mail.put("")

    def _interrupted(self, number: int) -> None:
        self._signal = number
        self._mail.put("")

    def wait_for_start(self) -> None:
        """Until the line `start` comes. Interrupted when stdin ends or a signal comes instead."""
        while (order := self._mail.get()) != "start":
            if order == "stop":
                raise LoadError("the round was called off before it began")
            if order == "":
                raise Interrupted(self._signal or signal.SIGTERM)

    def on_stop(self, stop: Callable[[], None], *, go: Callable[[], None] | None = None) -> None:
        """From now on, have `stop` called when the round is to end early, and `go` at the line `go`."""
        self._stop, self._go = stop, go
        gevent.spawn(self._obey)

    def _obey(self) -> None:
        while (order := self._mail.get()) != "stop":
            if order == "go" and self._go:
                self._go()
            elif order == "":
                self._signal = self._signal or signal.SIGTERM
                break
        if self._stop:
            self._stop()
        if self._signal is None:
            self._obey()  # told to end with the rows; the order to end at once may still come

    def raise_if_interrupted(self) -> None:
        """Interrupted once a signal or the end of stdin has come."""
        if self._signal is not None:
            raise Interrupted(self._signal)
