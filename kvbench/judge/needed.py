"""How many rounds an open question asks for, as a range: a spread seen in a few rounds is itself uncertain."""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy import special

from kvbench.judge.looks import t_quantile

__all__ = ["BEYOND", "MOST_UNITS", "units_for_rate", "units_needed", "units_until"]

MOST_UNITS = 1000
"""Beyond this no number is told."""
BEYOND = (MOST_UNITS + 1, MOST_UNITS + 1)
"""The range of what would take more units than that, however many."""


def units_needed(
    distance: float, spread: float, units: int, *, alpha: float, confidence: float
) -> tuple[int, int] | None:
    """Units after which a mean `distance` from the limit would be told apart from it, fewest and most.

    The ends belong to the ends of the chi-square interval of the standard deviation. None when nothing is known of
    the spread. An upper end beyond `MOST_UNITS` is cut off there; where the lower one is, the range is `BEYOND`.
    """
    if units < 2 or not spread > 0 or not math.isfinite(distance):
        return None
    freedom = units - 1
    tail = (1 - confidence) / 2
    least = spread * math.sqrt(freedom / float(special.chdtri(freedom, tail)))
    most = spread * math.sqrt(freedom / float(special.chdtri(freedom, 1 - tail)))
    low = _first(lambda n: t_quantile(alpha, n - 1) * least / math.sqrt(n) <= abs(distance))
    high = _first(lambda n: t_quantile(alpha, n - 1) * most / math.sqrt(n) <= abs(distance))
    return BEYOND if low is None else (low, high or MOST_UNITS)


def units_for_rate(
    failures: float, trials: float, units: int, limit: float, *, alpha: float
) -> tuple[int, int] | None:
    """Units after which the same rate of failures would be proven to lie on its side of `limit`; None when nothing
    was counted. Counts need not be whole."""
    if units < 1 or trials < 1:
        return None
    rate, per_unit = failures / trials, trials / units

    def settled(n: int) -> bool:
        seen = per_unit * n
        if rate <= limit:
            return float(special.betainccinv(rate * seen + 1, seen - rate * seen, alpha)) <= limit
        return float(special.betaincinv(rate * seen, seen - rate * seen + 1, alpha)) > limit

    return units_until(settled)


def units_until(settled: Callable[[int], bool]) -> tuple[int, int]:
    """The units after which a question is settled, one number: what is counted leaves no range; or `BEYOND`. Once
    settled it must stay so with more of them."""
    found = _first(settled)
    return BEYOND if found is None else (found, found)


def _first(holds: Callable[[int], bool]) -> int | None:
    """The smallest n from 2 to `MOST_UNITS` for which `holds`, which stays true once it is."""
    low, high = 2, MOST_UNITS
    if not holds(high):
        return None
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low
