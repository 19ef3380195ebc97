"""What a histogram's buckets tell of a budget and of a quantile: bounds, not numbers. Pure; seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from kvbench.canary.families import FINISHED, LATENCY_FAMILIES
from kvbench.canary.series import Floats, Key, Replica
from kvbench.judge.bucket_bounds import quantile_bounds

__all__ = ["Counts", "bucket_keys", "counts_over", "edges_of", "quantile_bounds"]

EDGE = 1e-9
"""Edges are decimal text; a budget that is one is equal to it within rounding."""


@dataclass(frozen=True, eq=False)
class Counts:
    """One replica's samples along its scrapes, and how many of them were over a budget.

    `over_least` counts what lies above the first edge at or beyond the budget, `over_most` what lies above the last
    edge at or before it: the truth is between, and they are the same where the budget is an edge.
    """

    replica: str
    t_s: Floats
    steps_s: Floats
    samples: Floats
    over_least: Floats
    over_most: Floats
    requests: Floats
    """Requests behind the samples: the same but for ITL."""
    edges: tuple[float, float]
    """The edges at which `over_most` and `over_least` are counted."""
    unusual: tuple[float, ...] = ()
    """Scrapes before which others are missing."""

    @property
    def exact(self) -> bool:
        """Whether the budget is an edge."""
        return self.edges[0] == self.edges[1]


@lru_cache(maxsize=4096)
def _edge(labels: tuple[tuple[str, str], ...]) -> float:
    return float(dict(labels).get("le", "nan").replace("+Inf", "inf"))


def edges_of(replica: Replica, metric: str) -> list[float]:
    """Upper edges of a latency's buckets, rising, the last infinite; empty when it has none."""
    name = LATENCY_FAMILIES[metric] + "_bucket"
    return sorted({_edge(key[1]) for key in replica.samples if key[0] == name})


def bucket_keys(replica: Replica, metric: str, edge: float) -> list[Key]:
    """The series that count what is at most `edge`."""
    name = LATENCY_FAMILIES[metric] + "_bucket"
    return [key for key in replica.samples if key[0] == name and _edge(key[1]) == edge]


def counts_over(replica: Replica, metric: str, budget_s: float) -> Counts | None:
    """How many samples of a replica were over `budget_s`; None where it has no such histogram."""
    edges = edges_of(replica, metric)
    if not edges:
        return None
    below = max((edge for edge in edges if edge <= budget_s * (1 + EDGE)), default=0.0)
    above = min((edge for edge in edges if edge >= budget_s * (1 - EDGE)), default=math.inf)
    samples = replica.grown(replica.keys(LATENCY_FAMILIES[metric] + "_count"))
    within_least = replica.grown(bucket_keys(replica, metric, below)) if below > 0 else np.zeros(len(samples))
    within_most = replica.grown(bucket_keys(replica, metric, above)) if math.isfinite(above) else samples
    requests = _requests(replica, metric, samples)
    known = ~(np.isnan(samples) | np.isnan(within_least) | np.isnan(within_most) | np.isnan(requests))
    gaps = replica.t_s[known & replica.after_gap]
    return Counts(
        replica.name,
        replica.t_s[known],
        replica.steps_s[known],
        samples[known],
        np.maximum(samples - within_most, 0)[known],
        np.maximum(samples - within_least, 0)[known],
        requests[known],
        (below, above),
        tuple(gaps.tolist()),
    )


def _requests(replica: Replica, metric: str, samples: Floats) -> Floats:
    if metric != "itl":
        return samples
    return replica.grown(replica.keys(FINISHED))
