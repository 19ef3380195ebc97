"""The schedule: the complete, seeded list of what is sent when. Pure values; the same for every arm.

Times are seconds from the round's start, which is the moment the last priming request is over.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PhaseSpan", "PlannedRequest", "Schedule", "Segment"]


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


@dataclass(frozen=True)
class Schedule:
    """What one round sends. `prime` is sent one after the other before time zero."""

    workload: str
    seed: int
    round: int
    phases: tuple[PhaseSpan, ...]
    prime: tuple[PlannedRequest, ...]
    requests: tuple[PlannedRequest, ...]
    concurrency: int | None
    """Set for a closed loop: at most this many requests (or sessions) are under way."""
    request_timeout_s: float

    @property
    def duration_s(self) -> float:
        return self.phases[-1].end_s

    def __len__(self) -> int:
        return len(self.prime) + len(self.requests)
