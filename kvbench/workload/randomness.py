"""Random numbers of our own definition: they depend on (seed, label) alone, on every machine, OS, Python and numpy.

Library distributions change between versions, and `log`, `exp` and `pow` of the C library differ in the last bit
between platforms (numpy's even between processors). So: SHA-256 in counter mode gives the bits, and everything
behind it uses only +, -, *, / and sqrt, which IEEE 754 rounds exactly.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence

__all__ = ["Identities", "Stream", "cosine", "exp", "ln"]

_BITS = 52
"""Uniforms are (k + 1/2) / 2**52: exact doubles strictly between 0 and 1, so a logarithm is always finite."""
_HALF_STEP = 2.0**-_BITS
_ROOT_HALF = 0.7071067811865476
_LN2 = 0.6931471805599453
_LN2_HIGH = 0.6931471803691238
"""ln 2 rounded to 33 bits: times an exponent it is exact, so taking powers of two off loses nothing in `exp`."""
_LN2_LOW = 1.9082149292705877e-10
_ATANH_TERMS = tuple(1.0 / k for k in range(23, 0, -2))
_EXP_TERMS = tuple(1.0 / math.factorial(k) for k in range(14, -1, -1))
_COSINE_TERMS = tuple((-1.0) ** (k // 2) / math.factorial(k) for k in range(18, -1, -2))
_SINE_TERMS = tuple((-1.0) ** (k // 2) / math.factorial(k) for k in range(19, 0, -2))


def _horner(coefficients: Sequence[float], x: float) -> float:
    total = 0.0
    for coefficient in coefficients:
        total = total * x + coefficient
    return total


def ln(x: float) -> float:
    """Natural logarithm of a positive number, within a few units in the last place, by the atanh series."""
    mantissa, exponent = math.frexp(x)
    if mantissa < _ROOT_HALF:
        mantissa, exponent = mantissa * 2.0, exponent - 1
    z = (mantissa - 1.0) / (mantissa + 1.0)
    return exponent * _LN2 + 2.0 * z * _horner(_ATANH_TERMS, z * z)


def exp(x: float) -> float:
    """e ** x within a few units in the last place, by its Taylor series after taking powers of two off."""
    power = math.floor(x / _LN2 + 0.5)
    rest = (x - power * _LN2_HIGH) - power * _LN2_LOW
    return math.ldexp(_horner(_EXP_TERMS, rest), power)


def cosine(turns: float) -> float:
    """cos(2 pi turns) within a few units of 2**-52, by the Taylor series of an eighth of a turn."""
    part, sign = math.fmod(abs(turns), 1.0), 1.0  # exact, as are the differences below
    if part > 0.5:
        part = 1.0 - part
    if part > 0.25:
        part, sign = 0.5 - part, -1.0
    if part > 0.125:
        angle = 2.0 * math.pi * (0.25 - part)
        return sign * angle * _horner(_SINE_TERMS, angle * angle)
    angle = 2.0 * math.pi * part
    return sign * _horner(_COSINE_TERMS, angle * angle)


def _key(seed: int, label: Sequence[str | int]) -> bytes:
    """32 bytes for a seed and a label; JSON keeps ("a", "b") and ("ab",) apart."""
    return hashlib.sha256(json.dumps(["kvbench", 1, seed, *label], separators=(",", ":")).encode()).digest()


class Stream:
    """An endless sequence of draws named by `seed` and `label`. Streams with other labels are independent of it."""

    __slots__ = ("_block", "_key", "_spare_normal", "_words")

    def __init__(self, seed: int, *label: str | int) -> None:
        self._key = _key(seed, label)
        self._block = 0
        self._words: list[int] = []
        self._spare_normal: float | None = None

    def _word(self) -> int:
        """The next 64 bits: block b is SHA-256(key, b), read as four little-endian words, last word first."""
        if not self._words:
            digest = hashlib.sha256(self._key + self._block.to_bytes(8, "little")).digest()
            self._words = [int.from_bytes(digest[i : i + 8], "little") for i in (0, 8, 16, 24)]
            self._block += 1
        return self._words.pop()

    def uniform(self) -> float:
        """Strictly between 0 and 1."""
        return ((self._word() >> (64 - _BITS)) + 0.5) * _HALF_STEP

    def below(self, count: int) -> int:
        """A whole number from 0 to count - 1, all equally likely (to one part in 2**52 / count)."""
        return min(int(self.uniform() * count), count - 1)

    def exponential(self) -> float:
        """Mean 1, by its inverse distribution function."""
        return -ln(self.uniform())

    def normal(self) -> float:
        """Mean 0, variance 1, by Marsaglia's polar method (1964): it needs nothing but `ln` and a square root."""
        if self._spare_normal is not None:
            value, self._spare_normal = self._spare_normal, None
            return value
        while True:
            x, y = 2.0 * self.uniform() - 1.0, 2.0 * self.uniform() - 1.0
            square = x * x + y * y
            if 0.0 < square < 1.0:
                break
        scale = math.sqrt(-2.0 * ln(square) / square)
        self._spare_normal = y * scale
        return x * scale

    def gamma(self, shape: float) -> float:
        """Gamma with this shape and scale 1, by Marsaglia and Tsang (2000); below shape 1 by their power of U."""
        if shape < 1.0:
            return self.gamma(shape + 1.0) * exp(ln(self.uniform()) / shape)
        d = shape - 1.0 / 3.0
        c = 1.0 / math.sqrt(9.0 * d)
        while True:
            x = self.normal()
            v = 1.0 + c * x
            if v <= 0.0:
                continue
            v = v * v * v
            if ln(self.uniform()) < 0.5 * x * x + d - d * v + d * ln(v):
                return d * v


class Identities:
    """Names contents: `identities(3, 1)` is a 63-bit number, another one for every index, label and seed."""

    __slots__ = ("_key",)

    def __init__(self, seed: int, *label: str | int) -> None:
        self._key = _key(seed, label)

    def __call__(self, *index: int) -> int:
        name = b"".join(number.to_bytes(8, "little") for number in index)
        return int.from_bytes(hashlib.sha256(self._key + name).digest()[:8], "little") >> 1
