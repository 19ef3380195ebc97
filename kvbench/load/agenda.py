"""What is sent next, and what follows from an answer: sessions, slots, the end. Pure: it is told the time.

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


class Agenda:
    """The requests of a schedule without its priming ones, in the order of their times."""

    def __init__(self, schedule: Schedule) -> None:
        self._end_s = schedule.duration_s
        self._followers: dict[int, list[PlannedRequest]] = {}
        self._waiting: deque[Turn] = deque()
        self._unsent: list[PlannedRequest] = []
        self._prepared_ahead = 0
        self._due: list[tuple[float, int, Turn]] = []
        self._to_prepare: list[tuple[float, int, Turn]] = []
        self._sequence = 0
        for request in schedule.requests:
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

        Returns the later turns that are lost with it, each with the time it would have been due.
        """
        followers = self._followers.pop(turn.request.id, [])
        if output is None or not followers:
            self._free_slot(ended_s)
            return list(self._lose(followers, ended_s))
        for request in followers:
            due_s = ended_s + request.think_s
            if due_s >= self._end_s:
                self._never(request)
            else:
                self._add(Turn(request, due_s, "previous turn", (*turn.pieces, output, *request.segments)))
        if all(ended_s + request.think_s >= self._end_s for request in followers):
            self._free_slot(ended_s)
        return []

    def close(self) -> list[PlannedRequest]:
        """The round is over: what was not sent. Nothing is due afterwards."""
        rest = [turn.request for _, _, turn in self._due] + [turn.request for turn in self._waiting]
        self._due.clear()
        self._waiting.clear()
        self._to_prepare.clear()
        for request in rest:
            self._never(request)
        for request_id in list(self._followers):
            for request in self._followers.pop(request_id, []):
                self._never(request)
        return self._unsent

    def _free_slot(self, now_s: float) -> None:
        if self._waiting and now_s < self._end_s:
            turn = self._waiting.popleft()
            self._prepared_ahead = max(0, self._prepared_ahead - 1)
            turn.intended_s = now_s
            self._add(turn)

    def _lose(self, requests: Iterable[PlannedRequest], ended_s: float) -> Iterable[tuple[PlannedRequest, float]]:
        for request in requests:
            due_s = ended_s + request.think_s
            if due_s >= self._end_s:
                self._never(request)
            else:
                yield request, due_s
                yield from self._lose(self._followers.pop(request.id, []), due_s)

    def _never(self, request: PlannedRequest) -> None:
        self._unsent.append(request)
        for follower in self._followers.pop(request.id, []):
            self._never(follower)
