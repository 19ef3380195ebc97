"""What a host tier takes in, keeps as one and gives up, as a profile says. Tokens."""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.engine.emulated.host import MOST_TRACKED
from kvbench.spec.profile import HostTier

__all__ = ["HostRules", "host_rules"]


@dataclass(frozen=True)
class HostRules:
    """The defaults are vLLM's."""

    policy: str = "lru"
    chunk_tokens: int | None = None
    """Kept, found and dropped as one; None: a block of the device."""
    store_threshold: int = 0
    """A chunk is stored when it is offered for this time; 0 and 1: at once."""
    most_tracked: int = MOST_TRACKED
    """Chunks whose offers are counted."""
    prompt_only: bool = True
    """Answers stay on the device."""


def host_rules(host: HostTier | None, block_tokens: int) -> HostRules:
    """Of a profile's host tier, behind device blocks of `block_tokens` tokens; without one, of what it would be."""
    if host is None:
        return HostRules()
    return HostRules(
        policy=host.policy,
        chunk_tokens=host.tokens_per_chunk(block_tokens),
        store_threshold=host.store_threshold,
        most_tracked=host.max_tracker_size or MOST_TRACKED,
        prompt_only=host.offload_prompt_only,
    )
