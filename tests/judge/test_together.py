"""Failures that come together: who belongs together, and what they are worth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.judge.rates import share_lower, share_upper
from kvbench.judge.together import conversations, design_effect, mean_place

NONE = float("nan")


def test_requests_of_one_session_of_one_round_belong_together_and_nobody_else_does() -> None:
    found = conversations([np.array([7, NONE, 7, NONE, 3]), np.array([7, 7, NONE])])
    assert found[0] == found[2]
    assert found[5] == found[6]
    assert len(set(found.tolist())) == 6
    assert len(conversations([])) == 0


@given(st.lists(st.booleans(), min_size=1))
def test_requests_that_stand_alone_are_worth_what_they_are(failed: list[bool]) -> None:
    assert design_effect(np.array(failed), np.arange(len(failed))) == 1.0


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1))
def test_it_is_never_worth_more_than_independent_requests(rows: list[tuple[int, bool]]) -> None:
    groups, failed = np.array([group for group, _ in rows]), np.array([each for _, each in rows])
    assert 1.0 <= design_effect(failed, groups) <= len(rows)


@pytest.mark.parametrize("size", [2, 10])
def test_sessions_that_fail_whole_are_worth_one_failure_each(size: int) -> None:
    groups = np.repeat(np.arange(1000), size)
    for failing in (1, 30, 1000):
        assert design_effect(groups < failing, groups) == pytest.approx(size)


def test_bounds_of_the_share_are_as_often_wrong_as_they_say() -> None:
    """Given sessions of ten turns of which each turn fails with 2 %, and takes those after it along."""
    rng, level, trials, sessions, turns = np.random.default_rng(5), 0.025, 4000, 200, 10
    groups = np.repeat(np.arange(sessions), turns)
    true = float(np.mean([1 - 0.98 ** (turn + 1) for turn in range(turns)]))
    heeded, ignored = [], []
    for _ in range(trials):
        failed = np.maximum.accumulate(rng.random((sessions, turns)) < 0.02, axis=1).ravel()
        for found, by in ((heeded, design_effect(failed, groups)), (ignored, 1.0)):
            hits, of = failed.sum() / by, len(failed) / by
            found.append((share_lower(hits, of, level) > true, share_upper(hits, of, level) < true))
    # Three standard errors of the estimate; who takes the requests for independent errs far more often.
    assert (np.mean(heeded, axis=0) < level + 3 * (level / trials) ** 0.5).all(), np.mean(heeded, axis=0)
    assert (np.mean(ignored, axis=0) > 4 * level).all(), np.mean(ignored, axis=0)


@pytest.mark.parametrize(
    ("sizes", "mean"), [([1] * 7, 1.0), ([10] * 51, 5.5), ([10, *[1] * 10], 65 / 20), ([2, 3], 9 / 5), ([], 1.0)]
)
def test_a_failing_turn_takes_as_many_requests_along_as_the_mean_place_in_a_session(
    sizes: list[int], mean: float
) -> None:
    assert mean_place(np.repeat(np.arange(len(sizes)), sizes)) == pytest.approx(mean)


@pytest.mark.parametrize("sessions", [51, 75, 150, 400])
def test_at_a_rate_of_exactly_the_limit_upper_bounds_lie_below_it_as_seldom_as_they_say(sessions: int) -> None:
    """Given sessions of ten turns and two per cent of requests that fail, by 0.37 % of turns: of 51 sessions
    none fails every sixth or seventh time."""
    rng, level, trials, turns, hazard = np.random.default_rng(7), 0.025, 4000, 10, 0.003676
    groups = np.repeat(np.arange(sessions), turns)
    limit = float(np.mean([1 - (1 - hazard) ** (turn + 1) for turn in range(turns)]))
    assert limit == pytest.approx(0.02, rel=1e-3)
    place, below = mean_place(groups), {"heeded": 0, "seen alone": 0}
    for _ in range(trials):
        failed = np.maximum.accumulate(rng.random((sessions, turns)) < hazard, axis=1).ravel()
        seen = design_effect(failed, groups)
        for name, by in (("heeded", max(seen, place)), ("seen alone", seen)):
            below[name] += share_upper(failed.sum() / by, len(failed) / by, level) < limit
    # Three standard errors of the estimate.
    assert below["heeded"] / trials <= level + 3 * (level / trials) ** 0.5, below
    if sessions == 51:
        assert below["seen alone"] / trials > 0.14, below
