"""One round conducted: workers gathered, clocks compared, shares handed out, a common start, everybody's rows.

A worker that is lost, late or stands still spoils the round, with a sentence that says which and how.
"""

from __future__ import annotations

import tempfile
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import gevent
from gevent.event import Event

from kvbench.errors import InputError, LoadError, RecordError
from kvbench.load import messages as m
from kvbench.load.collect import Collector
from kvbench.load.crowd import LocalWorkers
from kvbench.load.door import Door, Visitor
from kvbench.load.member import Member
from kvbench.load.merge import merge_progress
from kvbench.load.offset import Reading
from kvbench.load.orders import Orders, say
from kvbench.load.plan import LoadPlan
from kvbench.load.recorder import Recorder
from kvbench.load.rows import Rows
from kvbench.load.split import split
from kvbench.spec.crew import Address
from kvbench.workload.schedule import Schedule
from kvbench.workload.storage import write_schedule

__all__ = ["Conductor", "Outcome"]

LOOK_S = 0.1
"""How often the workers are looked after when nothing is heard."""
START_S = 60.0
"""A worker on a busy machine needs a few seconds to start; a minute means that it does not."""
LINE_S = 60.0
"""The same for preparing its first prompts."""
SILENCE_S = 10.0
"""A playing worker reports once a second; without a word for this long it stands still."""
LAST_WORDS_S = 1.0
"""What a local worker said before its process ended may still be on its way for so long."""
CALL_OFF_S = 10.0
"""Workers told to end have this long to say so, when their rows do not count any more."""
LEAD_NS = 250_000_000
"""From the order to start to time zero, besides the way there: greenlets are woken late on a busy host."""
READINGS = 16
"""Questions to each clock; the one that came back soonest counts."""


class Spoiled(Exception):
    """The round does not count; the message names the worker."""


@dataclass(frozen=True)
class Outcome:
    """`faults` empty: all rows of all workers are recorded."""

    complete: bool
    zero_ns: int | None
    members: tuple[Member, ...]
    faults: tuple[str, ...]


class Conductor:
    """Plays one round through its workers. To be used from the main greenlet."""

    def __init__(
        self, plan: LoadPlan, schedule: Schedule, recorder: Recorder, orders: Orders, *, waits: bool = False
    ) -> None:
        """With `waits`, time zero comes after `go`, which answers the event `primed`."""
        self._plan = plan
        self._schedule = schedule
        self._recorder = recorder
        self._orders = orders
        self._shares = split(schedule, plan.crew.total)
        self._collector = Collector(recorder, plan, self._shares)
        self._members: dict[str, Member] = {}
        self._news = Event()
        self._stopping = False
        self._may_go = not waits
        self._error: RecordError | None = None
        self._ended_s: dict[int, float] = {}
        """When a local worker's process was first seen to have ended."""
        self._zero_ns: int | None = None
        self._sent_ns: dict[tuple[str, int], int] = {}
        self._told_s = 0.0

    def play(self, door: Door, local: LocalWorkers) -> Outcome:
        """To the end, early or not, or to what spoils it. InputError for what the user has to mend."""
        self._door, self._local = door, local
        try:
            self._gather()
            if self._stopping:
                return self._never_begun()
            self._measure_clocks()
            self._assign()
            self._line_up()
            self._await_go()
            if not self._stopping:
                self._start()
            self._follow()
            self._check()
        except Spoiled as fault:
            self._call_off()
            return self._outcome(str(fault))
        return self._outcome()

    def stop(self) -> None:
        """End the round early, with its rows."""
        self._stopping = True
        for member in self._members.values():
            self._door.say(member.id, m.Stop())
        self._news.set()

    def go(self) -> None:
        """Let time zero come."""
        self._may_go = True
        self._news.set()

    def say_over(self, *, kept: bool) -> None:
        """Let the workers go."""
        for member in self._members.values():
            self._door.say(member.id, m.Over(kept=kept))

    # -- step by step -----------------------------------------------------------------------------------------

    def _gather(self) -> None:
        crew = self._plan.crew
        within_s = crew.join_timeout_s if crew.joining else START_S
        self._until(lambda: len(self._members) == crew.total or self._stopping, within_s, self._who_is_missing)
        machines = {member.machine for member in self._members.values()}
        if len(machines) > 1 and _on_loopback(self._plan.base_url):
            raise InputError(
                f"workers on other machines cannot reach the server at {self._plan.base_url}",
                do="give a base_url that every worker reaches (kind: attached), or use workers on this machine",
            )

    def _who_is_missing(self) -> str:
        there = {member.index for member in self._members.values() if member.local}
        late = [f"worker {index}" for index in range(self._plan.crew.local) if index not in there]
        joined = sum(not member.local for member in self._members.values())
        if joined < self._plan.crew.joining:
            late.append(f"{self._plan.crew.joining - joined} of {self._plan.crew.joining} workers from elsewhere")
        return f"{' and '.join(late)} did not join in time"

    def _measure_clocks(self, *, after: bool = False) -> None:
        """Of those who joined; local workers share this machine's clock."""
        for member in self._members.values():
            if member.local:
                continue
            for number in range(READINGS):
                self._sent_ns[member.id, number] = time.monotonic_ns()
                self._door.say(member.id, m.Ping(number=number))
                self._until(
                    lambda member=member, number=number: number in member.readings,  # type: ignore[misc]
                    SILENCE_S,
                    lambda member=member: f"{member.name} did not say what time it is",  # type: ignore[misc]
                )
            if after:
                member.clock_after = member.take_readings()
            else:
                member.clock = member.take_readings()

    def _assign(self) -> None:
        for member in self._members.values():
            plan = self._plan.model_copy(update={"worker": member.index})
            self._door.say(member.id, m.Assign(plan=plan), _stored(self._shares[member.index], self._plan.out))
        self._until_all(lambda member: member.prepared, LINE_S, "did not take its share in time")

    def _line_up(self) -> None:
        """Locust starts one user with each; priming takes as long as it takes, and the time-out of its requests
        bounds it. The others have nothing but their first prompts to do."""
        total = len(self._members)
        gevent.spawn(self._door.start, total, total)
        self._until_all(lambda member: member.at_line or member.index == 0, LINE_S, "was late at the start")
        self._until_all(lambda member: member.at_line, None, "")

    def _await_go(self) -> None:
        if not (self._may_go or self._stopping):
            say({"event": "primed"})
            self._until(lambda: self._may_go or self._stopping, None, str)

    def _start(self) -> None:
        way_ns = 4 * max(member.clock.error_ns for member in self._members.values())
        self._zero_ns = time.monotonic_ns() + LEAD_NS + way_ns
        for member in self._members.values():
            member.news_s = time.monotonic()
            self._door.say(member.id, m.Go(zero_ns=member.clock.there(self._zero_ns)))
        say({"event": "started", "monotonic": self._zero_ns / 1e9})
        self._told_s = self._zero_ns / 1e9

    def _follow(self) -> None:
        self._until_all(lambda member: member.finished is not None, None, "")
        self._measure_clocks(after=True)

    def _check(self) -> None:
        """Everything that was recorded anywhere has come here."""
        for member in self._members.values():
            told = member.finished
            if told and (lack := self._collector.shortfall(member.index, told.rows, told.tokens)):
                raise Spoiled(f"{member.name} lost rows: {lack}")

    def _never_begun(self) -> Outcome:
        """Stopped before anybody had a share: nothing was sent, and the tables say so."""
        rows = Rows(self._plan, 0)
        for request in self._schedule.in_order():
            self._recorder.add(rows.unsent(request), array("d"))
        return self._outcome()

    def _call_off(self) -> None:
        """The round is spoiled: nobody needs to go on."""
        for member in self._members.values():
            self._door.say(member.id, m.Stop())
        deadline = time.monotonic() + CALL_OFF_S
        waiting = [member for member in self._members.values() if not self._gone(member)]
        while any(each.finished is None and each.failed is None and not self._gone(each) for each in waiting):
            if time.monotonic() > deadline:
                break
            self._orders.raise_if_interrupted()
            self._wait()

    def _outcome(self, *faults: str) -> Outcome:
        members = tuple(sorted(self._members.values(), key=lambda member: member.index))
        played = all(member.finished is not None and member.finished.complete for member in members)
        return Outcome(played and not faults and not self._stopping, self._zero_ns, members, faults)

    # -- waiting ----------------------------------------------------------------------------------------------

    def _until_all(self, done: Callable[[Member], bool], within_s: float | None, fault: str) -> None:
        """Until it is so for each worker, or each has ended early."""
        self._until(
            lambda: all(done(member) or member.finished is not None for member in self._members.values()),
            within_s,
            lambda: " and ".join(each.name for each in self._members.values() if not done(each)) + " " + fault,
        )

    def _until(self, done: Callable[[], bool], within_s: float | None, fault: Callable[[], str]) -> None:
        """Wait for `done`, looking after the workers. Spoiled when it takes longer or something happens to one."""
        deadline = None if within_s is None else time.monotonic() + within_s
        while not done():
            self._look_after()
            if deadline is not None and time.monotonic() > deadline:
                raise Spoiled(fault())
            self._wait()

    def _wait(self) -> None:
        self._news.wait(LOOK_S)
        self._news.clear()

    def _look_after(self) -> None:
        self._orders.raise_if_interrupted()
        if self._error is not None:
            raise self._error
        now_s = time.monotonic()
        for index in range(self._plan.crew.local):
            if (how := self._has_ended(index)) and not self._over(index):
                self._ended(index, how)
        for member in self._members.values():
            self._look_at(member, now_s)
        if self._zero_ns is not None and now_s >= self._told_s + 1.0:
            self._told_s = now_s
            reports = [member.progress for member in self._members.values() if member.progress is not None]
            say(merge_progress(reports, now_s - self._zero_ns / 1e9))

    def _look_at(self, member: Member, now_s: float) -> None:
        if member.failed is not None:
            if member.failed.exit_code == InputError.exit_code:
                raise InputError(f"{member.name}: {member.failed.what}", do=member.failed.do)
            raise Spoiled(f"{member.name} could not go on: {member.failed.what}")
        if member.fault is not None:
            raise Spoiled(member.fault)
        if member.finished is not None:
            return
        if self._gone(member):
            raise Spoiled(f"{member.name} was lost{self._when(now_s)}: it was not heard of any more")
        if self._zero_ns is not None and now_s - max(member.news_s, self._zero_ns / 1e9) > SILENCE_S:
            raise Spoiled(f"{member.name} stood still{self._when(now_s)}: no progress for {SILENCE_S:g} s")

    def _ended(self, index: int, how: str) -> None:
        """A local worker's process is no more, and it had not finished."""
        if all(member.index != index for member in self._members.values()):
            raise LoadError(f"worker {index} {how} before it joined{self._local.last_words(index)}")
        raise Spoiled(f"worker {index} was lost{self._when(time.monotonic())}: it {how}")

    def _over(self, index: int) -> bool:
        """Whether all that is to be known of a local worker has come."""
        return any(
            member.index == index and (member.finished is not None or member.failed is not None)
            for member in self._members.values()
        )

    def _gone(self, member: Member) -> bool:
        return self._door.lost(member.id) or (member.local and self._has_ended(member.index) is not None)

    def _has_ended(self, index: int) -> str | None:
        """How a local worker's process ended, once its last words must have come."""
        how = self._local.ended(index)
        if how is None:
            return None
        since_s = self._ended_s.setdefault(index, time.monotonic())
        return how if time.monotonic() - since_s >= LAST_WORDS_S else None

    def _when(self, now_s: float) -> str:
        return "" if self._zero_ns is None else f" {max(0.0, now_s - self._zero_ns / 1e9):.1f} s into the round"

    # -- what the door calls ----------------------------------------------------------------------------------

    def joined(self, visitor: Visitor) -> None:
        """A worker has come in; a surplus one is sent away."""
        hello, crew = visitor.hello, self._plan.crew
        taken = {member.index for member in self._members.values()}
        local = hello.index is not None
        free = [hello.index] if hello.index is not None else range(crew.local, crew.total)
        index = next((index for index in free if index < crew.total and index not in taken), None)
        if index is None or local != (index < crew.local):
            self._door.say(visitor.id, m.Over(kept=True))
            return
        now_s = time.monotonic()
        self._members[visitor.id] = Member(index, visitor.id, hello.host, hello.machine, local, now_s)
        self._news.set()

    def broken(self, worker: str, why: str) -> None:
        """Something came in a worker's name that cannot be believed."""
        if (member := self._members.get(worker)) is not None:
            member.fault = f"{member.name} was lost: {why}"
            self._news.set()

    def received(self, worker: str, message: m.Message, blob: bytes, came_ns: int) -> None:
        """A worker's message."""
        member = self._members.get(worker)
        if member is None:
            return
        member.news_s = time.monotonic()
        match message:
            case m.Pong():
                sent_ns = self._sent_ns.pop((worker, message.number), None)
                if sent_ns is not None:
                    reading = Reading(sent_ns, message.received_ns, message.replied_ns, came_ns)
                    member.readings[message.number] = reading
            case m.Prepared():
                member.prepared = True
            case m.AtLine():
                member.at_line = True
            case m.Late():
                member.fault = f"{member.name} was late at the start by {message.by_s:.3f} s"
            case m.Prime():
                say({"event": "prime", "done": message.done, "of": message.of})
            case m.Progress():
                member.progress = message
            case m.Batch():
                self._take_rows(member, message, blob)
            case m.Finished():
                member.finished = message
            case m.Failed():
                member.failed = message
            case _:
                member.fault = f"{member.name} said {type(message).__name__} out of turn"
        self._news.set()

    def _take_rows(self, member: Member, batch: m.Batch, blob: bytes) -> None:
        try:
            self._collector.take(member.index, batch.table, blob)
        except m.BadMessageError as error:
            member.fault = f"{member.name} sent {error.what}"
        except RecordError as error:  # our own disk; raised where the round is waited for
            self._error = error


def _on_loopback(base_url: str) -> bool:
    return Address(urlsplit(base_url).hostname or "", 0).loopback


def _stored(share: Schedule, out: Path) -> bytes:
    """Its file; `out` is the round's, so that a driver that is killed leaves nothing elsewhere."""
    with tempfile.TemporaryDirectory(prefix=".share-", dir=out) as directory:
        path = Path(directory) / "schedule.parquet"
        write_schedule(share, path)
        return path.read_bytes()
