"""What else would help instead of a tier: more device, smaller KV, shorter contexts. Shares of prompt tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from kvbench.plan.planned_arm import PlannedArm
from kvbench.plan.reuse import expected_sources
from kvbench.workload.schedule import Schedule

__all__ = ["Alternative", "alternatives"]

_LIMIT_SHARE = 0.95
"""A context limit that so many of the prompts keep to."""


@dataclass(frozen=True)
class Alternative:
    """One change to the device-only engine, and what is then served from the device."""

    name: str
    served: float
    text: str


def alternatives(schedule: Schedule, arm: PlannedArm) -> Iterator[Alternative]:
    """By the serial replay, each against the device alone as it is."""
    yield Alternative("as it is", _served(schedule, arm, arm.device_blocks), "the device alone")
    yield Alternative("device memory × 2", _served(schedule, arm, 2 * arm.device_blocks), "twice the KV blocks")
    if "fp8" not in arm.setting.geometry.kv_dtype and "fp8" not in arm.profile.tiers.device.kv_dtype:
        text = "half the bytes a token, so twice the blocks and half the transfer; outputs change"
        yield Alternative("fp8 KV", _served(schedule, arm, 2 * arm.device_blocks), text)
    limited = _limited(schedule)
    if limited is not None:
        short, limit, left_out = limited
        text = f"prompts up to {limit:,} tokens only; {left_out:,} of {len(schedule.requests):,} are refused"
        yield Alternative("context limit", _served(short, arm, arm.device_blocks), text)


def _served(schedule: Schedule, arm: PlannedArm, blocks: int) -> float:
    tokens = expected_sources(schedule, block_tokens=arm.block_tokens, device_blocks=blocks)
    total = sum(tokens.values())
    return tokens["device"] / total if total else 0.0


def _limited(schedule: Schedule) -> tuple[Schedule, int, int] | None:
    """Without the longest prompts; None where that would tear sessions apart, or change nothing."""
    if any(request.continues is not None for request in schedule.requests):
        return None
    prompts = schedule.prompt_tokens()[len(schedule.prime) :]
    if not prompts:
        return None
    limit = int(np.quantile(prompts, _LIMIT_SHARE))
    kept = tuple(r for r, tokens in zip(schedule.requests, prompts, strict=True) if tokens <= limit)
    if len(kept) == len(prompts):
        return None
    return replace(schedule, requests=kept), limit, len(prompts) - len(kept)
