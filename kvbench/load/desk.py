"""Answers that are over and wait to be read, a little at a time, so that nothing else waits for it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from kvbench.load.agenda import Turn
from kvbench.load.exchange import Exchange
from kvbench.load.stream import CompletionReader

__all__ = ["Answer", "Desk"]


@dataclass(slots=True, eq=False)
class Answer:
    """An answer that is being read, or has been."""

    turn: Turn
    exchange: Exchange
    reader: CompletionReader


class Desk:
    """In the order in which they came, but for those that somebody waits for."""

    def __init__(self) -> None:
        self._answers: deque[Answer] = deque()

    def __len__(self) -> int:
        return len(self._answers)

    def put(self, turn: Turn, exchange: Exchange, *, first: bool) -> None:
        """`first`: before the others, because the next turn waits for what it says."""
        chunks, times_ns = (exchange.chunks, exchange.times_ns) if exchange.status == 200 else ([], [])
        answer = Answer(turn, exchange, CompletionReader(chunks, times_ns, exchange.sent_ns or 0))
        (self._answers.appendleft if first else self._answers.append)(answer)

    def read_some(self) -> Answer | None:
        """Read a little of the first answer there is; returned, its body forgotten, when no more of it is to be
        read."""
        if not self._answers[0].reader.step():
            return None
        answer = self._answers.popleft()
        answer.exchange.forget()
        return answer
