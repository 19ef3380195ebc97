"""How the served share grows with a tier, and where it stops being worth it. Bytes, shares of prompt tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvbench.errors import InputError
from kvbench.plan.planned_arm import PlannedArm
from kvbench.plan.reuse import expected_sources
from kvbench.spec.bounds import LARGEST_BYTES
from kvbench.spec.quantity import parse_quantity
from kvbench.workload.schedule import Schedule

__all__ = ["KNEE", "Sweep", "SweepPoint", "host_sweep", "knee", "parse_sweep", "usual_sweep"]

KNEE = 0.9
"""The smallest size that brings nine tenths of what the largest one brings."""
_POINTS = 9
_MOST_BYTES = 2**50


@dataclass(frozen=True)
class Sweep:
    """Sizes of one tier."""

    tier: str
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class SweepPoint:
    """What is served with the tier at one size, nothing behind it."""

    size_bytes: int
    shares: dict[str, float]

    @property
    def served(self) -> float:
        """From any tier."""
        return 1.0 - self.shares["computed"]


def usual_sweep(arm: PlannedArm) -> Sweep:
    """From none to sixteen times the device, or to four times what the profile asks for."""
    device = arm.device_blocks * arm.block_bytes
    asked = arm.host_blocks * arm.block_bytes
    return Sweep("host", _spread(0, min(max(16 * device, 4 * asked), LARGEST_BYTES)))


def parse_sweep(text: str) -> Sweep:
    """`host=0..512GiB`: from nothing, then doubling up to the end. InputError says what would be valid."""
    tier, equals, span = text.partition("=")
    first, dots, last = span.partition("..")
    if tier.strip() != "host" or not equals or not dots:
        raise InputError(f"--sweep: expected host=FROM..TO, got {text[:60]!r}", do="for example host=0..512GiB")
    try:
        low, high = (round(parse_quantity(part.strip(), "bytes")) for part in (first, last))
    except ValueError as error:
        raise InputError(f"--sweep: {error}") from None
    if not 0 <= low < high <= _MOST_BYTES:
        what = f"--sweep: expected a range that rises, got {text[:60]!r}"
        raise InputError(what, do="for example host=0..512GiB")
    return Sweep("host", _spread(low, high))


def _spread(low: int, high: int) -> tuple[int, ...]:
    """Both ends, and between them sizes that double downwards from the larger one."""
    halves = (high >> power for power in range(_POINTS - 1))
    return tuple(sorted({low, *(size for size in halves if size > low)}))


def host_sweep(schedule: Schedule, arm: PlannedArm, sweep: Sweep) -> list[SweepPoint]:
    """By the serial replay with the engine's rules: no request overlaps another."""
    points = []
    for size in sweep.sizes:
        tokens = expected_sources(
            schedule,
            block_tokens=arm.block_tokens,
            device_blocks=arm.device_blocks,
            host_blocks=size // arm.block_bytes,
            host_rules=arm.host_rules,
        )
        total = sum(tokens.values()) or 1
        points.append(SweepPoint(size, {source: count / total for source, count in tokens.items()}))
    return points


def knee(points: Sequence[SweepPoint]) -> SweepPoint | None:
    """None when no size brings anything."""
    served = np.array([point.served for point in points])
    gain = served - served[0]
    if not len(points) or gain.max() <= 0:
        return None
    return points[int(np.argmax(gain >= KNEE * gain.max()))]
