"""How well a single round knows its own quantile: a block bootstrap over its requests in order of time. Seconds.

It describes and decides nothing: requests that queue together are not independent, and blocks make up for that only
as far as they outlast the queue. Blocks do not overlap (Carlstein, 1986); the same round gives the same ends.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from kvbench.judge.latency import RoundLatencies

__all__ = ["within_round"]

Counts = npt.NDArray[np.int64]

BLOCKS = 20
"""Fewer tell little about how blocks differ; more are shorter."""
FEWEST_A_BLOCK = 2
DRAWS = 400
"""Ends at 2.5 % then have ten draws beyond them."""
STEPS = 1000
"""Values at which draws are counted; finer than any quantile that is judged needs."""
SEED = 20260215


def within_round(
    round_: RoundLatencies, metric: str, class_: str, quantile: float, *, confidence: float
) -> tuple[float, float] | None:
    """Ends for the quantile of a latency that a request has one of. None for ITL, for too few requests, and where
    users left before their first token."""
    chosen = round_.of_class(class_)
    if metric == "itl" or not np.isnan(round_.waited(metric)[chosen]).all():
        return None
    values = np.minimum(round_.per_request(metric), round_.timeout_s)
    chosen &= round_.counted(metric)
    values = values[chosen][np.argsort(round_.column("intended_s")[chosen], kind="stable")]
    n = len(values)
    if n < FEWEST_A_BLOCK * BLOCKS:
        return None
    steps = np.sort(values)[np.linspace(0, n - 1, min(n, STEPS)).round().astype(np.int64)]
    blocks = [np.sort(block) for block in np.array_split(values, BLOCKS)]
    at_most = np.stack([np.searchsorted(block, steps, side="right") for block in blocks])
    found = steps[_first_steps(_drawn(), at_most, quantile)]
    low, high = np.quantile(found, ((1 - confidence) / 2, (1 + confidence) / 2))
    return float(low), float(high)


@cache
def _drawn() -> Counts:
    """How often each draw (a row) has each block; the same for every round."""
    return np.random.default_rng(SEED).multinomial(BLOCKS, [1 / BLOCKS] * BLOCKS, size=DRAWS)


def _first_steps(drawn: Counts, at_most: Counts, quantile: float) -> Counts:
    """For each draw (a row: how often it has each block) the first step that `quantile` of its values stay within.

    `at_most`: of each block (a row) how many values lie at or below each step.
    """
    needed = quantile * (drawn @ at_most[:, -1])
    low, high = np.zeros(len(drawn), np.int64), np.full(len(drawn), at_most.shape[1] - 1)
    while np.any(low < high):
        middle = (low + high) // 2
        enough = (drawn * at_most[:, middle].T).sum(axis=1) >= needed
        low, high = np.where(enough, low, middle + 1), np.where(enough, middle, high)
    return low
