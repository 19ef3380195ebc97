"""How small and how large a number may be that a user writes, and why.

Each bound lies far beyond what anybody measures and within what schedules, tables, clocks and sums can hold: a slip
of a unit is one error at its line, and no crash or endless loop much later.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import AfterValidator, ValidationInfo
from pydantic_core import PydanticCustomError

from kvbench.errors import InputError

__all__ = [
    "BANDWIDTH",
    "FACTOR",
    "FASTEST_PER_S",
    "GREATEST_CV",
    "LARGEST_BYTES",
    "LARGEST_SEED",
    "LEAST_CV",
    "LONGEST_S",
    "MOST_BURST",
    "MOST_CONCURRENCY",
    "MOST_COUNT",
    "MOST_ROUNDS",
    "MOST_THREADS",
    "MOST_TOKENS",
    "MOST_TURNS",
    "RATE",
    "SHORTEST_S",
    "SHORTEST_WINDOW_S",
    "SIZE",
    "SLOWEST_PER_S",
    "STEEPEST_ZIPF",
    "STORED",
    "TIME",
    "WEIGHT",
    "WINDOWS_PER_FOR",
    "Range",
    "between",
    "check_option",
    "is_stored",
    "within",
    "zero_or_between",
]

STORED = "a stored run"
"""Context in which a run's manifest is validated."""

MOST_TOKENS = 1_000_000_000
"""Of one length. A hundred times what any model reads, and a session of a million turns still fits 64 bits."""
MOST_COUNT = 1_000_000_000
"""Of blocks, chunks and requests. A billion blocks of 16 tokens are more KV than any machine holds."""
MOST_TURNS = 10_000
"""Of one session. A turn takes a model seconds, so that a session of more would last days; what plans make of a
session grows with the square of its turns."""
MOST_CONCURRENCY = 1_000_000
"""As many as a round may have requests: more could never be under way together."""
MOST_BURST = 1_000_000
"""As many as a round may have requests."""
MOST_ROUNDS = 1_000
"""A schedule is built for each and paths of t statistics are simulated for each look, 0.1 s a round; the ratio of
two arms that differ by less than a thousand rounds resolve is nothing that a user notices."""
MOST_THREADS = 4_096
"""An operating system refuses more in one process, and no disk answers so many at once."""
LEAST_CV = 0.01
"""Of the gaps between arrivals: even ones would do as well, which `process: constant` has. The shape of the gamma
distribution is 1 / cv**2."""
GREATEST_CV = 100.0
"""Of these gaps: ten thousand arrivals come at once, and then none for as long. Beyond it nearly
every gap is zero."""
STEEPEST_ZIPF = 20.0
"""The second member of a pool would be asked for once in a million times, so the pool has one member."""
LARGEST_SEED = 2**63 - 1
"""Seeds are kept as whole numbers of 64 bits with a sign."""
LARGEST_BYTES = 2**60
"""1 EiB: sizes are kept as whole numbers of 64 bits, and their sums must fit, too."""
SHORTEST_S = 1e-6
"""Of a time that must be above zero. Clocks and sleeps of an operating system are no finer."""
LONGEST_S = 365 * 86_400.0
"""A year. No round, wait or time-out is as long; up to here a microsecond is still told apart in a double."""
SLOWEST_PER_S = 1e-6
"""Once in twelve days: no round is long enough to see a slower rate send anything."""
FASTEST_PER_S = 1e6
"""A request a microsecond, the finest that times tell apart."""
SHORTEST_WINDOW_S = 0.1
"""Of a sustained rule: in less no engine answers the 20 requests that a window needs."""
WINDOWS_PER_FOR = 1_000
"""So many windows at most in the `for` of a sustained rule: ten moments of each window are looked at."""


@dataclass(frozen=True)
class Range:
    """Both ends are inside; `words` say them as a user would write them."""

    least: float
    most: float
    words: str

    def __contains__(self, value: float) -> bool:
        return self.least <= value <= self.most


TIME = Range(SHORTEST_S, LONGEST_S, "1us and 365d")
RATE = Range(SLOWEST_PER_S, FASTEST_PER_S, "0.000001/s and 1000000/s")
SIZE = Range(1, LARGEST_BYTES, "1B and 1024PiB")
BANDWIDTH = Range(1.0, LARGEST_BYTES, "1B/s and 1024PiB/s")
FACTOR = Range(1e-6, 1e6, "0.000001 and 1000000")
"""Of what scales something, and of ratios: the product with a time or a length is still one that can be kept."""
WEIGHT = Range(1e-9, 1e9, "0.000000001 and 1000000000")
"""Of a class among others. A round has a million requests at most, so one of a thousandth of a millionth has none;
and weights are summed, which must stay finite."""


def between(least: float, most: float) -> AfterValidator:
    """Refuses what lies outside, in one sentence that names both ends."""
    return within(Range(least, most, f"{_plain(least)} and {_plain(most)}"))


def within(range_: Range) -> AfterValidator:
    """`between` for a range that has a name."""
    return AfterValidator(lambda value, info: _checked(value, range_, "must lie between ", info))


def zero_or_between(range_: Range) -> AfterValidator:
    """As `within`, where nothing at all may be said, too."""
    return AfterValidator(
        lambda value, info: value if value == 0 else _checked(value, range_, "must be 0 or lie between ", info)
    )


def check_option(option: str, value: float, range_: Range, written: str) -> float:
    """`value`, which was written behind `option` on the command line. InputError when it lies outside."""
    if value not in range_:
        raise InputError(f"{option}: must lie between {range_.words}, got {written[:60]}")
    return value


def is_stored(info: ValidationInfo) -> bool:
    """Whether it is what a run began with that is read, which was checked by the version that began it."""
    return info.context == STORED


def _checked(value: float, range_: Range, must: str, info: ValidationInfo) -> float:
    if value not in range_ and not is_stored(info):
        raise PydanticCustomError("bounds", "{text}", {"text": f"{must}{range_.words}"})
    return value


def _plain(number: float) -> str:
    """Without an exponent: `1000000`, `0.01`."""
    return str(round(number)) if number == round(number) else f"{number:.12f}".rstrip("0")
