"""What every source of series gives, and what has been read so far. No requests are made here; Unix seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from kvbench.canary.series import Group, Replica, Samples, merge
from kvbench.errors import RunError

__all__ = ["SIDES", "History", "Read", "ReadFailed", "Reader"]

SIDES = ("candidate", "baseline")


class ReadFailed(RunError):
    """Nothing could be read this time; the next time may bring it."""


@dataclass(frozen=True, eq=False)
class Read:
    """Samples by side and replica; `failed` are replicas that did not answer, and when."""

    samples: dict[str, dict[str, Samples]]
    failed: dict[str, dict[str, list[float]]] = field(default_factory=dict)


class Reader(Protocol):
    """A place where series come from."""

    looks_back: bool
    """Whether it holds what was before it was first asked."""

    def now(self) -> float:
        """The time by the clock that stamps the samples. ReadFailed."""

    def read(self, since_s: float, until_s: float, stop: Callable[[], None]) -> Read:
        """Samples after `since_s` up to `until_s`. ReadFailed, or InputError where asking again is of no use.

        `stop` raises when the gate is to end.
        """

    def not_before(self, t_s: float) -> None:
        """Samples up to then are known from elsewhere. A clock of the reader's own goes on from there at least."""

    def close(self) -> None:
        """Let go of connections."""


class History:
    """Everything that was read, merged. `read_until_s`: samples up to there are known."""

    def __init__(self) -> None:
        self._samples: dict[str, dict[str, Samples]] = {side: {} for side in SIDES}
        self._failed: dict[str, dict[str, list[float]]] = {side: {} for side in SIDES}
        self.read_until_s: float | None = None

    def add(self, read: Read, until_s: float) -> None:
        """Merge what was read now; what is known already may come again."""
        for side, replicas in read.samples.items():
            for name, samples in replicas.items():
                self._samples[side][name] = merge(self._samples[side].get(name, {}), samples)
        for side, failures in read.failed.items():
            for name, times in failures.items():
                known = self._failed[side].setdefault(name, [])
                known.extend(t_s for t_s in times if not known or t_s > known[-1])
        self.read_until_s = until_s

    def group(self, side: str, name: str) -> Group:
        """The replicas of a side, sorted by name."""
        names = sorted({*self._samples[side], *self._failed[side]})
        return Group(
            name,
            tuple(
                Replica(
                    each, self._samples[side].get(each, {}), np.asarray(self._failed[side].get(each, []), float)
                )
                for each in names
            ),
        )
