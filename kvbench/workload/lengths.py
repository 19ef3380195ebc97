"""Draws of lengths (whole numbers from 1: tokens or turns) and of think times (seconds) as a workload file asks."""

from __future__ import annotations

from collections.abc import Callable

from kvbench.errors import InputError, Where
from kvbench.spec.bounds import LONGEST_S, MOST_TOKENS
from kvbench.spec.workload import Empirical, Geometric, Length, LogNormal, Think, Uniform
from kvbench.workload.randomness import Stream, exp, ln

__all__ = ["length_sampler", "think_sampler"]

_NORMAL_P95 = 1.6448536269514722
"""The 95th percentile of the standard normal distribution."""


def length_sampler(length: Length, stream: Stream) -> Callable[[], int]:
    """A function that draws the next length from `stream`. A plain number draws nothing from it."""
    match length:
        case Uniform():
            return _uniform(*length.uniform, stream)
        case LogNormal():
            draw = _lognormal(length.lognormal.median, length.lognormal.p95, stream)
            return lambda: min(max(1, round(draw())), MOST_TOKENS)
        case Geometric():
            return _geometric(length.geometric.mean, stream)
        case Empirical():
            return _empirical(length, stream)
        case int():
            return lambda: length


def think_sampler(think: Think | None, scale: float, stream: Stream) -> Callable[[], float]:
    """A function that draws the next pause in seconds, already times `scale`; no pause when the file gives none."""
    if think is None:
        return lambda: 0.0
    if isinstance(think, float | int):
        return lambda: think * scale
    draw = _lognormal(think.lognormal.median, think.lognormal.p95, stream)
    return lambda: min(draw(), LONGEST_S) * scale


def _uniform(low: int, high: int, stream: Stream) -> Callable[[], int]:
    return lambda: low + stream.below(high - low + 1)


def _empirical(length: Empirical, stream: Stream) -> Callable[[], int]:
    values = length.values
    if not values:
        raise InputError(
            "no lengths were read", where=Where(length.empirical), do="write one whole number per line"
        )
    return lambda: values[stream.below(len(values))]


def _lognormal(median: float, p95: float, stream: Stream) -> Callable[[], float]:
    """median * exp(sigma * normal), with sigma such that 95 % lie at or below `p95`."""
    sigma = ln(p95 / median) / _NORMAL_P95
    return lambda: median * exp(sigma * stream.normal())


def _geometric(mean: float, stream: Stream) -> Callable[[], int]:
    """1, 2, ... with success probability 1 / mean, by the inverse distribution function."""
    if mean == 1.0:
        return lambda: 1
    log_failure = ln(1.0 - 1.0 / mean)
    return lambda: min(1 + int(ln(stream.uniform()) / log_failure), MOST_TOKENS)
