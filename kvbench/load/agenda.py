"""What is sent next and what follows from an answer: sessions, branches, slots, the end. Pure: it is told the time.

Times are seconds from the round's start. Open loop: every request has its own time, whatever the server does.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from kvbench.load.bodies import Body, Piece
from kvbench.workload.schedule import PlannedRequest, Schedule

__all__ = ["Agenda", "Basis", "Turn"]

Basis = Literal["schedule", "previous turn"]
"""What follows from an answer is `previous turn`: later turns, a closed loop's requests but the first, priming."""


LOOKAHEAD = 8
"""Waiting requests of a closed loop that are prepared before a slot is free for them."""


@dataclass(slots=True, eq=False)
class Turn:
    """A planned request whose time is known and whose prompt is complete."""

    request: PlannedRequest
    intended_s: float
    basis: Basis
    pieces: tuple[Piece, ...]
    body: Body | None = None
    """Encoded ahead of its time, or None."""


@dataclass(slots=True)
class _Held:
    """A turn that waits for more than the one it continues: for the ends of side branches."""

    request: PlannedRequest
    open: int
    """How many it still waits for, the one it continues included."""
    latest_s: float = 0.0
    pieces: tuple[Piece, ...] = ()


class Agenda:
    """The requests of a schedule without its priming ones, in the order of their times.

    In a closed loop a session with its branches holds one slot from its first request until nothing of it is left.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._end_s = schedule.duration_s
        self._followers: dict[int, list[PlannedRequest]] = {}
        self._waiting: deque[Turn] = deque()
        self._unsent: list[PlannedRequest] = []
        self._prepared_ahead = 0
        self._due: list[tuple[float, int, Turn]] = []
        self._to_prepare: list[tuple[float, int, Turn]] = []
        self._sequence = 0
        self._held: dict[int, _Held] = {}
        self._awaited: dict[int, list[int]] = {}
        self._slots = _Slots(schedule) if schedule.concurrency is not None else None
        for request in schedule.requests:
            if request.waits_for:
                self._held[request.id] = _Held(request, 1 + len(request.waits_for))
                for other in request.waits_for:
                    self._awaited.setdefault(other, []).append(request.id)
            if request.continues is not None:
                self._followers.setdefault(request.continues, []).append(request)
            elif schedule.concurrency is not None:
                self._waiting.append(Turn(request, 0.0, "previous turn", request.segments))
            else:
                self._add(Turn(request, request.intended_s or 0.0, "schedule", request.segments))
        for _ in range(min(schedule.concurrency or 0, len(self._waiting))):
            turn = self._waiting.popleft()
            turn.basis = "schedule"
            self._add(turn)

    def _add(self, turn: Turn) -> None:
        if self._slots:
            self._slots.taken(turn.request)
        self._sequence += 1
        entry = (turn.intended_s, self._sequence, turn)
        heapq.heappush(self._due, entry)
        if turn.body is None:
            heapq.heappush(self._to_prepare, entry)

    @property
    def next_due_s(self) -> float | None:
        """When `take_due` has something next; None: nothing until an answer comes."""
        return self._due[0][0] if self._due else None

    def has_followers(self, turn: Turn) -> bool:
        """Whether later turns of the session need what this one returns."""
        return turn.request.id in self._followers

    @property
    def empty(self) -> bool:
        """Nothing is due any more unless requests under way have followers."""
        return not self._due and not self._waiting

    def take_due(self, now_s: float) -> Turn | None:
        """The next request whose time has come."""
        if self._due and self._due[0][0] <= now_s:
            return heapq.heappop(self._due)[2]
        return None

    def take_to_prepare(self, before_s: float) -> Turn | None:
        """The next request that is due before `before_s`, or may be (a closed loop's), and has no body yet."""
        while self._to_prepare and self._to_prepare[0][0] < before_s:
            turn = heapq.heappop(self._to_prepare)[2]
            if turn.body is None:
                return turn
        if self._prepared_ahead < min(LOOKAHEAD, len(self._waiting)):
            self._prepared_ahead += 1
            return self._waiting[self._prepared_ahead - 1]
        return None

    def over(self, turn: Turn, ended_s: float, output: Piece | None) -> list[tuple[PlannedRequest, float]]:
        """Note that `turn` has ended; `output` None: it failed.

        Returns the later turns that are lost with it, each with the time it would have been due. What only waited
        for `turn`, without continuing it, goes on either way.
        """
        followers = self._followers.pop(turn.request.id, [])
        lost = [] if output is not None else list(self._lose(followers, ended_s))
        if output is not None:
            for request in followers:
                pieces = (*turn.pieces, output, *request.segments) if request.carries else request.segments
                self._follow(request, ended_s, pieces)
        self._release(turn.request.id, ended_s)
        if self._slots and self._slots.left(turn.request):
            self._free_slot(ended_s)
        return lost

    def _follow(self, request: PlannedRequest, ended_s: float, pieces: tuple[Piece, ...]) -> None:
        """`request` may be due: the one that it continues has ended well."""
        if not request.waits_for:
            self._due_at(request, ended_s + request.think_s, pieces)
        elif (held := self._held.get(request.id)) is not None:
            held.pieces = pieces
            self._one_less(held, ended_s)

    def _release(self, request_id: int, ended_s: float) -> None:
        """What waited for this request has to wait for one less."""
        for waiting in self._awaited.pop(request_id, ()):
            if (held := self._held.get(waiting)) is not None:
                self._one_less(held, ended_s)

    def _one_less(self, held: _Held, ended_s: float) -> None:
        held.open -= 1
        held.latest_s = max(held.latest_s, ended_s)
        if held.open == 0:
            del self._held[held.request.id]
            self._due_at(held.request, held.latest_s + held.request.think_s, held.pieces)

    def _due_at(self, request: PlannedRequest, due_s: float, pieces: tuple[Piece, ...]) -> None:
        if due_s >= self._end_s:
            self._never(request)
        else:
            self._add(Turn(request, due_s, "previous turn", pieces))

    def close(self) -> list[PlannedRequest]:
        """The round is over: what was not sent. Nothing is due afterwards."""
        rest = [turn.request for _, _, turn in self._due] + [turn.request for turn in self._waiting]
        self._due.clear()
        self._waiting.clear()
        self._to_prepare.clear()
        for request in rest:
            self._never(request)
        for request_id in list(self._followers):
            self._never_any_of(self._followers.pop(request_id, []))
        self._never_any_of([held.request for held in self._held.values()])
        return self._unsent

    def _free_slot(self, now_s: float) -> None:
        if self._waiting and now_s < self._end_s:
            turn = self._waiting.popleft()
            self._prepared_ahead = max(0, self._prepared_ahead - 1)
            turn.intended_s = now_s
            self._add(turn)

    def _lose(self, requests: Iterable[PlannedRequest], ended_s: float) -> Iterable[tuple[PlannedRequest, float]]:
        """Everything that continues a failed request, with the time it would have been due."""
        for request in requests:
            due_s = ended_s + request.think_s
            if due_s >= self._end_s:
                self._never_any_of([request])
            elif self._is_open(request):
                yield request, due_s
                yield from self._lose(self._followers.pop(request.id, []), due_s)
                self._release(request.id, due_s)

    def _never(self, request: PlannedRequest) -> None:
        """Its time comes after the end, and so does that of everything that continues it or waits for it."""
        self._unsent.append(request)
        self._never_any_of(self._followers.pop(request.id, []))
        waiting = [self._held[id_] for id_ in self._awaited.pop(request.id, ()) if id_ in self._held]
        self._never_any_of([held.request for held in waiting])

    def _never_any_of(self, requests: Iterable[PlannedRequest]) -> None:
        for request in requests:
            if self._is_open(request):
                self._never(request)

    def _is_open(self, request: PlannedRequest) -> bool:
        """Whether it is still to be decided what becomes of a request that is neither due nor sent.

        To ask is to decide: one that waits for several is reached in several ways, and only the first counts.
        """
        return not request.waits_for or self._held.pop(request.id, None) is not None


class _Slots:
    """Which conversations of a closed loop still have something due or under way."""

    def __init__(self, schedule: Schedule) -> None:
        self._first: dict[int, int] = {}
        """The first request of each one's conversation."""
        for request in schedule.requests:
            before = request.continues
            self._first[request.id] = request.id if before is None else self._first.get(before, before)
        self._open: dict[int, int] = {}

    def taken(self, request: PlannedRequest) -> None:
        first = self._first[request.id]
        self._open[first] = self._open.get(first, 0) + 1

    def left(self, request: PlannedRequest) -> bool:
        """One request less; True when it was the conversation's last."""
        first = self._first[request.id]
        self._open[first] -= 1
        if self._open[first]:
            return False
        del self._open[first]
        return True
