"""What a prompt token costs from each source where prompts mix sources: a line through TTFT. Seconds, tokens.

    TTFT = base + device, host, disk and computed tokens × their costs + once for a load + once for a read from disk

fitted robustly to all requests of all rounds (Huber's M-estimator, as `costs` fits single sources). Intervals come
from leaving out one round after the other (Quenouille's and Tukey's jackknife, over rounds because requests of one
round are not independent: Cameron, Gelbach and Miller 2008) with Student's t. Pure arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from kvbench.plan.costs import huber_fit

__all__ = ["METHOD", "Interval", "MixFit", "Requests", "fit_mix"]

Numbers = NDArray[np.float64]
Interval = tuple[float, float]

METHOD = "Huber regression of TTFT from the actual send on tokens by source; intervals by the jackknife over rounds"
PER_TOKEN = ("device", "host", "disk", "computed")
BASE, ARM, LOAD, READ = "base", "candidate arm", "load", "read"
_THOUSAND = 1000.0
"""Tokens are fitted in thousands, so that the columns have similar sizes."""
_FEWEST = 8
"""Requests that must have what a column stands for; of fewer nothing is said."""


@dataclass(frozen=True, eq=False)
class Requests:
    """Requests of all rounds in columns of equal length."""

    tokens: Mapping[str, Numbers]
    """By source."""
    seconds: Numbers
    """TTFT from the actual send."""
    groups: NDArray[np.int64]
    """What is left out together: rounds, or whatever shares the machine's mood."""
    of_candidate: NDArray[np.bool_]
    """Arms wait differently long, whatever their prompts cost."""

    def only(self, chosen: NDArray[np.bool_]) -> Requests:
        """Some of them."""
        return Requests(
            {source: tokens[chosen] for source, tokens in self.tokens.items()},
            self.seconds[chosen],
            self.groups[chosen],
            self.of_candidate[chosen],
        )

    def columns(self) -> dict[str, Numbers]:
        """What TTFT is explained by."""
        behind = self.tokens["host"] + self.tokens["disk"]
        return {
            BASE: np.ones(len(self.seconds)),
            ARM: self.of_candidate.astype(np.float64),
            **{source: self.tokens[source] / _THOUSAND for source in PER_TOKEN},
            LOAD: (behind > 0).astype(np.float64),
            READ: (self.tokens["disk"] > 0).astype(np.float64),
        }


@dataclass(frozen=True, eq=False)
class MixFit:
    """The line, and the lines without one group each."""

    coefficients: dict[str, float]
    without: tuple[dict[str, float], ...]
    n: int
    confidence: float

    def per_token_s(self, source: str) -> float | None:
        """Of one more token; None where too few requests had any from there."""
        return _scaled(self.coefficients.get(source))

    def fixed_s(self, tier: str) -> float | None:
        """Of a hit in a tier behind the device, however long."""
        return _fixed(self.coefficients, tier)

    def saved_per_token_s(self, tier: str) -> float | None:
        """By how much a token from a tier costs less than a computed one."""
        promoted = self.per_token_s(tier)
        computed = self.per_token_s("computed")
        return None if promoted is None or computed is None else computed - promoted

    def break_even(self, tier: str) -> float | None:
        """Tokens from which on a promotion is faster than computing; infinite: never."""
        return _break_even(self.coefficients, tier)

    def interval(self, of: Callable[[MixFit], float | None]) -> Interval | None:
        """Of any figure of the line; None when it is not there, or not without every one of the groups."""
        whole = of(self)
        each = [of(MixFit(found, (), self.n, self.confidence)) for found in self.without]
        known = [value for value in each if value is not None and math.isfinite(value)]
        count = len(known)
        if whole is None or not math.isfinite(whole) or count < 2 or count < len(each):
            return None
        variance = (count - 1) / count * float(np.sum((np.array(known) - np.mean(known)) ** 2))
        margin = float(special.stdtrit(count - 1, 0.5 + self.confidence / 2)) * math.sqrt(variance)
        return whole - margin, whole + margin

    def predicted(self, requests: Requests) -> Numbers:
        """TTFT of requests by the line."""
        total = np.zeros(len(requests.seconds))
        for name, column in requests.columns().items():
            total += self.coefficients.get(name, 0.0) * column
        return total

    def computed_instead(self, requests: Requests) -> Numbers:
        """TTFT by the line if what tiers behind the device delivered had been computed."""
        behind = requests.tokens["host"] + requests.tokens["disk"]
        none = np.zeros(len(behind))
        tokens = {**requests.tokens, "host": none, "disk": none, "computed": requests.tokens["computed"] + behind}
        return self.predicted(Requests(tokens, requests.seconds, requests.groups, requests.of_candidate))


def fit_mix(requests: Requests, *, confidence: float) -> MixFit | None:
    """None where nothing was computed often enough to tell what a computed token costs."""
    names = _identified(requests)
    if names is None:
        return None
    whole = _coefficients(requests, names)
    labels = np.unique(requests.groups)
    left_out = labels if len(labels) > 1 else ()
    without = tuple(_coefficients(requests.only(requests.groups != label), names) for label in left_out)
    return MixFit(whole, without, len(requests.seconds), confidence)


def _identified(requests: Requests) -> list[str] | None:
    """Columns whose costs can be told apart, taken in the order of their weight; None without computed tokens."""
    columns = requests.columns()
    enough = [
        name
        for name in (BASE, "computed", "disk", "host", LOAD, READ, "device", ARM)
        if name == BASE or np.count_nonzero(columns[name]) >= _FEWEST
    ]
    kept: list[str] = []
    for name in enough:
        tried = np.column_stack([columns[other] for other in (*kept, name)])
        if np.linalg.matrix_rank(tried) == len(kept) + 1:
            kept.append(name)
    return kept if "computed" in kept else None


def _coefficients(requests: Requests, names: list[str]) -> dict[str, float]:
    columns = requests.columns()
    found, _, _ = huber_fit(np.column_stack([columns[name] for name in names]), requests.seconds)
    return dict(zip(names, map(float, found), strict=True))


def _scaled(per_thousand: float | None) -> float | None:
    return None if per_thousand is None else per_thousand / _THOUSAND


def _fixed(coefficients: Mapping[str, float], tier: str) -> float | None:
    if tier not in coefficients:
        return None
    return coefficients.get(LOAD, 0.0) + (coefficients.get(READ, 0.0) if tier == "disk" else 0.0)


def _break_even(coefficients: Mapping[str, float], tier: str) -> float | None:
    fixed, computed, promoted = _fixed(coefficients, tier), coefficients["computed"], coefficients.get(tier)
    if fixed is None or promoted is None:
        return None
    if computed <= promoted:
        return math.inf
    return max(0.0, fixed / (computed - promoted) * _THOUSAND)
