"""What happens beside a session's own turns: branches that start from them, and answers that are left early.

Every quantity has a random stream of its own, as in `classes`.
"""

from __future__ import annotations

from kvbench.errors import InputError
from kvbench.spec.workload import Abort, Branch, Class
from kvbench.workload.arrivals import MOST_REQUESTS
from kvbench.workload.conversation import Leaves, Turn
from kvbench.workload.lengths import length_sampler, think_sampler
from kvbench.workload.randomness import Identities, Stream
from kvbench.workload.schedule import Segment

__all__ = ["Aborts", "Branches", "check_session"]


def check_session(requests: int, *label: str | int) -> None:
    """InputError when a single session of the class that `label` ends with has more requests than a round may."""
    if requests > MOST_REQUESTS:
        raise InputError(
            f"a single session of class {label[-1]!r} has more than {MOST_REQUESTS} requests",
            do="make its turns, branch.count or branch.turns fewer, or the phases shorter",
        )


class Branches:
    """Starts the side branches of one class's sessions."""

    def __init__(self, spec: Branch, class_: Class, think_scale: float, seed: int, *label: str | int) -> None:
        self._class = label
        label = (*label, "branch")
        self._share = spec.share
        self._wait = spec.wait
        self._chance = Stream(seed, *label, "share")
        self._count = length_sampler(spec.count, Stream(seed, *label, "count"))
        self._turns = length_sampler(spec.turns, Stream(seed, *label, "turns"))
        self._think = think_sampler(spec.think, think_scale, Stream(seed, *label, "think"))
        self._suffix = length_sampler(spec.suffix_tokens or class_.suffix_tokens, Stream(seed, *label, "suffix"))
        self._output = length_sampler(spec.output_tokens or class_.output_tokens, Stream(seed, *label, "output"))
        self._contents = Identities(seed, *label, "suffix")

    def start(self, turns: list[Turn], origin: int, slot: int, *, time_left_s: float) -> tuple[int, ...]:
        """Add the branches, if any, that start when `turns[origin]` is over.

        Returns the places of the last requests of those for which the session's next turn is to wait.
        """
        if self._chance.uniform() >= self._share:
            return ()
        last = next((turn.branch for turn in reversed(turns) if turn.branch is not None), -1)
        count = self._count()
        check_session(len(turns) + count, *self._class)
        ends = [self._grow(turns, origin, slot, last + 1 + one, time_left_s) for one in range(count)]
        return tuple(end for end in ends if end != origin) if self._wait else ()

    def _grow(self, turns: list[Turn], origin: int, slot: int, branch: int, time_left_s: float) -> int:
        """One branch; the place of its last request, or `origin` when there is no time for any."""
        last = origin
        for step in range(self._turns()):
            think_s = self._think() if step else 0.0
            after_s = turns[last].over_s + think_s
            suffix = Segment(self._contents(slot, branch, step), self._suffix())
            output_tokens = self._output()
            if after_s >= time_left_s:
                break
            number = turns[last].number + 1
            turns.append(
                Turn((suffix,), output_tokens, think_s, after_s, number=number, before=last, branch=branch)
            )
            last = len(turns) - 1
            check_session(len(turns), *self._class)
        return last


class Aborts:
    """Decides which answers of one class are left early, and when."""

    def __init__(self, spec: Abort, seed: int, *label: str | int) -> None:
        label = (*label, "abort")
        self._share = spec.share
        self._chance = Stream(seed, *label, "share")
        moments = Stream(seed, *label, "moment")
        self._tokens = None if spec.after_tokens is None else length_sampler(spec.after_tokens, moments)
        self._seconds = think_sampler(spec.after, 1.0, moments)

    def next(self) -> Leaves | None:
        """For the next answer; None: its user stays."""
        if self._chance.uniform() >= self._share:
            return None
        return Leaves(None, self._seconds()) if self._tokens is None else Leaves(self._tokens(), None)
