"""The load driver's process: `python -m kvbench.load.driver PLAN.json [--start]`.

Speaks JSON lines: events on stdout (`ready`, `prime`, `started`, `progress`, `finished`, `error`); on stdin the
line `start` begins the round and `stop` ends it early with its rows. The end of stdin and signals end it at once:
rows that have come stay in the part files, and no Parquet file is made. It never outlives whoever holds its stdin.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import gevent
from pydantic import ValidationError

from kvbench.errors import InputError, Interrupted, KvbenchError, LoadError
from kvbench.load.client import Client, Target
from kvbench.load.clock import Clock
from kvbench.load.mailbox import Mailbox
from kvbench.load.plan import LoadPlan
from kvbench.load.player import Player
from kvbench.load.precedence import take_precedence
from kvbench.load.recorder import Recorder
from kvbench.load.users import Share, play_with_locust
from kvbench.record.atomic import write_text
from kvbench.workload.storage import read_schedule

__all__ = ["main"]

SWITCH_S = 1e-4
"""How long the playing thread waits at most for the interpreter while Locust is busy; Python's own is 5 ms."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one round; the exit code as in `kvbench.errors`."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    at_once = "--start" in words
    paths = [word for word in words if word != "--start"]
    try:
        if len(paths) != 1:
            raise InputError("usage: python -m kvbench.load.driver PLAN.json [--start]")
        _drive(_read_plan(Path(paths[0])), at_once=at_once)
    except KvbenchError as error:
        return _failed(error)
    except Exception as error:  # noqa: BLE001  (recorded on stderr, which the parent keeps, and told as one sentence)
        traceback.print_exc()
        return _failed(LoadError(f"the load driver failed: {type(error).__name__}: {error}"))
    return 0


def _failed(error: KvbenchError) -> int:
    print(error, file=sys.stderr)
    _say({"event": "error", "what": error.what, "do": error.do, "exit_code": error.exit_code})
    return error.exit_code


def _say(event: dict[str, object]) -> None:
    """One line on stdout. Nobody reading it any more is seen as the end of stdin."""
    line = memoryview(json.dumps(event).encode() + b"\n")
    try:
        while line:
            line = line[os.write(1, line) :]
    except BrokenPipeError:
        return


def _read_plan(path: Path) -> LoadPlan:
    try:
        return LoadPlan.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise InputError(f"{path} is not a load plan: {error}") from error


def _drive(plan: LoadPlan, *, at_once: bool) -> None:
    precedence = take_precedence()
    _allow_many_connections()
    sys.setswitchinterval(SWITCH_S)
    orders = _Orders()
    share = Share(_say)
    clock = Clock()
    schedule = read_schedule(plan.schedule)
    target = Target(plan.base_url, api_key=_api_key(plan))
    recorder = Recorder(plan.out)
    player = Player(
        schedule,
        plan,
        lambda on_over: Client(target, clock, on_over, connect_timeout_s=plan.connect_timeout_s),
        clock,
        recorder,
        report=share.report,
        answered=share.answered,
    )
    share.assign(player)
    try:
        _say({"event": "ready"})
        if not at_once:
            orders.wait_for_start()
        orders.on_stop(share.stop)
        complete = play_with_locust(share)
    finally:
        recorder.close()
    orders.raise_if_interrupted()
    recorder.complete()
    figures = player.summary() | {"real_time_scheduling": float(precedence)}
    write_text(plan.out / "load.json", json.dumps(figures, indent=1) + "\n")
    _say(
        {
            "event": "finished",
            "complete": complete,
            "planned": len(schedule),
            "rows": recorder.rows,
            "figures": figures,
        }
    )


def _allow_many_connections() -> None:
    """Open loop: every request may need a connection of its own."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _api_key(plan: LoadPlan) -> str | None:
    if plan.api_key_env is None:
        return None
    key = os.environ.get(plan.api_key_env)
    if not key:
        raise InputError(f"the environment variable {plan.api_key_env} (api_key_env) is not set")
    return key


class _Orders:
    """What the parent and the system ask for: lines on stdin, its end, signals."""

    def __init__(self) -> None:
        self._signal: int | None = None
        self._mail: Mailbox[str] = Mailbox()
        self._stop: Callable[[], None] | None = None
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
        while (order := self._mail.get()) != "start":
            if order == "stop":
                raise LoadError("the round was called off before it began")
            if order == "":
                raise Interrupted(self._signal or signal.SIGTERM)

    def on_stop(self, stop: Callable[[], None]) -> None:
        """From now on, have `stop` called when the round is to end early."""
        self._stop = stop
        gevent.spawn(self._obey)

    def _obey(self) -> None:
        while (order := self._mail.get()) != "stop":
            if order == "":
                self._signal = self._signal or signal.SIGTERM
                break
        if self._stop:
            self._stop()

    def raise_if_interrupted(self) -> None:
        if self._signal is not None:
            raise Interrupted(self._signal)


if __name__ == "__main__":
    sys.exit(main())
