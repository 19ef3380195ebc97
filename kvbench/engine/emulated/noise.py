"""How costs vary: a level that wanders and single steps around it, both on log level. Seeded; times in seconds."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator

import numpy as np

from kvbench.spec.emulation import Noise

__all__ = ["Variation", "seed_of"]


def seed_of(*parts: object) -> int:
    """One seed from anything that tells launches apart; the same on every machine."""
    digest = hashlib.blake2b("\0".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


class Variation:
    """Factors on the cost of steps and transfers.

    The level is AR(1) at the times it is asked for, with the correlation that an Ornstein-Uhlenbeck process has
    over the time between; every factor has mean 1.
    """

    def __init__(self, noise: Noise, seed: int) -> None:
        levels, steps = (np.random.Generator(np.random.PCG64([seed, stream])) for stream in (0, 1))
        self._normal = _normal(levels)
        self._kept: float | None = None
        self._singles = _log_normal(steps, noise.step)
        self._launch = noise.launch * next(self._normal) - noise.launch**2 / 2
        self._level_sd = noise.level
        self._correlation_s = noise.correlation
        self._level = noise.level * next(self._normal)
        self._at_s = 0.0

    def factor(self, now_s: float) -> float:
        """Of the launch and of the moment, without a single step's own."""
        if self._level_sd and now_s > self._at_s:
            kept = math.exp((self._at_s - now_s) / self._correlation_s)
            spread = self._level_sd * math.sqrt(1.0 - kept * kept)
            self._level = kept * self._level + spread * next(self._normal)
            self._at_s = now_s
        return math.exp(self._launch + self._level - self._level_sd**2 / 2)

    def single(self) -> float:
        """One step's own factor."""
        kept, self._kept = self._kept, None
        return next(self._singles) if kept is None else kept

    def put_back(self, single: float) -> None:
        """The step is not taken now; whatever step is next has this factor, or long ones would come too seldom."""
        self._kept = single


_AT_ONCE = 1024


def _normal(generator: np.random.Generator) -> Iterator[float]:
    while True:
        yield from generator.standard_normal(_AT_ONCE).tolist()


def _log_normal(generator: np.random.Generator, sd: float) -> Iterator[float]:
    """With mean 1."""
    while True:
        yield from np.exp(sd * generator.standard_normal(_AT_ONCE) - sd * sd / 2).tolist()
