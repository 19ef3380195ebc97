"""Which member of a pool (or class of a mix) comes next: uniform, Zipf (member 0 the most popular), by weight."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Literal

from kvbench.spec.workload import Zipf
from kvbench.workload.randomness import Stream, exp, ln

__all__ = ["member_sampler", "weighted_sampler", "zipf_weights"]


def zipf_weights(count: int, exponent: float) -> list[float]:
    """`rank ** -exponent` for ranks 1 to `count`, not normalised."""
    return [exp(-exponent * ln(float(rank))) for rank in range(1, count + 1)]


def member_sampler(popularity: Literal["uniform"] | Zipf, count: int, stream: Stream) -> Callable[[], int]:
    """A function that draws the next member, 0 to `count` - 1, from `stream`."""
    if popularity == "uniform" or popularity.zipf == 0:
        return lambda: stream.below(count)
    return weighted_sampler(zipf_weights(count, popularity.zipf), stream)


def weighted_sampler(weights: Sequence[float], stream: Stream) -> Callable[[], int]:
    """A function that draws the next index from `stream`, each in proportion to its weight."""
    cumulative = list(accumulate(weights))
    return lambda: min(bisect_right(cumulative, stream.uniform() * cumulative[-1]), len(cumulative) - 1)
