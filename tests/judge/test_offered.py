"""Whether both arms were offered what the schedule says."""

from __future__ import annotations

import pandas as pd
import pytest

from kvbench.judge.findings import FindingKind
from kvbench.judge.offered import load_differences
from kvbench.judge.validity import check_validity
from tests.judge.ask import kinds
from tests.judge.build import comparison, good_pairs, workload
from tests.judge.change import (
    Edit,
    both_edited,
    candidate_edited,
    edited,
    setting,
    unsent,
    with_baseline,
    with_candidate,
)


class TestOfferedLoad:
    @pytest.mark.parametrize(
        ("column", "value", "words"),
        [
            ("class", "other", "class"),
            ("prompt_tokens_planned", 999, "prompt length"),
            ("prompt_digest", "x", "prompt"),
        ],
    )
    def test_every_difference_is_named(self, column: str, value: object, words: str) -> None:
        assert self.differences(setting(column, value, 3)) == [f"1 request with another {words}"]

    def differences(self, edit: Edit) -> list[str]:
        pair = good_pairs(1)[0]
        return load_differences(pair.baseline, edited(pair.candidate, edit), workload())

    @pytest.mark.parametrize(
        ("later_s", "differences"), [(0.002, ["400 requests with another intended time"]), (0.0009, [])]
    )
    def test_intended_times_are_the_same_to_a_millisecond(self, later_s: float, differences: list[str]) -> None:
        def edit(table: pd.DataFrame) -> None:
            table["intended_s"] += later_s

        assert self.differences(edit) == differences

    def test_requests_of_one_arm_alone(self) -> None:
        pairs = good_pairs()
        pairs = with_candidate(pairs, 1, requests=pairs[1].candidate.requests.iloc[:-2])
        (finding,) = check_validity(comparison(pairs)).findings
        assert finding.kind is FindingKind.OFFERED_LOAD
        assert finding.what == "2 requests went to base alone, 0 to tiered alone"

    def test_a_digest_that_is_not_known_is_no_difference(self) -> None:
        assert kinds(comparison(candidate_edited(setting("prompt_digest", None)))) == set()

    def test_rows_may_come_in_another_order(self) -> None:
        pairs = good_pairs()
        pairs = with_candidate(pairs, 1, requests=pairs[1].candidate.requests.iloc[::-1])
        assert kinds(comparison(pairs)) == set()

    def test_later_turns_follow_the_server(self) -> None:
        def edit(table: pd.DataFrame) -> None:
            table.loc[5, ["intended_basis", "intended_s", "sent_s"]] = ["previous turn", 50.0, 50.0]

        pairs = good_pairs()
        pairs = with_candidate(pairs, 1, requests=edited(pairs[1].candidate, edit).requests)
        pairs = with_baseline(
            pairs, 1, requests=edited(pairs[1].baseline, setting("intended_basis", "previous turn", 5)).requests
        )
        assert kinds(comparison(pairs)) - {FindingKind.CLOCK} == set()

    def test_a_closed_loop_follows_the_server(self) -> None:
        closed = workload(arrivals={"process": "closed", "closed": {"concurrency": 4}})
        pairs = candidate_edited(setting("intended_s", 99.0, 3))
        assert FindingKind.OFFERED_LOAD not in kinds(comparison(pairs, workload=closed))
        assert kinds(comparison(both_edited(unsent), workload=closed)) == set()

    def test_a_later_turn_that_was_never_due_was_not_scheduled(self) -> None:
        def edit(table: pd.DataFrame) -> None:
            unsent(table)
            table.loc[399, ["session", "turn"]] = [4, 1]

        assert kinds(comparison(both_edited(edit))) == set()

    def test_a_first_turn_that_was_never_sent_was(self) -> None:
        def edit(table: pd.DataFrame) -> None:
            unsent(table)
            table.loc[399, ["session", "turn"]] = [4, 0]

        assert kinds(comparison(both_edited(edit))) == {FindingKind.SCHEDULE}

    def test_what_lies_outside_measured_phases_need_not_be_sent(self) -> None:
        def edit(table: pd.DataFrame) -> None:
            unsent(table)
            table.loc[399, "phase"] = "cool"

        assert kinds(comparison(both_edited(edit))) == set()
