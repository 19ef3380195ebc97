"""A worker's process for one round: `python -m kvbench.load.worker HOST:PORT DIRECTORY [OPTION...]`.

Joins the master, plays its share, records it in DIRECTORY and ships it. The end of stdin and signals end it at
once. DIRECTORY goes with a worker that joined from elsewhere: nobody would fetch what is in there.
Events on stdout: `joined`, `finished`, `error`.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import gevent
import pyarrow as pa
from gevent.queue import Empty, Queue

from kvbench.errors import KvbenchError, LoadError
from kvbench.load import messages as m
from kvbench.load.mailbox import Mailbox
from kvbench.load.orders import Orders, exit_code_of, say
from kvbench.load.plan import LoadPlan
from kvbench.load.prepare import prepare_player, prepare_process
from kvbench.load.remote import Remote
from kvbench.load.start_line import StartLine
from kvbench.load.users import Environment, Share, schedule_user
from kvbench.spec.crew import SECRET_ENV, Address, parse_address, worker_secret
from kvbench.workload.storage import read_schedule

__all__ = ["main"]

OVER_S = 600.0
"""Others may still be waiting for answers; the master's end is noticed long before."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Play one round; the exit code as in `kvbench.errors`, or 75: no master was found."""
    parser = argparse.ArgumentParser(prog="python -m kvbench.load.worker")
    parser.add_argument("master")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--secret-env", default=SECRET_ENV)
    parser.add_argument("--index", type=int)
    words = parser.parse_args(arguments)
    address = parse_address(words.master, "--master")
    return exit_code_of(lambda: _play(address, words.directory, words.secret_env, words.index), "the worker")


def _play(address: Address, directory: Path, secret_env: str, index: int | None) -> None:
    secret = worker_secret(secret_env, address, "--master")
    precedence = prepare_process()
    orders = Orders()
    worker = _Worker(directory, orders, keep=index is not None)
    orders.on_stop(worker.interrupt)
    try:
        worker.play(address, secret, index, precedence=precedence)
    finally:
        worker.tidy()
    say({"event": "finished"})


class _Worker:
    def __init__(self, directory: Path, orders: Orders, *, keep: bool) -> None:
        self._directory = directory
        self._keep = keep
        self._orders = orders
        self._line = StartLine()
        self._inbox: Queue[m.Message] = Queue()
        self._blob = b""
        self._share = Share(self._tell)
        self._playing = False
        self._rows: Mailbox[tuple[str, bytes] | None] = Mailbox()

    def interrupt(self) -> None:
        """A signal, or nobody holds stdin any more: nothing is worth finishing but what has come."""
        if not self._playing:
            self.tidy()
            os._exit(128 + signal.SIGTERM)
        self._end_early()

    def tidy(self) -> None:
        """Remove the directory where nobody looks after it."""
        if not self._keep:
            shutil.rmtree(self._directory, ignore_errors=True)

    def play(self, address: Address, secret: bytes, index: int | None, *, precedence: bool) -> None:
        """One round, from joining to the master's last word."""
        environment = Environment(user_classes=[schedule_user(self._share.play)])
        self._master = Remote(environment, address, self._take)
        environment.runner = self._master
        try:
            self._master.join(secret, index)
            say({"event": "joined"})
            try:
                self._play_share(precedence)
            except KvbenchError as error:
                self._master.say(m.Failed(what=error.told[:4000], do=error.do, exit_code=error.exit_code))
                raise
            except Exception as error:
                what = f"{type(error).__name__}: {error}"
                self._master.say(m.Failed(what=what[:4000], do=None, exit_code=LoadError.exit_code))
                raise
        finally:
            self._master.leave()

    def _play_share(self, precedence: bool) -> None:
        message = self._wait_for(m.Assign)
        if not isinstance(message, m.Assign):
            return
        path = self._directory / "schedule.parquet"
        path.write_bytes(self._blob)
        schedule = read_schedule(path)
        path.unlink()
        plan = _plan_here(message.plan, self._directory)
        player, recorder = prepare_player(plan, schedule, self._share, begin=self._begin, shipped=self._ship)
        shipping = gevent.spawn(self._ship_rows)
        self._playing = True
        try:
            self._master.say(m.Prepared(planned=len(schedule)))
            watching = gevent.spawn(self._watch_master)
            complete: bool = self._share.ended.get()
            watching.kill()
        finally:
            self._end_early()
            recorder.close()
            self._playing = False
        self._orders.raise_if_interrupted()
        self._rows.put(None)
        shipping.get()
        figures = player.summary() | {"real_time_scheduling": float(precedence)}
        told = m.Finished(complete=complete, rows=recorder.rows, tokens=recorder.tokens, figures=figures)
        self._master.say(told)
        over = self._wait_for(m.Over, OVER_S)
        if isinstance(over, m.Over) and over.kept:
            recorder.discard()

    def _begin(self) -> int:
        self._share.report({"event": "at_line"})
        return self._line.wait()

    def _ship(self, table: str, data: pa.Buffer) -> None:
        """For the player's thread."""
        self._rows.put((table, data.to_pybytes()))

    def _ship_rows(self) -> None:
        while (rows := self._rows.get()) is not None:
            table, blob = rows
            self._master.say(m.Batch.model_validate({"table": table}), blob)

    def _end_early(self) -> None:
        self._share.stop()
        self._line.open(None)

    def _watch_master(self) -> None:
        while not self._master.gone:
            gevent.sleep(0.5)
        self._end_early()

    def _wait_for(self, kind: type[m.Message], within_s: float | None = None) -> m.Message:
        """The next message of that kind, or Over. LoadError when the master is gone before."""
        deadline = None if within_s is None else time.monotonic() + within_s
        while True:
            try:
                message = self._inbox.get(timeout=0.2)
            except Empty:
                if self._master.error is not None:
                    raise self._master.error from None
                if self._master.gone or (deadline is not None and time.monotonic() > deadline):
                    raise LoadError(f"the master at {self._master.address} is gone") from None
                continue
            if isinstance(message, (kind, m.Over)):
                return message

    def _tell(self, event: dict[str, object]) -> None:
        """What the player reports, as the master hears it."""
        kind = event.pop("event")
        if kind == "at_line":
            self._master.say(m.AtLine())
        elif kind == "prime":
            self._master.say(m.Prime.model_validate(event))
        elif kind == "progress":
            known = {name: value for name, value in event.items() if name in m.Progress.model_fields}
            self._master.say(m.Progress.model_validate(known))

    def _take(self, message: m.Message, blob: bytes, came_ns: int) -> None:
        """A message of the master's; called in the listening greenlet."""
        match message:
            case m.Ping():
                self._master.say(m.Pong(number=message.number, received_ns=came_ns, replied_ns=time.monotonic_ns()))
            case m.Go():
                late_ns = time.monotonic_ns() - message.zero_ns
                if late_ns > 0:
                    self._master.say(m.Late(by_s=late_ns / 1e9))
                self._line.open(message.zero_ns)
            case m.Stop():
                self._end_early()
            case _:
                self._blob = blob or self._blob
                self._inbox.put(message)


def _plan_here(plan: LoadPlan, directory: Path) -> LoadPlan:
    """The master's plan with this machine's paths."""
    return plan.model_copy(update={"out": directory, "schedule": directory / "schedule.parquet"})


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    sys.exit(main())
