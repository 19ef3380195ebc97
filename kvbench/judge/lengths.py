"""Whether completed answers have the length that was asked for. A failed request is an error, never a length fault,
unless it failed for nothing but being complete and too short."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvbench.judge.columns import numbers
from kvbench.judge.evidence import ArmRound

__all__ = ["Lengths", "lengths"]


@dataclass(frozen=True)
class Lengths:
    """Completed answers, and how many have fewer or more tokens than asked for."""

    completed: int = 0
    short: int = 0
    long: int = 0

    def __add__(self, other: Lengths) -> Lengths:
        return Lengths(self.completed + other.completed, self.short + other.short, self.long + other.long)


def lengths(rounds: Iterable[ArmRound]) -> Lengths:
    """All phases of all rounds together."""
    return sum(map(_of_round, rounds), Lengths())


def _of_round(recorded: ArmRound) -> Lengths:
    table = recorded.requests
    ok = (table["status"] == "ok").to_numpy(dtype=bool)
    cut = int(table["error"][~ok].astype("string").str.startswith("short_output").sum())
    asked, received = numbers(table, "output_tokens_asked"), numbers(table, "output_tokens_received")
    return Lengths(
        completed=int(ok.sum()) + cut,
        short=int((ok & (received < asked)).sum()) + cut,
        long=int((ok & (received > asked)).sum()),
    )
