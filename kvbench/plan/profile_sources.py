"""Where a schedule's prompt tokens are to be expected from at one profile's engine. Tokens, bytes."""

from __future__ import annotations

from kvbench.plan.host_rules import host_rules
from kvbench.plan.profile_geometry import kv_bytes_per_token
from kvbench.plan.reuse import expected_sources
from kvbench.spec.profile import Profile
from kvbench.workload.schedule import Schedule

__all__ = ["profile_sources"]


def profile_sources(
    schedule: Schedule, profile: Profile, *, block_tokens: int, device_blocks: int, host_bytes: int, disk: bool
) -> dict[str, int] | None:
    """See `expected_sources`. None when the model's KV is not known, and so neither what the host tier holds."""
    token_bytes = kv_bytes_per_token(profile)
    if host_bytes and token_bytes is None:
        return None
    return expected_sources(
        schedule,
        block_tokens=block_tokens,
        device_blocks=device_blocks,
        host_blocks=host_bytes // (token_bytes * block_tokens) if token_bytes else 0,
        disk=disk,
        host_rules=host_rules(profile.tiers.host, block_tokens),
    )
