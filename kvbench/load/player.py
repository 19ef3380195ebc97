"""Plays a schedule: sends everything at its time, reads answers when there is time to, hands rows to the recorder.

One native thread runs `play`. Between two looks at the sockets it does at most one small piece of other work
(encode a prompt, read some events of an answer that is over), so that sending and reading are never held up.
"""

from __future__ import annotations

import gc
import statistics
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from kvbench.load.agenda import Agenda, Turn
from kvbench.load.bodies import Bodies, Piece
from kvbench.load.client import Client
from kvbench.load.clock import Clock
from kvbench.load.desk import Answer, Desk
from kvbench.load.exchange import Exchange
from kvbench.load.figures import Figures
from kvbench.load.leaks import CanaryFinder
from kvbench.load.leaving import Leaving
from kvbench.load.outcome import Failure
from kvbench.load.plan import LoadPlan
from kvbench.load.precedence import Standing
from kvbench.load.recorder import Recorder
from kvbench.load.refusals import Taken
from kvbench.load.rows import Rows, failure_of
from kvbench.load.stream import Completion
from kvbench.load.under_way import noted
from kvbench.workload.schedule import Schedule, Segment

__all__ = ["Answered", "Player"]

HORIZON_S = 2.0
"""Prompts are encoded this long before their time; it bounds the memory that bodies take."""
URGENT_S = 0.5
"""A prompt due this soon is encoded before finished answers are read."""
LEAD_NS = 50_000_000
"""From the `started` event to time zero, so that a request at second 0 is not late."""
CLOSE_NS = 300_000
"""With less than this to the next send no other work is begun; a piece of it takes about as long."""
SENDING_NS = 1_000_000
"""When many are due at once, the sockets are looked at after this long; tokens come meanwhile."""
PASSED_OVER = 8
"""Rounds of the loop without a moment to spare, of which one in so many still does a piece of work."""
TICK_NS = 1_000_000_000
RECENT_NS = 5_000_000_000
RECENT = 512
"""Progress shows the median TTFT of answers that ended within this time, of so many at most."""


@dataclass(frozen=True, slots=True)
class Answered:
    """What Locust is told of a finished request."""

    class_: str
    e2e_s: float
    bytes_: int
    failure: Failure | None


class Player:
    """`report` and `answered` are called from the playing thread and must not block."""

    def __init__(
        self,
        schedule: Schedule,
        plan: LoadPlan,
        client: Callable[[Callable[[Exchange], None]], Client],
        clock: Clock,
        recorder: Recorder,
        *,
        report: Callable[[dict[str, object]], None],
        answered: Callable[[Answered], None],
        begin: Callable[[], int] | None = None,
    ) -> None:
        """`begin` waits, once everything is primed and encoded, for time zero to be agreed on, and returns it in
        monotonic ns; without it this player alone decides."""
        self._schedule = schedule
        self._plan = plan
        self._clock = clock
        self._client = client(self._over)
        self._recorder = recorder
        self._report = report
        self._answered = answered
        self._begin = begin
        self.figures = Figures(clock)
        self._bodies = Bodies(plan)
        self._agenda = Agenda(schedule)
        self._leaving = Leaving(self._client.abort)
        self._zero_ns = clock.now_ns()
        self._canaries = CanaryFinder(schedule.canaries, plan)
        self._rows = Rows(plan, self._zero_ns, self._canaries)
        self._running: dict[int, Turn] = {}
        self._desk = Desk()
        self._primed: list[Answer] = []
        self._recent: deque[tuple[int, float]] = deque(maxlen=RECENT)
        self._tick_ns = 0
        self._stopping = False
        self._priming = True
        self._changed = False
        self._passed_over = 0
        self._standing = Standing()
        self._sent = self._done = self._failed = 0
        self._taken = Taken()

    def stop(self) -> None:
        """End the round now. Safe from any thread."""
        self._stopping = True
        self._client.wake()

    def play(self) -> bool:
        """Prime, then play to the end; False when it was stopped before. Every planned request has its row then."""
        gc.collect()
        gc.freeze()
        gc.disable()  # a collection takes tens of milliseconds; nothing that is made per request is part of a cycle
        try:
            self._standing.begin()
            self._prime()
            self._start()
            self._run()
            self._close()
        finally:
            self.figures.end()
            gc.enable()
            gc.unfreeze()
            self._client.close()
        return not self._stopping

    # -- before time zero -------------------------------------------------------------------------------------

    def _prime(self) -> None:
        total = len(self._schedule.prime)
        for done, request in enumerate(self._schedule.prime, start=1):
            if self._stopping:
                return
            now_ns = self._clock.now_ns()
            turn = Turn(request, self._rows.seconds(now_ns), "previous turn", self._bodies.whole(request.segments))
            self._send(turn, now_ns)
            while self._running or self._desk:
                self._look(0 if self._desk else TICK_NS)
                if self._stopping:
                    self._abort_all(Failure("stopped", "while priming"))
                self._read_some()
            self._report({"event": "prime", "done": done, "of": total})

    def _start(self) -> None:
        """Encode what is due first, then fix time zero and record the priming requests against it."""
        while (turn := self._agenda.take_to_prepare(HORIZON_S)) is not None and not self._stopping:
            self._encode(turn)
            self._standing.look_if_due(self._clock.now_ns())
        before, now_ns = self._rows, self._clock.now_ns()
        self._zero_ns = self._begin() if self._begin else now_ns + LEAD_NS
        self._rows = Rows(self._plan, self._zero_ns, self._canaries)
        for answer in self._primed:
            answer.turn.intended_s -= before.seconds(self._zero_ns)
            self._record(answer)
        self._primed.clear()
        self._priming = False
        self._tick_ns = self._zero_ns + TICK_NS
        self.figures.begin()
        self._client.begin()
        self._report({"event": "started", "monotonic": self._zero_ns / 1e9})

    # -- the loop ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        end_ns = self._zero_ns + int(self._schedule.duration_s * 1e9)
        drain_s = self._schedule.request_timeout_s if self._plan.drain_s is None else self._plan.drain_s
        drained_ns = end_ns + int(drain_s * 1e9)
        while True:
            now_ns = self._send_due()
            self._leaving.at(now_ns)
            self._standing.look_if_due(now_ns)
            if now_ns >= self._tick_ns:
                self._tick(now_ns)
            if self._stopping:
                self._abort_all(Failure("stopped", "the round was ended early"))
            elif now_ns >= drained_ns:
                self._abort_all(Failure("timeout", f"still under way {drain_s:g} s after the last phase"))
            if self._all_over(now_ns, end_ns):
                return
            self._listen_until(self._next_moment_ns(end_ns if now_ns < end_ns else drained_ns))

    def _listen_until(self, moment_ns: int) -> None:
        """Read what arrives and do other work, until `moment_ns` or until what is to be done has changed."""
        self._changed = False
        while True:
            now_ns = self._clock.now_ns()
            wait_ns = moment_ns - now_ns
            if self._time_for_work(wait_ns) and self._work(self._rows.seconds(now_ns)):
                self._work_on(min(self._client.gathering_until_ns, moment_ns - CLOSE_NS))
                wait_ns = 0
            self._client.poll(wait_ns, moment_ns)
            self._leaving.read()
            woke_ns = self._clock.now_ns()
            if self._changed or self._stopping or woke_ns >= moment_ns:
                self._client.expire(woke_ns)
                return

    def _work_on(self, until_ns: int) -> None:
        """More work, as long as there is no use in looking at the sockets."""
        while (now_ns := self._clock.now_ns()) < until_ns and self._work(self._rows.seconds(now_ns)):
            continue

    def _time_for_work(self, wait_ns: int) -> bool:
        """Whether work may be done before the next send; now and then also where sending never catches up."""
        self._passed_over = self._passed_over + 1 if wait_ns <= 0 else 0
        return wait_ns > CLOSE_NS or self._passed_over % PASSED_OVER == PASSED_OVER - 1

    def _all_over(self, now_ns: int, end_ns: int) -> bool:
        if self._running or self._desk:
            return False
        if self._stopping:
            return True
        if now_ns >= end_ns:
            return self._agenda.next_due_s is None
        return self._schedule.concurrency is not None and self._agenda.empty

    def _next_moment_ns(self, end_ns: int) -> int:
        """When there is something to do even if nothing arrives."""
        moment_ns = min(self._tick_ns, self._standing.next_ns, end_ns)
        if (due_s := self._agenda.next_due_s) is not None:
            moment_ns = min(moment_ns, self._zero_ns + int(due_s * 1e9))
        if (deadline_ns := self._client.next_deadline_ns()) is not None:
            moment_ns = min(moment_ns, deadline_ns)
        if (leave_ns := self._leaving.next_ns) is not None:
            moment_ns = min(moment_ns, leave_ns)
        return moment_ns

    def _look(self, wait_ns: int) -> None:
        self._client.poll(wait_ns)
        self._client.expire(self._clock.now_ns())

    def _work(self, now_s: float) -> bool:
        """One piece of work that can wait; False when there is none."""
        turn = self._agenda.take_to_prepare(now_s + URGENT_S)
        if turn is None:
            if self._read_some():
                return True
            turn = self._agenda.take_to_prepare(now_s + HORIZON_S)
        if turn is not None:
            self._encode(turn)
        return turn is not None

    # -- sending ----------------------------------------------------------------------------------------------

    def _send_due(self) -> int:
        """Send what is due, or as much of it as goes in `SENDING_NS`; the time then."""
        now_ns = self._clock.now_ns()
        until_ns = now_ns + SENDING_NS
        while now_ns < until_ns and (turn := self._agenda.take_due(self._rows.seconds(now_ns))) is not None:
            if self._schedule.concurrency is not None:
                phase = self._schedule.phase_at(turn.intended_s)
                if (turn.request.phase, turn.request.measured) != (phase.name, phase.measured):
                    turn.request = replace(turn.request, phase=phase.name, measured=phase.measured)
            self._send(turn, self._zero_ns + int(turn.intended_s * 1e9))
            now_ns = self._clock.now_ns()
        return now_ns

    def _send(self, turn: Turn, intended_ns: int) -> None:
        if turn.body is None:
            self._encode(turn)
        assert turn.body is not None  # noqa: S101  (for the type checker)
        deadline_ns = intended_ns + int(self._schedule.request_timeout_s * 1e9)
        exchange = Exchange(turn.request.id, self._name(turn), turn.body.content, deadline_ns)
        turn.body.content = b""
        self._running[turn.request.id] = turn
        self._sent += 1
        self._client.send(exchange)
        if turn.request.aborts:
            self._leaving.expect(turn.request, exchange, intended_ns)
        if exchange.sent_ns is not None and not self._priming:
            self.figures.send_lags_s.append((exchange.sent_ns - intended_ns) / 1e9)

    def _encode(self, turn: Turn) -> None:
        """Make the whole request, so that nothing of it is left to do when its time comes."""
        turn.body = self._bodies.make(turn.pieces, turn.request.output_tokens, holdout=turn.request.holdout)
        turn.body.content = self._client.message(self._name(turn), turn.body.content)

    def _name(self, turn: Turn) -> str:
        return f"kvbench-{self._plan.round}-{turn.request.id}"

    def _abort_all(self, failure: Failure) -> None:
        for exchange in list(self._client.active):
            self._client.abort(exchange, failure)

    # -- answers ----------------------------------------------------------------------------------------------

    def _over(self, exchange: Exchange) -> None:
        """Called by the client, once for each request."""
        self._changed = True
        self._taken.over(exchange)
        turn = self._running.pop(exchange.id)
        followed = self._agenda.has_followers(turn)
        self._desk.put(turn, exchange, first=followed)
        if not (followed or self._priming):
            self._agenda.over(turn, self._ended_s(exchange), ())

    def _ended_s(self, exchange: Exchange) -> float:
        return self._rows.seconds(exchange.over_ns or self._clock.now_ns())

    def _read_some(self) -> bool:
        """Read a little of the first answer on the desk."""
        if not self._desk:
            return False
        answer = self._desk.read_some()
        if answer is not None:
            self._changed = True
            if self._priming:
                self._primed.append(answer)
            else:
                self._record(answer)
        return True

    def _record(self, answer: Answer) -> None:
        turn, exchange, completion = answer.turn, answer.exchange, answer.reader.completion()
        failure = failure_of(turn, exchange, completion, forces_length=self._plan.forces_length)
        row = self._rows.answered(turn, exchange, completion, failure)
        self._recorder.add(row, self._rows.token_times(completion))
        self._count(exchange, completion, failure)
        if self._agenda.has_followers(turn):
            output = None if failure else self._returned(turn, exchange, completion)
            for request, due_s in self._agenda.over(turn, self._ended_s(exchange), output):
                self._failed += 1
                self._recorder.add(self._rows.lost(request, due_s), array("d"))
        ended_ns = exchange.over_ns or 0
        if completion.placed.first_ns is not None:
            ttft_s = self._rows.seconds(completion.placed.first_ns) - turn.intended_s
            self._recent.append((ended_ns, ttft_s))
        e2e_s = self._ended_s(exchange) - turn.intended_s
        self._answered(Answered(turn.request.class_, e2e_s, exchange.body_bytes, failure))

    def _count(self, exchange: Exchange, completion: Completion, failure: Failure | None) -> None:
        self._done += 1
        self._failed += failure is not None
        if exchange.connected_ns is not None and exchange.sent_ns is not None:
            self.figures.connects_s.append((exchange.connected_ns - exchange.sent_ns) / 1e9)
        self.figures.answered(completion, failed=failure is not None)

    def _returned(self, turn: Turn, exchange: Exchange, completion: Completion) -> Piece:
        """What the next turn carries of this answer: its token ids, or as many of our own where none were given."""
        if completion.token_ids is not None and not self._plan.words:
            return completion.token_ids
        if exchange.left and not completion.placed.times_ns:
            return ()
        self.figures.substituted_turns += 1
        return Segment(-1 - turn.request.id, len(completion.placed.times_ns) or turn.request.output_tokens)

    # -- telling ----------------------------------------------------------------------------------------------

    def _tick(self, now_ns: int) -> None:
        self._tick_ns = now_ns + TICK_NS
        self.figures.fold()
        self._recorder.flush()
        self._recorder.note(noted(self._client.active, now_ns, self._zero_ns))
        while self._recent and self._recent[0][0] < now_ns - RECENT_NS:
            self._recent.popleft()
        self._report(
            {
                "event": "progress",
                "t_s": self._rows.seconds(now_ns),
                "sent": self._sent,
                "done": self._done,
                "failed": self._failed,
                "running": len(self._running),
                "tokens": self._client.pieces,
                "ttft_p50_s": statistics.median(ttft_s for _, ttft_s in self._recent) if self._recent else None,
            }
            | self._taken.told(self._client.active)
        )

    def _close(self) -> None:
        for request in self._agenda.close():
            self._recorder.add(self._rows.unsent(request), array("d"))

    def summary(self) -> dict[str, float | None]:
        """What goes into `load.json`; its names are explained in `figures`."""
        return self.figures.summary() | {
            "requests": float(self._sent),
            "failed": float(self._failed),
            "connections_opened": float(self._client.connections_opened),
            "resent_on_stale_connection": float(self._client.resent),
            "loop_stall_max_s": self._client.stall_max_ns / 1e9,
            "gc_disabled": 1.0,
            # Time as ordinary work, because the kernel would have stopped a real-time client that needs so much.
            "stepped_down_s": self._standing.stepped_down_s,
        }
