"""Whether completed answers have the length that was asked for."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from kvbench.judge.lengths import Lengths, lengths
from tests.judge.build import OUTPUT, good_pairs
from tests.judge.change import edited, fail

ROUND = good_pairs(1)[0].candidate


def with_faults(table: pd.DataFrame) -> None:
    """Two short, one long, one cut off as too short, one broken off; 400 in all."""
    table.loc[:2, "output_tokens_received"] = [OUTPUT - 1, 0, OUTPUT + 1]
    table.loc[3, ["output_tokens_received", "status", "error"]] = [2, "error", "short_output: 2 of 5 tokens"]
    table.loc[4, ["output_tokens_received", "status", "error"]] = [2, "error", "stream_broken: ended early"]


def test_a_sound_round_has_no_fault() -> None:
    assert lengths([ROUND]) == Lengths(completed=400)


def test_short_and_long_ones_are_counted_and_failures_are_not() -> None:
    assert lengths([edited(ROUND, with_faults)]) == Lengths(completed=399, short=3, long=1)


def test_an_answer_that_a_user_left_is_no_length_fault() -> None:
    def left(table: pd.DataFrame) -> None:
        table.loc[:9, ["output_tokens_received", "status"]] = [2, "aborted"]

    assert lengths([edited(ROUND, left)]) == Lengths(completed=390)


def test_rounds_add_up() -> None:
    changed = edited(ROUND, with_faults)
    assert lengths([changed, ROUND, changed]) == Lengths(completed=1198, short=6, long=2)
    assert lengths([]) == Lengths()


def test_failed_requests_are_not_completed() -> None:
    assert lengths([replace(ROUND, requests=fail(ROUND.requests, slice(0, 5)))]) == Lengths(completed=395)
