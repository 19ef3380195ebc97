"""Canary text: a secret sequence of tokens of each tenant, laid into everything that its requests say.

Found in an answer to another tenant, it proves that KV of one request reached another. Tokens and positions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from kvbench.errors import InputError
from kvbench.spec.workload import Workload
from kvbench.workload.randomness import Identities
from kvbench.workload.schedule import PlannedRequest, Schedule, Segment

__all__ = [
    "CANARY_TOKENS",
    "CARRIES_TOKENS",
    "EVERY_TOKENS",
    "NOBODY",
    "OFFSET_TOKENS",
    "Tenants",
    "check_canaries",
]

CANARY_TOKENS = 12
"""Out of 224 ids, as the built-in models have them, these are 93 bits."""
EVERY_TOKENS = 64
"""One canary in so many tokens of content: each block of a tier's usual size holds one whole."""
OFFSET_TOKENS = 50
"""Where it begins in each such stretch. Two tokens into a block of sixteen: that block keeps tokens of its own on
both sides, so that blocks of one tenant differ, and content shorter than this stays as it was."""
CARRIES_TOKENS = OFFSET_TOKENS + CANARY_TOKENS
"""Content of this length holds a whole canary."""


@dataclass(frozen=True)
class Tenants:
    """Whose canary stands where in one round."""

    canaries: tuple[int, ...]
    """The identity of each tenant's canary; empty: the workload has none."""

    @classmethod
    def of_round(cls, workload: Workload, round_index: int) -> Tenants:
        """Canaries of a round of their own, like prefixes: what an earlier round left is nobody's secret now."""
        if workload.canaries is None:
            return cls(())
        identities = Identities(workload.seed, workload.name, round_index, "canary")
        return cls(tuple(identities(tenant) for tenant in range(workload.canaries.tenants)))

    def owner(self, place: int) -> int | None:
        """Whose a pool's member, or a conversation, of this number is; None: nobody's."""
        return place % len(self.canaries) if self.canaries else None

    def mark(self, segments: Iterable[Segment], tenant: int | None) -> tuple[Segment, ...]:
        """The same contents with the tenant's canary in them."""
        if tenant is None:
            return tuple(segments)
        return tuple(replace(segment, canary=self.canaries[tenant]) for segment in segments)


NOBODY = Tenants(())
"""Of a workload without canaries."""


def check_canaries(schedule: Schedule) -> Schedule:
    """The schedule. InputError when its canaries could never show anything: fewer than two tenants have theirs in
    a prompt."""
    if schedule.canaries:
        placed = {request.tenant for request in schedule.in_order() if _holds_one(request)}
        if len(placed) < 2:
            raise InputError(
                f"canaries of {len(placed)} of {len(schedule.canaries)} tenants stand in a prompt: an answer can "
                "only tell on another tenant",
                key=("canaries",),
                do=f"give a class a pool of two or more prefixes, each of {CARRIES_TOKENS} tokens or more",
            )
    return schedule


def _holds_one(request: PlannedRequest) -> bool:
    return any(segment.tokens >= CARRIES_TOKENS for segment in request.segments)
