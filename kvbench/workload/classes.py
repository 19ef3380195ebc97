"""What the requests of each class are made of: prefixes, suffixes, outputs, turns and pauses; not when they come.

Each quantity of each class has a random stream of its own: changing one line of a file leaves other draws alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvbench.spec.workload import Class, Workload
from kvbench.workload.lengths import length_sampler, think_sampler
from kvbench.workload.pools import make_pool
from kvbench.workload.popularity import member_sampler
from kvbench.workload.randomness import Identities, Stream
from kvbench.workload.schedule import Segment

__all__ = ["ClassSource", "Conversation", "Turn", "make_classes"]

_FASTEST_REQUEST_S = 0.005
_FASTEST_TOKEN_S = 0.002
"""Taken as a bound on any engine: 5 ms plus 2 ms per output token (500 tokens/s of one stream) for a request. The
earliest time of a session's next turn and the number of requests of a closed loop are reckoned with it.
"""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a conversation."""

    segments: tuple[Segment, ...]
    """What this turn adds to the prompt."""
    output_tokens: int
    think_s: float
    after_s: float
    """The earliest it can be sent, seconds after the conversation's first request."""

    @property
    def fastest_s(self) -> float:
        """The shortest time that any engine takes for it."""
        return _FASTEST_REQUEST_S + _FASTEST_TOKEN_S * self.output_tokens


@dataclass(frozen=True, slots=True)
class Conversation:
    """A single request, or the turns of a session."""

    prefix: int | None
    is_session: bool
    turns: tuple[Turn, ...]

    @property
    def fastest_s(self) -> float:
        """The shortest time that any engine takes for all of it."""
        return self.turns[-1].after_s + self.turns[-1].fastest_s

    def first_turn(self) -> Conversation:
        """The same conversation, ended after its first request."""
        return Conversation(self.prefix, self.is_session, self.turns[:1])


class ClassSource:
    """Makes the conversations of one class, one after the other."""

    def __init__(
        self, class_: Class, pool: tuple[Segment, ...], think_scale: float, seed: int, *label: str | int
    ) -> None:
        self.pool = pool
        self._is_session = class_.turns is not None
        self._turns = length_sampler(class_.turns or 1, Stream(seed, *label, "turns"))
        self._think = think_sampler(class_.think, think_scale, Stream(seed, *label, "think"))
        self._suffix = length_sampler(class_.suffix_tokens, Stream(seed, *label, "suffix"))
        self._output = length_sampler(class_.output_tokens, Stream(seed, *label, "output"))
        self._member = member_sampler(
            class_.prefix.popularity if class_.prefix else "uniform", len(pool), Stream(seed, *label, "popularity")
        )
        self._suffixes = Identities(seed, *label, "suffix")

    def next(self, slot: int, *, time_left_s: float) -> Conversation:
        """The next conversation; `slot` names its suffixes. Turns that cannot be sent in time are left out."""
        prefix = self._member() if self.pool else None
        shared = () if prefix is None else (self.pool[prefix],)
        turns = [self._turn(slot, 0, shared, think_s=0.0, after_s=0.0)]
        for number in range(1, self._turns()):
            think_s = self._think()
            after_s = turns[-1].after_s + turns[-1].fastest_s + think_s
            if after_s >= time_left_s:
                break
            turns.append(self._turn(slot, number, (), think_s=think_s, after_s=after_s))
        return Conversation(prefix, self._is_session, tuple(turns))

    def _turn(self, slot: int, number: int, shared: tuple[Segment, ...], *, think_s: float, after_s: float) -> Turn:
        suffix = Segment(self._suffixes(slot, number), self._suffix())
        return Turn((*shared, suffix), self._output(), think_s, after_s)


def make_classes(
    workload: Workload,
    round_index: int,
    *,
    block_tokens: int | None,
    capacities_tokens: Mapping[str, int] | None,
) -> dict[str, ClassSource]:
    """A source for every class of the workload, in the file's order, with this round's prefixes."""
    sources: dict[str, ClassSource] = {}
    for name, class_ in workload.classes.items():
        label = (workload.name, round_index, "class", name)
        pool = (
            make_pool(
                class_.prefix,
                name,
                stream=Stream(workload.seed, *label, "prefix"),
                identities=Identities(workload.seed, *label, "prefix"),
                block_tokens=block_tokens,
                capacities_tokens=capacities_tokens,
            )
            if class_.prefix
            else ()
        )
        sources[name] = ClassSource(class_, pool, workload.think_scale, workload.seed, *label)
    return sources
