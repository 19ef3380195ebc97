"""Error rates by simulation: paired rounds whose log ratios are normal, judged after every round as a run does.

Small and seeded; `make calibrate` is the large version.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from kvbench.judge.evaluation import status_of
from kvbench.judge.looks import Look
from kvbench.judge.paired import Levels, estimate

RUNS = 800
FIRST, LAST = 3, 12
LIMIT = math.log(1.2)
EVEN = Levels(0.025, 0.025)


def played(effect: float, spread: float, seed: int) -> list[tuple[str, int]]:
    """Status at the stop and the rounds it took, for many runs that stop as soon as the rule is decided."""
    rng = np.random.default_rng(seed)
    ends = []
    for values in rng.normal(effect, spread, (RUNS, LAST)):
        for k in range(FIRST, LAST + 1):
            found = estimate(values[:k].tolist(), Look(k, FIRST, LAST), confidence=0.95, levels=EVEN)
            status = status_of(found.decision, LIMIT, upper=True)
            if status != "unknown":
                break
        ends.append((status, k))
    return ends


def share(ends: list[tuple[str, int]], status: str) -> float:
    return sum(end == status for end, _ in ends) / len(ends)


SLACK = 3 * math.sqrt(0.025 / RUNS)


@pytest.mark.parametrize("spread", [0.2 * LIMIT, 0.6 * LIMIT])
def test_at_the_limit_neither_error_is_more_frequent_than_its_level(spread: float) -> None:
    ends = played(LIMIT, spread, seed=1)
    assert share(ends, "pass") <= 0.025 + SLACK
    assert share(ends, "fail") <= 0.025 + SLACK


def test_an_unchanged_arm_is_found_safe_and_twice_the_limit_a_breach() -> None:
    spread = 0.4 * LIMIT
    assert share(played(0.0, spread, seed=2), "pass") >= 0.95
    assert share(played(2 * LIMIT, spread, seed=3), "fail") >= 0.95


def test_deciding_early_saves_half_of_the_rounds_where_noise_is_small() -> None:
    ends = played(0.0, 0.3 * LIMIT, seed=4)
    assert np.median([rounds for _, rounds in ends]) <= LAST / 2


def test_the_plain_interval_covers_the_effect_as_often_as_it_says() -> None:
    rng = np.random.default_rng(5)
    covered = 0
    for values in rng.normal(0.1, 0.2, (RUNS, 6)):
        ci = estimate(values.tolist(), Look(6, 6, 6), confidence=0.95, levels=EVEN).ci
        assert ci is not None
        covered += ci[0] <= 0.1 <= ci[1]
    assert covered / RUNS == pytest.approx(0.95, abs=3 * math.sqrt(0.05 / RUNS))


def test_the_interval_that_decides_covers_the_effect_at_the_stop() -> None:
    rng = np.random.default_rng(6)
    covered = 0
    for values in rng.normal(0.05, 0.5 * LIMIT, (RUNS, LAST)):
        for k in range(FIRST, LAST + 1):
            found = estimate(values[:k].tolist(), Look(k, FIRST, LAST), confidence=0.95, levels=EVEN)
            if status_of(found.decision, LIMIT, upper=True) != "unknown":
                break
        assert found.decision is not None
        covered += found.decision[0] <= 0.05 <= found.decision[1]
    assert covered / RUNS >= 0.95
