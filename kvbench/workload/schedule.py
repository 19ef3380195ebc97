"""The schedule: the complete, seeded list of what is sent when. Pure values; the same for every arm.

Times are seconds from the round's start, which is the moment the last priming request is over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

__all__ = ["PhaseSpan", "PlannedRequest", "Schedule", "Segment", "phase_at"]


@dataclass(frozen=True, slots=True)
class Segment:
    """`tokens` tokens of content that depend on `identity` and position alone.

    Equal identities give equal tokens as far as both reach; different identities differ in every block.
    """

    identity: int
    tokens: int


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request. A later turn (`continues`) has its predecessor's prompt and returned tokens put in front."""

    id: int
    phase: str
    measured: bool
    class_: str
    session: int | None
    turn: int
    intended_s: float | None
    """None: once `continues` is over plus `think_s` (and, in a closed loop, once a slot is free)."""
    think_s: float
    continues: int | None
    segments: tuple[Segment, ...]
    output_tokens: int
    prefix: int | None
    """Which member of the class's pool the prompt begins with."""
    repeat_of: int | None

    @property
    def own_prompt_tokens(self) -> int:
        """Prompt tokens without what a session carries along."""
        return sum(segment.tokens for segment in self.segments)


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """A phase laid out in time."""

    name: str
    start_s: float
    end_s: float
    measured: bool


def phase_at(phases: Sequence[PhaseSpan], t_s: float) -> PhaseSpan:
    """The phase under way at `t_s`; the first before time zero, the last after the end."""
    return next((phase for phase in phases if t_s < phase.end_s), phases[-1])


@dataclass(frozen=True)
class Schedule:
    """What one round sends. `prime` is sent one after the other before time zero."""

    workload: str
    seed: int
    round: int
    phases: tuple[PhaseSpan, ...]
    prime: tuple[PlannedRequest, ...]
    requests: tuple[PlannedRequest, ...]
    """In the order of the earliest time at which each can be sent; ids rise with it."""
    concurrency: int | None
    """Set for a closed loop: at most this many requests (or sessions) are under way. `requests` then holds more
    than any engine gets through; sending stops at the end of the last phase. A request's `phase` and `measured` are
    what they would be on the fastest engine: `phase_at` tells the phase of the time it is really sent.
    """
    request_timeout_s: float

    @property
    def duration_s(self) -> float:
        return self.phases[-1].end_s

    def phase_at(self, t_s: float) -> PhaseSpan:
        """The phase under way at `t_s`; the first before time zero, the last after the end."""
        return phase_at(self.phases, t_s)

    def in_order(self) -> Iterator[PlannedRequest]:
        """Everything that is sent: priming first, then the requests."""
        return chain(self.prime, self.requests)

    def prompt_tokens(self) -> list[int]:
        """Whole prompt lengths in the order of `in_order`, with what sessions carry counted as planned."""
        lengths: list[int] = []
        after: dict[int, int] = {}
        for request in self.in_order():
            carried = 0 if request.continues is None else after[request.continues]
            lengths.append(carried + request.own_prompt_tokens)
            if request.session is not None:
                after[request.id] = lengths[-1] + request.output_tokens
        return lengths

    def __len__(self) -> int:
        return len(self.prime) + len(self.requests)
