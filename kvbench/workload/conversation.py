"""A single request, or a session with its turns and side branches, before it has a place in a schedule."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from kvbench.workload.schedule import Segment

__all__ = ["Conversation", "Leaves", "Turn"]

_FASTEST_REQUEST_S = 0.005
_FASTEST_TOKEN_S = 0.002
"""Taken as a bound on any engine: 5 ms plus 2 ms per output token (500 tokens/s of one stream) for a request. The
earliest time of a session's next turn and the number of requests of a closed loop are reckoned with it.
"""


class Leaves(NamedTuple):
    """When a user leaves an answer: after so many tokens, or so long after the intended time."""

    after_tokens: int | None
    after_s: float | None


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a conversation. `before` and `waits_for` are places in the conversation's `turns`."""

    segments: tuple[Segment, ...]
    """What this turn adds to the prompt; all of the prompt where it does not carry."""
    output_tokens: int
    think_s: float = 0.0
    after_s: float = 0.0
    """The earliest it can be sent, seconds after the conversation's first request."""
    number: int = 0
    """Requests before it on its way from the first."""
    before: int | None = None
    """What it goes on from."""
    carries: bool = True
    waits_for: tuple[int, ...] = ()
    branch: int | None = None
    leaves: Leaves | None = None

    @property
    def returned_tokens(self) -> int:
        """Output tokens that are planned to come; of an answer that is left after a time, all of them."""
        most = self.leaves.after_tokens if self.leaves else None
        return min(self.output_tokens, most or self.output_tokens)

    @property
    def tokens(self) -> int:
        """What it adds to the context of the turn after it."""
        return sum(segment.tokens for segment in self.segments) + self.returned_tokens

    @property
    def over_s(self) -> float:
        """The earliest it can be over, seconds after the conversation's first request."""
        fastest_s = _FASTEST_REQUEST_S + _FASTEST_TOKEN_S * self.returned_tokens
        if self.leaves and self.leaves.after_s is not None:
            fastest_s = min(fastest_s, self.leaves.after_s)
        return self.after_s + fastest_s


@dataclass(frozen=True, slots=True)
class Conversation:
    """A single request, or the turns of a session and its branches; whatever a turn refers to stands before it."""

    prefix: int | None
    is_session: bool
    turns: tuple[Turn, ...]
    tenant: int | None = None

    @property
    def fastest_s(self) -> float:
        """The shortest time that any engine takes for all of it."""
        return max(turn.over_s for turn in self.turns)

    def first_turn(self) -> Conversation:
        """The same conversation, ended after its first request."""
        return replace(self, turns=self.turns[:1])
