"""Rates of one arm: goodput, output throughput, errors; and exact bounds for shares that were counted.

Rates are over offered requests: a request that failed or never came back is one that missed its targets.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from scipy import special

from kvbench.judge.latency import RoundLatencies
from kvbench.judge.phases import within_measured
from kvbench.spec.workload import Workload

__all__ = ["good_requests", "ratio_bounds", "share_lower", "share_upper", "tokens_in_time", "untold_targets"]

BETWEEN_TOKENS = ("itl", "tpot")
Bools = npt.NDArray[np.bool_]


def good_requests(round_: RoundLatencies, workload: Workload, class_: str) -> int:
    """Offered requests that completed and met every latency target of their class.

    The ITL target is met when every gap of the request meets it, and so is TPOT's, by an answer of one token; a
    class without targets asks for completion. What is not known (`untold_targets`) was not met.
    """
    good: Bools = round_.of_class(class_) & round_.completed
    for members, metric, target in _targets(round_, workload):
        met = (round_.per_request(metric) <= target) | _has_no_gap(round_, metric)
        good &= ~members | met
    return int(good.sum())


def untold_targets(round_: RoundLatencies, workload: Workload, class_: str) -> int:
    """Completed requests of which a latency that has a target is not known: their tokens, or how many they were,
    were not recorded. An answer without a token is no such: that is known, and misses its targets."""
    untold = np.zeros(len(round_), dtype=bool)
    for members, metric, _ in _targets(round_, workload):
        untold |= members & np.isnan(round_.per_request(metric)) & ~_has_no_gap(round_, metric)
    empty = np.isnan(round_.column("first_token_s"))
    return int((untold & round_.of_class(class_) & round_.completed & ~empty).sum())


def _targets(round_: RoundLatencies, workload: Workload) -> Iterator[tuple[Bools, str, float]]:
    """Every target of the workload: whose it is, of which latency, and seconds."""
    for name in round_.classes:
        spec = workload.classes.get(name)
        if spec is None:
            continue
        members = round_.of_class(name)
        for metric in ("ttft", "itl", "tpot", "e2e"):
            target = getattr(spec.targets, metric)
            if target is not None:
                yield members, metric, target


def _has_no_gap(round_: RoundLatencies, metric: str) -> Bools:
    """Requests whose answer is one token, as asked for or as it ended, so that there is nothing between tokens."""
    if metric not in BETWEEN_TOKENS:
        return np.zeros(len(round_), dtype=bool)
    asked, received = round_.column("output_tokens_asked"), round_.column("output_tokens_received")
    return np.asarray((asked <= 1) | (received == 1))


def tokens_in_time(round_: RoundLatencies, workload: Workload, class_: str) -> int:
    """Output tokens of completed requests that arrived within measured phases."""
    tokens = round_.token_arrivals
    counted = tokens.of(round_.of_class(class_)) & within_measured(tokens.values, workload)
    return int(counted.sum())


def share_upper(hits: float, trials: float, alpha: float) -> float:
    """Exact one-sided upper bound of a share (Clopper and Pearson, 1934); 1 when nothing was tried. Counts need not
    be whole, where they are what so many rounds would hold."""
    if trials == 0 or hits >= trials:
        return 1.0
    return float(special.betainccinv(hits + 1, trials - hits, alpha))


def share_lower(hits: float, trials: float, alpha: float) -> float:
    """Exact one-sided lower bound of a share; 0 when nothing was tried."""
    if trials == 0 or hits <= 0:
        return 0.0
    return float(special.betaincinv(hits, trials - hits + 1, alpha))


def ratio_bounds(
    candidate: tuple[float, float], baseline: tuple[float, float], alpha_lower: float, alpha_upper: float
) -> tuple[float, float]:
    """Bounds of the ratio of two small shares, each (hits, trials).

    Given the hits of both together, those of the candidate are binomial, so the bounds are exact for rare events
    (Przyborowski and Wilenski, 1940). The upper end is infinite where the baseline has no hit.
    """
    hits, trials = candidate
    other, other_trials = baseline
    scale = other_trials / trials if trials else math.nan
    low = share_lower(hits, hits + other, alpha_lower)
    high = share_upper(hits, hits + other, alpha_upper)
    return _odds(low) * scale, _odds(high) * scale


def _odds(share: float) -> float:
    return math.inf if share >= 1 else share / (1 - share)
