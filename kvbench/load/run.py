"""The parent's side of the load driver: starts it, passes its events on, and never leaves it behind."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from kvbench.errors import InputError, LoadError
from kvbench.interrupts import undisturbed
from kvbench.load.plan import LOG_FILE, PLAN_FILE, LoadPlan
from kvbench.load.spare import take_driver
from kvbench.record.atomic import write_text

__all__ = ["LoadResult", "child_number", "run_load"]

LOOK_S = 0.2
"""How often `should_stop` is asked."""
STOP_S = 30.0
"""A driver told to stop has this long to write its rows; then it is killed."""
KILL_S = 2.0
CREW_KILL_S = 6.0
"""A master ends its workers first."""
_LAST_LINES = 12


@dataclass(frozen=True)
class LoadResult:
    """What came of a round. Its tables are in the plan's directory."""

    complete: bool
    """False: it was stopped early. Requests that were under way then failed with the cause `stopped`."""
    started_monotonic: float | None
    """Time zero on CLOCK_MONOTONIC, the same in every process of the machine; None: not reached."""
    planned: int
    rows: int
    figures: dict[str, float] = field(default_factory=dict)
    """The driver about itself, as in `load.json`; what was not measured is left out."""
    faults: tuple[str, ...] = ()
    """What happened to a worker, so that the round does not count; its rows are in part files only."""


def run_load(
    plan: LoadPlan,
    *,
    on_event: Callable[[dict[str, object]], None],
    should_stop: Callable[[], bool],
) -> LoadResult:
    """Play one round in a process of its own and wait for its end.

    `on_event` gets every event of the driver; `should_stop` is asked a few times a second, and the round is ended
    early, with its rows, when it says True. LoadError when the driver fails, InputError when the plan's server or
    key cannot be used. Whatever is raised, also by the callbacks or by a signal, the driver is gone afterwards.
    """
    driver: _Driver | None = None
    try:
        with undisturbed():
            driver = _Driver(plan)
        return driver.watch(on_event, should_stop)
    finally:
        if driver is not None:
            with undisturbed():
                driver.end()


class _Driver:
    def __init__(self, plan: LoadPlan) -> None:
        path = plan.out / PLAN_FILE
        write_text(path, plan.model_dump_json(indent=1) + "\n")
        self._log = plan.out / LOG_FILE
        alone = plan.crew.single
        self._kill_s = KILL_S if alone else CREW_KILL_S
        # A session of its own: Ctrl-C goes to kvbench alone, which then ends the driver. Its stdin is this
        # process's alone, so that it closes, and the driver stops, whatever ends this process.
        with self._log.open("wb") as log:
            self._process = (take_driver(path) if alone else None) or subprocess.Popen(
                [sys.executable, "-m", "kvbench.load.driver" if alone else "kvbench.load.master", os.fspath(path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self._error: dict[str, object] | None = None
        self._zero: float | None = None
        self._finished: dict[str, object] | None = None

    def watch(self, on_event: Callable[[dict[str, object]], None], should_stop: Callable[[], bool]) -> LoadResult:
        stopping = False
        silent_s = 0.0
        out = child_number(self._process.stdout)
        rest = b""
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            while True:
                ready = selector.select(LOOK_S)
                if ready:
                    data = os.read(out, 65536)
                    if not data:
                        break
                    *lines, rest = (rest + data).split(b"\n")
                    for line in lines:
                        self._take(json.loads(line), on_event)
                if not stopping and should_stop():
                    stopping = True
                    self._order("stop")
                silent_s = 0.0 if ready or not stopping else silent_s + LOOK_S
                if silent_s > STOP_S:
                    raise LoadError(f"the load driver did not stop within {STOP_S:g} s")
        return self._result(self._process.wait(), stopping)

    def _order(self, word: str) -> None:
        with suppress(BrokenPipeError):  # then it has ended, and its exit code tells why
            os.write(child_number(self._process.stdin), word.encode() + b"\n")

    def _take(self, event: dict[str, object], on_event: Callable[[dict[str, object]], None]) -> None:
        kind = event["event"]
        if kind == "ready":
            self._order("start")
        elif kind == "started":
            self._zero = float(str(event["monotonic"]))
        elif kind == "finished":
            self._finished = event
        elif kind == "error":
            self._error = event
            return
        on_event(event)
        if kind == "primed":
            self._order("go")  # only now: whoever listens has looked at the engine between priming and time zero

    def _result(self, code: int, stopping: bool) -> LoadResult:
        if code == 0 and self._finished:
            figures = self._finished["figures"]
            measured = figures if isinstance(figures, dict) else {}
            faults = self._finished.get("faults")
            return LoadResult(
                complete=bool(self._finished["complete"]) and not stopping,
                started_monotonic=self._zero,
                planned=int(str(self._finished["planned"])),
                rows=int(str(self._finished["rows"])),
                figures={name: float(value) for name, value in measured.items() if value is not None},
                faults=tuple(map(str, faults)) if isinstance(faults, list) else (),
            )
        if self._error:
            kind = InputError if self._error["exit_code"] == InputError.exit_code else LoadError
            do = self._error["do"]
            raise kind(str(self._error["what"]), do=None if do is None else str(do))
        why = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        last = "\n  ".join(_last_lines(self._log))
        raise LoadError(f"the load driver {why}" + (f"; its last words:\n  {last}" if last else ""))

    def end(self) -> None:
        """Make sure that the process is gone. Closing its stdin is an order to end at once."""
        try:
            for stream in (self._process.stdin, self._process.stdout):
                if stream:
                    stream.close()
            self._process.wait(self._kill_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            if self._log.stat().st_size == 0:
                self._log.unlink()


def _last_lines(log: Path) -> list[str]:
    return log.read_text("utf-8", "replace").splitlines()[-_LAST_LINES:]


def child_number(stream: object) -> int:
    """The file descriptor of a child's pipe. LoadError when it has none."""
    number = getattr(stream, "fileno", None)
    if number is None:
        raise LoadError("the load driver has no pipes")
    return int(number())
