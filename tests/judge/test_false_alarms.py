"""How often verdicts err, by simulation: rounds judged one after the other, as a run does it.

Latencies are normal log ratios, errors are counts. Small and seeded; `make calibrate` is the large version.
"""

from __future__ import annotations

import math
from itertools import count

import numpy as np
import pytest

from kvbench.judge.evaluation import status_of
from kvbench.judge.looks import Look, nominal_level
from kvbench.judge.paired import Levels, estimate
from kvbench.judge.rates import share_lower, share_upper
from kvbench.judge.together import design_effect, mean_place
from tests.judge.ask import guardrail
from tests.judge.build import good_pairs
from tests.judge.change import fail, with_candidate

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


# ---- error rates: exact bounds at the levels that the boundaries of t paths leave


def most_safe(look: Look, requests: int, limit: float) -> int:
    """The most failures of `requests` that are safe at this look; -1: none are."""
    level = nominal_level(0.025, look)
    assert level is not None
    return next((failed - 1 for failed in count() if share_upper(failed, requests, level) > limit), -1)


def least_broken(look: Look, requests: int, limit: float) -> int:
    """The fewest failures that are a breach."""
    level = nominal_level(0.025, look)
    assert level is not None
    return next(failed for failed in count() if share_lower(failed, requests, level) > limit)


@pytest.mark.parametrize(
    ("requests", "limit"), [(170, 0.02), (500, 0.001), (1500, 0.01), (400, 0.1), (90, 0.3)], ids=str
)
def test_error_rates_at_exactly_the_limit_are_safe_or_a_breach_no_oftener_than_the_level_says(
    requests: int, limit: float
) -> None:
    """40,000 comparisons of twelve rounds, judged after every round from the third on."""
    runs = 40_000
    failed = np.random.default_rng(9).binomial(requests, limit, (runs, LAST)).cumsum(axis=1)
    safe, broken = np.zeros(runs, dtype=bool), np.zeros(runs, dtype=bool)
    for k in range(FIRST, LAST + 1):
        look = Look(k, FIRST, LAST)
        so_far = failed[:, k - 1]
        safe |= ~broken & (so_far <= most_safe(look, k * requests, limit))
        broken |= ~safe & (so_far >= least_broken(look, k * requests, limit))
    slack = 3 * math.sqrt(0.025 / runs)
    assert safe.mean() <= 0.025 + slack
    assert broken.mean() <= 0.025 + slack


@pytest.mark.parametrize("done", [FIRST, 7, LAST])
def test_these_are_the_counts_at_which_the_judge_decides(done: int) -> None:
    look, limit = Look(done, FIRST, LAST), 0.02
    for failed, status in (
        (most_safe(look, 170 * done, limit), "pass"),
        (most_safe(look, 170 * done, limit) + 1, "unknown"),
        (least_broken(look, 170 * done, limit) - 1, "unknown"),
        (least_broken(look, 170 * done, limit), "fail"),
    ):
        pairs = good_pairs(done, n=170)
        for place, pair in enumerate(pairs):
            part = failed // done + (place < failed % done)
            pairs = with_candidate(pairs, place, requests=fail(pair.candidate.requests, slice(0, part)))
        found = guardrail(pairs, {"metric": "error_rate", "max": limit}, rounds=(FIRST, LAST))
        assert found.status == status, failed


@pytest.mark.parametrize("sessions", [17, 60])
def test_the_same_holds_where_a_failing_turn_takes_the_rest_of_its_session_along(sessions: int) -> None:
    """Two thousand comparisons of sessions of ten turns, each turn failing with 0.37 %: 2 % of requests."""
    runs, turns, hazard = 2000, 10, 0.003676
    rng = np.random.default_rng(10)
    limit = float(np.mean([1 - (1 - hazard) ** (turn + 1) for turn in range(turns)]))
    levels = {k: nominal_level(0.025, Look(k, FIRST, LAST)) for k in range(FIRST, LAST + 1)}
    groups = np.repeat(np.arange(sessions * LAST), turns)
    safe = 0
    for _ in range(runs):
        failed = np.maximum.accumulate(rng.random((sessions * LAST, turns)) < hazard, axis=1).ravel()
        for k, level in levels.items():
            so_far, of = failed[: k * sessions * turns], groups[: k * sessions * turns]
            by = max(design_effect(so_far, of), mean_place(of))
            if share_upper(so_far.sum() / by, len(so_far) / by, level or 0.0) <= limit:
                safe += 1
                break
    assert safe / runs <= 0.025 + 3 * math.sqrt(0.025 / runs)
