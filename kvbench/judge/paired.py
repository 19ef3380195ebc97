"""Intervals from a handful of independent values, one a unit: t intervals, wider while looking early.

For ratios the values are log ratios of per-round quantiles, paired by schedule; for budgets they are the
candidate's own values. Request-level tests are not used: under queueing they raise false alarms in most runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvbench.judge.looks import Look, multiplier, t_quantile

__all__ = ["NO_SPREAD", "Estimate", "Levels", "estimate", "sign_flip"]

NO_SPREAD = 1e-9
"""Independent measurements that agree to nine digits were not measured, so such a spread supports no interval,
unless it is told what they are known to."""
FLIPPED = range(6, 15)
"""How many values a sign-flip test is shown for: of five, none can be significant at 5 %; of fifteen there are more
flips than the figure is worth."""


@dataclass(frozen=True)
class Levels:
    """One-sided levels: to prove the lower end, and to prove the upper end."""

    lower: float
    upper: float


@dataclass(frozen=True)
class Estimate:
    """A mean with its plain interval and the interval that decides."""

    mean: float
    spread: float
    """Standard deviation of the values; NaN of fewer than two."""
    units: int
    ci: tuple[float, float] | None
    decision: tuple[float, float] | None
    """None: nothing can be decided from these values at this look."""

    @property
    def degenerate(self) -> bool:
        """Whether there are values but no spread between them."""
        return self.units > 1 and self.ci is None


def estimate(
    values: Sequence[float], look: Look, *, confidence: float, levels: Levels, resolution: float = 0.0
) -> Estimate:
    """Estimate the mean of `values`, all finite. `resolution`, what they are known to, is a floor for the spread; 0
    stands for values that are never the same twice.

    `look.done` is the number of units in the run; it must be len(values).
    """
    n = len(values)
    mean = float(np.mean(values)) if n else math.nan
    if n < 2:
        return Estimate(mean, math.nan, n, None, None)
    spread = max(float(np.std(values, ddof=1)), resolution)
    if spread < NO_SPREAD and not resolution:
        return Estimate(mean, spread, n, None, None)
    error = spread / math.sqrt(n)
    plain = t_quantile((1 - confidence) / 2, n - 1) * error
    decision = None
    below, above = multiplier(levels.lower, look), multiplier(levels.upper, look)
    if below is not None and above is not None and math.isfinite(below) and math.isfinite(above):
        decision = (mean - below * error, mean + above * error)
    return Estimate(mean, spread, n, (mean - plain, mean + plain), decision)


def sign_flip(values: Sequence[float]) -> float | None:
    """Two-sided p of the exact sign-flip test that the mean is zero (Fisher, 1935): a description beside intervals.

    None where there are too few values for it to say anything, or too many.
    """
    if len(values) not in FLIPPED:
        return None
    flips = 1 - 2 * (np.arange(2 ** len(values))[:, None] >> np.arange(len(values)) & 1)
    sums = np.abs(flips @ np.asarray(values))
    rounding = 1e-12 * sum(map(abs, values))
    return float(np.mean(sums >= abs(sum(values)) - rounding))
