"""How far a comparison has got, and how far from the limit an estimate must lie to decide at this point.

Looking after every round would raise the false alarms, so the level is spent over the looks: after k of at most n
rounds alpha * (k / n)**2 of it is gone. The boundaries are those of t paths: paths of one-sample t statistics.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import special

from kvbench.judge.boundary_table import BOUNDARIES

__all__ = ["Look", "boundaries", "multiplier", "nominal_level", "simulate_boundaries", "t_quantile"]

PATHS = 2**20
"""Simulated paths where the table has no entry; each is also used mirrored. The multipliers are then good to 2 %.
"""
SEED = 20240607


@dataclass(frozen=True)
class Look:
    """`done` independent units of at most `last`; no verdict was asked for before `first`."""

    done: int
    first: int
    last: int

    @property
    def first_decision(self) -> int:
        """The first look that can decide: a single value has no spread, so one unit is enough only as the plan."""
        return min(max(self.first, 2), max(self.last, self.done))

    @property
    def final(self) -> int:
        """The look at which the whole level is spent."""
        return max(self.last, self.done)

    @property
    def at_end(self) -> Look:
        """The last look of the same plan, for what is asked of rounds that are still to come."""
        return Look(self.final, self.first, self.final)

    @property
    def decides(self) -> bool:
        """Whether anything may be decided at this look."""
        return self.done >= self.first_decision and self.done >= self.first


@lru_cache(maxsize=4096)
def t_quantile(alpha: float, freedom: int) -> float:
    """What a t statistic exceeds with probability `alpha`."""
    return float(-special.stdtrit(freedom, alpha))


def multiplier(alpha: float, look: Look) -> float | None:
    """How many standard errors the limit must lie from the mean; None where no interval exists (yet).

    `alpha` is the one-sided level of the whole sequence of looks.
    """
    if not look.decides or look.done < 2:
        return None
    return boundaries(alpha, look.first_decision, look.final)[look.done - look.first_decision]


def nominal_level(alpha: float, look: Look) -> float | None:
    """The level at which an exact bound is taken at this look; None where nothing may be decided.

    It is the tail of the t distribution beyond the boundary: the same spending for statistics that are not t.
    """
    if not look.decides:
        return None
    if look.final == 1:
        return alpha
    boundary = multiplier(alpha, look)
    return None if boundary is None else float(special.stdtr(look.done - 1, -boundary))


def boundaries(alpha: float, first: int, last: int) -> tuple[float, ...]:
    """Multipliers for the looks `first` to `last` (2 <= first <= last); the plain t when they are the same."""
    if first == last:
        return (t_quantile(alpha, last - 1),)
    stored = BOUNDARIES.get((round(alpha, 9), first, last))
    return stored if stored is not None else _simulated(round(alpha, 9), first, last)


@lru_cache(maxsize=64)
def _simulated(alpha: float, first: int, last: int) -> tuple[float, ...]:
    return simulate_boundaries(alpha, first, last, paths=PATHS, seed=SEED)


def simulate_boundaries(alpha: float, first: int, last: int, *, paths: int, seed: int) -> tuple[float, ...]:
    """Boundaries from simulated t paths under a true effect at the limit. The first look is exact.

    Every path is counted as it is and mirrored: both are paths of the same law, and tails hardly overlap.
    """
    rng = np.random.default_rng(seed)
    total = np.zeros(paths, dtype=np.float32)
    squares = np.zeros(paths, dtype=np.float32)
    inside = [np.ones(paths, dtype=bool), np.ones(paths, dtype=bool)]
    found: list[float] = []
    crossed = 0
    for done in range(1, last + 1):
        step = rng.standard_normal(paths, dtype=np.float32)
        total += step
        squares += step * step
        if done < first:
            continue
        t = _t_statistic(total, squares, done)
        spent = alpha * (done / last) ** 2
        if done == first:
            boundary = t_quantile(spent, done - 1)
        else:
            boundary = _boundary(t, inside, round(spent * 2 * paths) - crossed)
        found.append(boundary)
        for side, sign in enumerate((1, -1)):
            beyond = inside[side] & (sign * t > boundary)
            crossed += int(beyond.sum())
            inside[side] &= ~beyond
    return tuple(found)


def _t_statistic(
    total: npt.NDArray[np.float32], squares: npt.NDArray[np.float32], done: int
) -> npt.NDArray[np.float32]:
    variance = np.maximum(squares - total * total / done, np.float32(1e-12)) / (done - 1)
    return np.asarray(total / np.sqrt(variance * done), dtype=np.float32)


def _boundary(t: npt.NDArray[np.float32], inside: list[npt.NDArray[np.bool_]], crossings: int) -> float:
    """The value that `crossings` of the paths still inside lie beyond."""
    if crossings < 1:
        return float("inf")
    pooled = np.concatenate([t[inside[0]], -t[inside[1]]])
    rank = len(pooled) - crossings - 1
    return float(np.partition(pooled, rank)[rank])
