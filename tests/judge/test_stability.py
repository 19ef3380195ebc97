"""The guardrail that every run has: death, freeze and short answers of the candidate alone."""

from __future__ import annotations

import pandas as pd
import pytest

from kvbench.judge.evidence import EngineEvent, RoundPair
from kvbench.judge.judge import decided, judge
from tests.judge.ask import guarded, result_of
from tests.judge.build import comparison, good_pairs, rules
from tests.judge.change import (
    died,
    edited,
    with_baseline,
    with_candidate,
)


class TestStability:
    @pytest.mark.parametrize(
        ("event", "words"),
        [
            (died(), "the engine of tiered died 40 s into round 2: exit code 137"),
            (EngineEvent("frozen", 61.0, "no token"), "the engine of tiered froze 61 s into round 2: no token"),
            (EngineEvent("restarted", 61.0, "uptime"), "the engine of tiered restarted 61 s into round 2: uptime"),
            (
                EngineEvent("refusing", 9.0, "all 503"),
                "the engine of tiered stopped serving 9 s into round 2: all 503",
            ),
        ],
    )
    def test_death_or_freeze_of_the_candidate_alone_is_a_breach(self, event: EngineEvent, words: str) -> None:
        verdict = judge(comparison(with_candidate(good_pairs(), 1, events=(event,), complete=False)))
        assert verdict.verdict == "NO_GO"
        assert verdict.reasons[0] == words
        assert result_of(verdict, "stability").status == "fail"

    def test_it_needs_no_number_of_rounds(self) -> None:
        verdict = judge(comparison(with_candidate(good_pairs(1), 0, events=(died(),), complete=False)))
        assert verdict.verdict == "NO_GO"
        assert decided(verdict, rules())

    def test_what_the_baseline_suffers_too_is_no_breach(self) -> None:
        pairs = with_candidate(good_pairs(), 1, events=(died(),), complete=False)
        verdict = judge(comparison(with_baseline(pairs, 0, events=(died(),), complete=False)))
        assert result_of(verdict, "stability").status == "unknown"
        assert result_of(verdict, "stability").text == (
            "the engine of tiered died 40 s into round 2: exit code 137; the baseline was no better"
        )
        assert verdict.verdict == "INVALID"

    def short(self, status: str = "ok", error: str | None = None) -> list[RoundPair]:
        def edit(table: pd.DataFrame) -> None:
            table.loc[:1, ["output_tokens_received", "status", "error"]] = [3, status, error]

        pairs = good_pairs()
        return with_candidate(pairs, 1, requests=edited(pairs[1].candidate, edit).requests)

    @pytest.mark.parametrize(("status", "error"), [("ok", None), ("error", "short_output: 3 of 5 tokens")])
    def test_completed_but_short_answers_of_the_candidate_alone_are_a_breach(
        self, status: str, error: str | None
    ) -> None:
        verdict = judge(comparison(self.short(status, error)))
        assert guarded(comparison(self.short(status, error)), "stability").status == "fail"
        assert verdict.verdict == "NO_GO"
        assert verdict.reasons[0] == "2 of 1,200 completed answers of tiered too short"

    def test_short_answers_within_the_tolerated_share_are_none(self) -> None:
        run = comparison(self.short(), rules(validity={"token_mismatch": "0.2%"}))
        assert guarded(run, "stability").status == "pass"

    def test_failures_that_were_cut_off_are_errors_not_short_answers(self) -> None:
        verdict = judge(comparison(self.short("error", "stream_broken: ended early")))
        assert result_of(verdict, "stability").status == "pass"

    def test_short_answers_of_both_are_invalid(self) -> None:
        pairs = self.short()
        pairs = with_baseline(pairs, 1, requests=pairs[1].candidate.requests)
        verdict = judge(comparison(pairs))
        assert verdict.verdict == "INVALID"
        assert result_of(verdict, "stability").status == "unknown"
