"""What waited for an answer is told apart from what the schedule fixes, and is not late by waiting."""

from __future__ import annotations

import numpy as np
import pytest

from kvbench.judge.evidence import RoundPair
from kvbench.judge.send_lag import followed_lag
from tests.judge.ask import figures
from tests.judge.build import arm_round, comparison, request_rows, ttfts


def with_sessions(arm: str):
    """400 requests, every fourth of them a later turn that is sent 3 ms after its time."""
    requests, tokens = request_rows(ttfts())
    later = np.arange(400) % 4 == 3
    requests.loc[later, "intended_basis"] = "previous turn"
    requests.loc[later, "sent_s"] = requests.loc[later, "intended_s"] + 0.003
    requests.loc[[3], "sent_s"] = np.nan  # lost with an earlier turn: never sent
    return arm_round(arm, 1, requests, tokens)


def test_requests_after_an_answer_are_counted_with_their_own_lag() -> None:
    played = with_sessions("base")
    followed = followed_lag(played.requests)
    assert followed.requests == 99
    assert followed.p99_s == pytest.approx(0.003)
    assert played.send_lag.p99_s == pytest.approx(0.003)
    assert followed_lag(request_rows(ttfts())[0]) == (0, None, None)


def test_the_verdict_tells_them_for_all_rounds() -> None:
    found = figures(comparison([RoundPair(1, with_sessions("base"), with_sessions("tiered"))]))
    assert found.followed_requests == 198
    assert found.followed_send_lag_p99_s == pytest.approx(0.003)
