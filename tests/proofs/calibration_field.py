"""What tests over single requests, as other tools use them, say about the same rounds of an arm with itself.

Both take requests as independent; their false alarms are the share of comparisons that they call different at 5 %.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from tests.proofs.calibration_bank import Bank
from tests.proofs.calibration_cells import Share, Values, share

__all__ = ["FieldTests", "bootstrap_differs", "field_tests", "mann_whitney_differs"]

Floats = npt.NDArray[np.float32]

LEVEL = 0.05
QUANTILE = 0.99
RESAMPLES = 1000
FIXED = 6
"""Rounds of each comparison that are pooled."""


@dataclass(frozen=True)
class FieldTests:
    """Shares of comparisons of an arm with itself that a test calls different."""

    load: str
    rounds: int
    mann_whitney: Share
    bootstrap: Share


def field_tests(bank: Bank, values: Values, seed: int, rounds: int = FIXED) -> FieldTests:
    """Both tests on the TTFT of the short requests of each comparison's first `rounds` rounds."""
    rng = np.random.default_rng([seed, rounds])
    ranks, tails = [], []
    for places, swapped in zip(values.places[:, :rounds], values.swapped[:, :rounds], strict=True):
        base = np.concatenate(
            [bank.rounds[_arm(swap, 0)][place].short_ttft for place, swap in _zip(places, swapped)]
        )
        cand = np.concatenate(
            [bank.rounds[_arm(swap, 1)][place].short_ttft for place, swap in _zip(places, swapped)]
        )
        ranks.append(mann_whitney_differs(base, cand))
        tails.append(bootstrap_differs(base, cand, rng))
    return FieldTests(bank.load, rounds, share(ranks, values.groups), share(tails, values.groups))


def _zip(places: npt.NDArray[np.int64], swapped: npt.NDArray[np.bool_]) -> list[tuple[int, bool]]:
    return list(zip(places.tolist(), swapped.tolist(), strict=True))


def _arm(swapped: bool, side: int) -> str:
    return ("baseline", "candidate")[side ^ swapped]


def mann_whitney_differs(base: Floats, cand: Floats) -> bool:
    """Two-sided at 5 %."""
    return bool(stats.mannwhitneyu(base, cand, alternative="two-sided", method="asymptotic").pvalue < LEVEL)


def bootstrap_differs(base: Floats, cand: Floats, rng: np.random.Generator) -> bool:
    """Whether the 95 % percentile interval of the ratio of p99s, over resampled requests, leaves out 1."""
    ratios = np.log(_resampled(cand, rng) / _resampled(base, rng))
    low, high = np.quantile(ratios, [LEVEL / 2, 1 - LEVEL / 2])
    return bool(low > 0 or high < 0)


def _resampled(values: Floats, rng: np.random.Generator) -> Floats:
    """p99 of resamples of the requests, without making them: the k-th of n resampled ranks is where the k-th of n
    uniform numbers falls, and that number is Beta(k, n - k + 1)."""
    n = len(values)
    k = int(np.ceil(QUANTILE * n))
    ranks = np.floor(n * rng.beta(k, n - k + 1, RESAMPLES)).astype(np.int64)
    return np.sort(values)[np.minimum(ranks, n - 1)]
