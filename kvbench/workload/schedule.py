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
    canary: int | None = None
    """Identity of the canary text that stands in it (see `canaries`); equal identities have the same."""


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request. A later turn (`continues`) has its predecessor's prompt and returned tokens put in front, unless
    the context was rewritten. Several may continue the same request: the next turn and side branches.
    """

    id: int
    phase: str
    measured: bool
    class_: str
    session: int | None
    turn: int
    intended_s: float | None
    """None: once `continues` and `waits_for` are over plus `think_s` (in a closed loop, once a slot is free)."""
    think_s: float
    continues: int | None
    segments: tuple[Segment, ...]
    output_tokens: int
    prefix: int | None
    """Which member of the class's pool the prompt begins with."""
    repeat_of: int | None
    carries: bool = True
    """False: the context was rewritten, so `continues` only says what it comes after; nothing is put in front."""
    waits_for: tuple[int, ...] = ()
    """Further requests that must be over, well or not, before the think time begins: ends of side branches."""
    branch: int | None = None
    """Which side branch of its session it belongs to, counted from 0; None: the session's own turns."""
    abort_after_tokens: int | None = None
    """The user leaves once so many tokens have come; None: not after tokens."""
    abort_after_s: float | None = None
    """The user leaves so long after the intended time; None: not after a time."""
    holdout: bool = False
    """Sent past the tiers behind the host, where the arm has one: what it would have been without them."""
    tenant: int | None = None
    """Whose it is; all that it says has the tenant's canary in it. None: the workload has no canaries."""

    @property
    def own_prompt_tokens(self) -> int:
        """Prompt tokens without what a session carries along."""
        return sum(segment.tokens for segment in self.segments)

    @property
    def returned_tokens(self) -> int:
        """Output tokens that are planned to come before the user leaves; all of them where a time decides."""
        return min(self.output_tokens, self.abort_after_tokens or self.output_tokens)

    @property
    def aborts(self) -> bool:
        """Whether the user is to leave before the answer is over."""
        return self.abort_after_s is not None or self.returned_tokens < self.output_tokens


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
    """Set for a closed loop: at most this many requests (or sessions with their branches) are under way. `requests`
    then holds more than any engine gets through; sending stops at the end of the last phase. A request's `phase`
    and `measured` are what they would be on the fastest engine: `phase_at` tells the phase of the time it is really
    sent.
    """
    request_timeout_s: float
    canaries: tuple[int, ...] = ()
    """Identity of each tenant's canary text."""

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
            carried = 0 if request.continues is None or not request.carries else after[request.continues]
            lengths.append(carried + request.own_prompt_tokens)
            if request.session is not None:
                after[request.id] = lengths[-1] + request.returned_tokens
        return lengths

    def __len__(self) -> int:
        return len(self.prime) + len(self.requests)
