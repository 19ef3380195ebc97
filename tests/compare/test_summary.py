"""What `kvbench run` says of the TTFT of a class when some users did not wait for it."""

from __future__ import annotations

import pandas as pd
import pytest

from kvbench.compare.summary import class_figures
from kvbench.judge.latency import RoundLatencies
from tests.judge.build import arm_round, request_rows
from tests.judge.change import fail, leave

N, TIMEOUT_S = 400, 60.0


def figures(requests: pd.DataFrame, tokens: pd.DataFrame) -> dict[str, object]:
    return class_figures([RoundLatencies(arm_round("base", 1, requests, tokens), TIMEOUT_S)], "long")


def test_failures_count_at_the_time_out_and_a_quantile_that_is_not_carried_is_not_there() -> None:
    requests, tokens = request_rows([0.5] * 100)
    told = figures(fail(requests, slice(0, 40)), tokens)
    assert (told["requests"], told["failed"]) == (100, 40)
    assert told["ttft_s"] == pytest.approx({"p50": 0.5, "p90": TIMEOUT_S})


def test_users_who_left_do_not_take_the_slow_answers_out_of_it() -> None:
    """Given every fifth answer so slow that its user was gone, then p90 is not that of the others."""
    requests, tokens = request_rows([0.5] * N)
    told = figures(leave(requests, slice(0, None, 5), 2.0), tokens)
    assert (told["requests"], told["failed"]) == (N, 0)
    assert told["ttft_s"] == {"p50": pytest.approx(0.5), "p90": None, "p99": None}
