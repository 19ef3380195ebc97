"""What a prompt token costs from a source: a line through TTFT by prefix length, with intervals. Seconds, tokens.

Pure arithmetic. The line is fitted to relative deviations (a long prefill varies by more seconds than a short one)
and robustly, so that a request which met a hiccup of the machine does not move it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

__all__ = ["BreakEven", "CostLine", "break_even", "crossing", "fit_cost", "huber_fit"]

Numbers = NDArray[np.float64]

HUBER = 1.345
"""Huber (1981): deviations beyond so many standard deviations count less; 95 % efficient where noise is normal."""
_MAD_TO_SD = 1.4826
_ITERATIONS = 50
_THOUSAND = 1000.0
"""Tokens are fitted in thousands, so that squares stay near 1."""


@dataclass(frozen=True)
class CostLine:
    """TTFT = base + per token × tokens, or with a square term where `coefficients` has three entries."""

    per_token_s: float
    """Mean slope between `shortest` and `longest`."""
    ci: tuple[float, float] | None
    """Of `per_token_s`; None: too few independent groups for an interval."""
    base_s: float
    n: int
    groups: int
    shortest: float
    longest: float
    coefficients: Numbers
    covariance: Numbers
    t: float
    """Quantile of Student's t that the interval is made with; NaN where there is none."""

    def at(self, tokens: Numbers) -> tuple[Numbers, Numbers]:
        """Seconds at these lengths, and their standard errors."""
        design = _design(tokens, len(self.coefficients))
        errors = np.sqrt(np.einsum("ij,jk,ik->i", design, self.covariance, design).clip(min=0.0))
        return design @ self.coefficients, errors


@dataclass(frozen=True)
class BreakEven:
    """The prefix length from which on a hit is cheaper than computing."""

    tokens: int | None
    """None: a hit is not cheaper up to the longest prefix looked at."""
    ci: tuple[int | None, int | None]
    """From where on it may be so, and from where on it is proven; None: nowhere."""


def fit_cost(
    tokens: Sequence[float],
    seconds: Sequence[float],
    groups: Sequence[int] | None = None,
    *,
    curved: bool = False,
    confidence: float = 0.95,
) -> CostLine | None:
    """A line (`curved`: a parabola, where there are three lengths) through the points.

    `groups` says which points belong together, because they were taken close in time and share the machine's mood;
    the interval counts groups, not points. None when there are fewer than two lengths.
    """
    x, y = np.asarray(tokens, np.float64), np.asarray(seconds, np.float64)
    lengths = len(np.unique(x))
    if lengths < 2 or not np.all(y > 0):
        return None
    width = 3 if curved and lengths >= 3 else 2
    design = _design(x, width)
    coefficients, fitted, scale = huber_fit(design, y)
    labels = np.arange(len(x)) if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1]
    count = int(labels.max()) + 1
    covariance = _covariance(design, y, fitted, scale, labels)
    ends = _design(np.array([x.min(), x.max()]), width)
    contrast = (ends[1] - ends[0]) / (x.max() - x.min())
    slope = float(contrast @ coefficients)
    free = count - width
    t = float(special.stdtrit(free, 0.5 + confidence / 2)) if free >= 2 else float("nan")
    error = float(np.sqrt(max(contrast @ covariance @ contrast, 0.0)))
    return CostLine(
        per_token_s=slope,
        ci=(slope - t * error, slope + t * error) if free >= 2 else None,
        base_s=float(coefficients[0]),
        n=len(x),
        groups=count,
        shortest=float(x.min()),
        longest=float(x.max()),
        coefficients=coefficients,
        covariance=covariance,
        t=t,
    )


def break_even(hit: CostLine, computed: CostLine, *, smallest: int, longest: int) -> BreakEven:
    """Where the two lines cross, looked for from `smallest` (the shortest prefix that can be hit) to `longest`."""
    lengths = np.arange(smallest, longest + 1, dtype=np.float64)
    hit_s, hit_error = hit.at(lengths)
    computed_s, computed_error = computed.at(lengths)
    gap = hit_s - computed_s
    # Where either line has no interval, anything may be and nothing is proven.
    known = math.isfinite(hit.t + computed.t)
    margin = max(hit.t, computed.t) * np.hypot(hit_error, computed_error) if known else np.full_like(gap, np.inf)
    return BreakEven(
        tokens=_from_where(gap <= 0, smallest),
        ci=(_from_where(gap - margin <= 0, smallest), _from_where(gap + margin <= 0, smallest)),
    )


def crossing(
    lengths: Sequence[float],
    gaps: Sequence[tuple[float, float, float]],
    *,
    smallest: int,
    longest: int,
) -> BreakEven:
    """Where the measured gap between a hit and computing closes for good; straight lines between measured lengths.

    `gaps`: at each of the rising `lengths`, seconds by which a hit is slower, with the ends of its interval.
    """
    at = np.arange(smallest, longest + 1, dtype=np.float64)
    columns = zip(*gaps, strict=True)
    gap = np.interp(at, lengths, next(columns))
    # Beyond what was measured anything may be, and nothing is proven.
    low = np.interp(at, lengths, next(columns), left=-np.inf, right=-np.inf)
    high = np.interp(at, lengths, next(columns), left=np.inf, right=np.inf)
    return BreakEven(
        tokens=_from_where(gap <= 0, smallest),
        ci=(_from_where(low <= 0, smallest), _from_where(high <= 0, smallest)),
    )


def _from_where(holds: NDArray[np.bool_], smallest: int) -> int | None:
    """The first length from which on it holds to the end."""
    broken = np.flatnonzero(~holds)
    if len(broken) == 0:
        return smallest
    return None if broken[-1] == len(holds) - 1 else smallest + int(broken[-1]) + 1


def _design(tokens: Numbers, width: int) -> Numbers:
    return np.vander(np.asarray(tokens, np.float64) / _THOUSAND, width, increasing=True)


def huber_fit(design: Numbers, y: Numbers) -> tuple[Numbers, Numbers, float]:
    """Coefficients, fitted values and the relative scale, by reweighting until nothing moves."""
    fitted = np.full(len(y), float(np.median(y)))
    weights = np.ones(len(y))
    coefficients = np.zeros(design.shape[1])
    scale = 0.0
    floor = 0.05 * float(y.min())
    for _ in range(_ITERATIONS):
        root = np.sqrt(weights) / fitted
        before, coefficients = coefficients, np.linalg.lstsq(design * root[:, None], y * root, rcond=None)[0]
        fitted = np.maximum(design @ coefficients, floor)  # TTFT is positive; a bad start may not be
        relative = (y - fitted) / fitted
        scale = _MAD_TO_SD * float(np.median(np.abs(relative)))
        size = np.abs(relative)
        weights = np.ones(len(y)) if scale == 0 else np.minimum(1.0, HUBER * scale / np.maximum(size, 1e-300))
        if np.allclose(coefficients, before, rtol=1e-9, atol=1e-15):
            break
    return coefficients, fitted, scale


def _covariance(design: Numbers, y: Numbers, fitted: Numbers, scale: float, labels: NDArray[np.int_]) -> Numbers:
    """The sandwich for M-estimators, summed over groups; the factor for few groups is Cameron & Miller's (2015)."""
    relative = (y - fitted) / fitted
    limit = HUBER * scale if scale > 0 else np.inf
    rows = design / fitted[:, None]
    bread = rows[np.abs(relative) <= limit]
    inverse = np.linalg.pinv(bread.T @ bread)
    count, (n, width) = int(labels.max()) + 1, design.shape
    scores = np.zeros((count, width))
    np.add.at(scores, labels, rows * np.clip(relative, -limit, limit)[:, None])
    factor = count / max(count - 1, 1) * (n - 1) / max(n - width, 1)
    covariance: Numbers = factor * inverse @ (scores.T @ scores) @ inverse
    return covariance
