"""Failures that come together: a turn that fails takes the rest of its session with it, and that is one event."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvbench.judge.columns import Bools, Floats, Ids

__all__ = ["conversations", "design_effect", "mean_place"]


def conversations(sessions: Sequence[Floats]) -> Ids:
    """A number for each request, equal for those of one session; `sessions` has an array for each round, NaN for
    requests that belong to none."""
    numbers: list[Ids] = []
    so_far = 0
    for of_round in sessions:
        alone = np.isnan(of_round)
        known, of_known = np.unique(of_round[~alone], return_inverse=True)
        of_round_numbers = np.empty(len(of_round), np.int64)
        of_round_numbers[~alone] = so_far + of_known
        so_far += len(known)
        of_round_numbers[alone] = so_far + np.arange(int(alone.sum()))
        so_far += int(alone.sum())
        numbers.append(of_round_numbers)
    return np.concatenate([np.empty(0, np.int64), *numbers])


def design_effect(failed: Bools, groups: Ids) -> float:
    """By how much the variance of the share of failures exceeds that of as many independent requests; at least 1.

    The linearized variance of a share over clusters (Kish, Survey Sampling, 1965, chapter 6). Exactly 1 where no
    group has more than one failure. Counts divided by it have exact bounds that heed the clusters (Korn and
    Graubard, 1998).
    """
    failures = np.bincount(groups, failed)
    if len(failed) == 0 or failures.max() <= 1:
        return 1.0
    share = float(failed.mean())
    if share == 1.0:
        return float((failures**2).sum() / failures.sum())
    sizes = np.bincount(groups)
    return max(1.0, float(((failures - share * sizes) ** 2).sum() / (len(failed) * share * (1 - share))))


def mean_place(groups: Ids) -> float:
    """The mean place of a request in its session, from 1: sum(s (s + 1) / 2) / sum(s) over sessions of size s.

    So many requests without a failure are worth one independent one. Where each turn fails with probability h and
    takes those after it along, the request at place k fails with 1 - (1 - h)^k. That is concave in k, so the share
    of failures is at most 1 - (1 - h)^m, with m the mean place (Jensen's inequality). None of n requests fails with
    probability (1 - h)^n: that of no failure in n / m independent requests of just that share. So the exact upper
    bound of n / m holds for n, and where all stand alone (m = 1) nothing changes.
    """
    sizes = np.bincount(groups)
    return float((sizes * (sizes + 1)).sum() / (2 * sizes.sum())) if len(groups) else 1.0
