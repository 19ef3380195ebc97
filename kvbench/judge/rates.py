"""Rates of one arm: goodput, output throughput, errors; and exact bounds for shares that were counted.

Rates are over offered requests: a request that failed or never came back is one that missed its targets.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy import special

from kvbench.judge.latency import RoundLatencies
from kvbench.judge.phases import within_measured
from kvbench.spec.workload import Workload

__all__ = ["good_requests", "ratio_bounds", "share_lower", "share_upper", "tokens_in_time"]


def good_requests(round_: RoundLatencies, workload: Workload, class_: str) -> int:
    """Offered requests that completed and met every latency target of their class.

    The ITL target is met when every gap of the request meets it; a class without targets asks for completion.
    """
    good: npt.NDArray[np.bool_] = round_.of_class(class_) & round_.completed
    for name in round_.classes:
        spec = workload.classes.get(name)
        if spec is None:
            continue
        members = round_.of_class(name)
        for metric in ("ttft", "itl", "tpot", "e2e"):
            target = getattr(spec.targets, metric)
            if target is not None:
                late = round_.per_request(metric) > target
                good &= ~(members & late)
    return int(good.sum())


def tokens_in_time(round_: RoundLatencies, workload: Workload, class_: str) -> int:
    """Output tokens of completed requests that arrived within measured phases."""
    times, owners = round_.token_arrivals
    counted = round_.of_class(class_)[owners] & within_measured(times, workload)
    return int(counted.sum())


def share_upper(hits: int, trials: int, alpha: float) -> float:
    """Exact one-sided upper bound of a share (Clopper and Pearson, 1934); 1 when nothing was tried."""
    if trials == 0 or hits >= trials:
        return 1.0
    return float(special.betainccinv(hits + 1, trials - hits, alpha))


def share_lower(hits: int, trials: int, alpha: float) -> float:
    """Exact one-sided lower bound of a share; 0 when nothing was tried."""
    if trials == 0 or hits <= 0:
        return 0.0
    return float(special.betaincinv(hits, trials - hits + 1, alpha))


def ratio_bounds(
    candidate: tuple[int, int], baseline: tuple[int, int], alpha_lower: float, alpha_upper: float
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
