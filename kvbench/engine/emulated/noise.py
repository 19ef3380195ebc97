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
        self._singles = _log_normal(steps, noise.step)
        self._drawn: list[float] = []
        self._next = 0
        """Of `drawn`, the first that no step has had."""
        self._launch = noise.launch * next(self._normal) - noise.launch**2 / 2
        self._level_sd = noise.level
        self._mean = noise.level**2 / 2
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
        return math.exp(self._launch + self._level - self._mean)

    def single(self) -> float:
        """One step's own factor."""
        if self._next == len(self._drawn):
            self._drawn, self._next = next(self._singles), 0
        self._next += 1
        return self._drawn[self._next - 1]

    def put_back(self) -> None:
        """The step is not taken now; whatever step is next has its factor, or long ones would come too seldom."""
        self._next -= 1

    def stretch(self, now_s: float, work_s: float, most: int, until_s: float) -> list[float]:
        """Ends of up to `most` steps of `work_s` each, one after the other from now on, as far as they end by
        `until_s`; as `single` and `put_back` would give them."""
        ends_s: list[float] = []
        end_s = now_s
        while len(ends_s) < most:
            if self._next == len(self._drawn):
                self._drawn, self._next = next(self._singles), 0
            for single in self._drawn[self._next : self._next + most - len(ends_s)]:
                end_s += work_s * single
                if end_s > until_s:
                    return ends_s
                ends_s.append(end_s)
                self._next += 1
        return ends_s


_AT_ONCE = 1024


def _normal(generator: np.random.Generator) -> Iterator[float]:
    while True:
        yield from generator.standard_normal(_AT_ONCE).tolist()


def _log_normal(generator: np.random.Generator, sd: float) -> Iterator[list[float]]:
    """With mean 1, many at a time."""
    while True:
        yield np.exp(sd * generator.standard_normal(_AT_ONCE) - sd * sd / 2).tolist()
