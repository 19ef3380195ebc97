"""Identities of a sound round: tokens by source add up, no effect comes before its cause."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from kvbench.judge.integrity import clock_faults, identity_faults, source_faults, sources_checked
from kvbench.judge.judge import judge
from tests.judge.ask import result_of
from tests.judge.build import arm_round, comparison, counters, good_pairs, identity_rows, request_rows
from tests.judge.change import Edit, after_sending, edited, setting, with_candidate


class TestTokenSources:
    CACHED = 200 * 900.0
    COMPUTED = 400 * 1000.0 - CACHED

    def faults(self, metrics: pd.DataFrame, edit: Edit | None = None) -> list[str]:
        """Of a round of 400 requests of 1,000 tokens, half of them with 900 cached, and these counters."""
        recorded = good_pairs(1)[0].candidate
        return source_faults(replace(recorded if edit is None else edited(recorded, edit), metrics=metrics))

    def test_add_up_in_a_sound_round(self) -> None:
        sound = counters(
            [7, 7 + self.CACHED], [5, 5 + self.COMPUTED], prompts=[9, 400_009], cached=[1, 1 + self.CACHED]
        )
        assert self.faults(sound) == []

    @pytest.mark.parametrize(
        ("off", "faults"), [(0.004, []), (0.006, ["sources together 402,400 tokens, prompts 400,000"])]
    )
    def test_may_be_off_by_half_a_per_cent(self, off: float, faults: list[str]) -> None:
        assert self.faults(counters([0, 4e5 * off], [0, 4e5], prompts=[0, 4e5])) == faults

    def test_are_what_the_answers_say(self) -> None:
        assert self.faults(counters([0, 1e5], [0, 2e5], prompts=[0, 3e5])) == [
            "prompt tokens: the counter says 300,000, the answers say 400,000"
        ]
        wrong = counters([0, self.CACHED], [0, self.COMPUTED], prompts=[0, 4e5], cached=[0, 2 * self.CACHED])
        assert self.faults(wrong) == ["cached tokens: the counter says 360,000, the answers say 180,000"]

    BROKEN = counters([0, 1e5], [0, 2e5], prompts=[0, 4e5])

    @pytest.mark.parametrize("failed", [None, 3])
    def test_that_are_a_quarter_off_are_found_whoever_failed(self, failed: int | None) -> None:
        edit = None if failed is None else setting("status", "error", failed)
        assert self.faults(self.BROKEN, edit) == ["sources together 300,000 tokens, prompts 400,000"]
        counted = counters([0, 1e5], [0, 2e5], prompts=[0, 3e5])
        (fault,) = self.faults(counted, edit)
        assert fault.startswith("prompt tokens: the counter says 300,000, the answers say ")

    def test_of_failed_requests_lie_between_nothing_and_their_prompts(self) -> None:
        failed = setting("status", "error", slice(200, 249))  # of those that had nothing cached
        for counted in (350_000.0, 360_000.0, 400_000.0):
            sound = counters([0, self.CACHED], [0, counted - self.CACHED], prompts=[0, counted])
            assert self.faults(sound, failed) == []
        more = counters([0, self.CACHED], [0, 403_000 - self.CACHED], prompts=[0, 403_000])
        assert self.faults(more, failed) == [
            "prompt tokens: the counter says 403,000, the answers say 350,000 and failed requests "
            "at most 50,000 more"
        ]

    def test_of_answers_that_a_user_left_are_counted_by_both(self) -> None:
        sound = counters([0, self.CACHED], [0, self.COMPUTED], prompts=[0, 4e5])
        assert self.faults(sound, setting("status", "aborted", slice(0, 49))) == []

    @pytest.mark.parametrize("scrape", [0.0, 500.0])
    def test_need_scrapes_around_all_requests(self, scrape: float) -> None:
        assert self.faults(self.BROKEN.assign(t_s=self.BROKEN["t_s"].replace({scrape: 60.0}))) == []

    def test_need_answers_that_tell(self) -> None:
        wrong = counters([0, 1e5], [0, 2e5], prompts=[0, 3e5])
        assert self.faults(wrong, setting("prompt_tokens_engine", np.nan)) == []

    def test_of_answers_that_do_not_tell_lie_between_nothing_and_their_prompts(self) -> None:
        silent = setting("prompt_tokens_engine", np.nan, 249)
        (fault,) = self.faults(counters([0, 1e5], [0, 2e5], prompts=[0, 3e5]), silent)
        assert fault.endswith("the answers say 399,000 and those that do not tell at most 1,000 more")
        for counted in (399_000.0, 400_000.0):
            sound = counters([0, self.CACHED], [0, counted - self.CACHED], prompts=[0, counted])
            assert self.faults(sound, silent) == []

    def test_need_requests_that_were_sent(self) -> None:
        assert self.faults(self.BROKEN, setting("sent_s", np.nan)) == []
        empty = arm_round("tiered", 1, *request_rows([]), metrics=self.BROKEN)
        assert source_faults(empty) == []

    def test_prompts_that_were_not_counted_are_not_compared(self) -> None:
        assert self.faults(counters([0, 1e5], [0, 2e5])) == []

    def test_that_never_leave_zero_were_not_checked(self) -> None:
        """Answers that do not tell, and counters that count nothing, agree about nothing."""
        silent = edited(good_pairs(1)[0].candidate, setting("prompt_tokens_engine", np.nan))
        silent = edited(silent, setting("cached_tokens", np.nan))
        zero = counters([0, 0], [0, 0], prompts=[0, 0], cached=[0, 0])
        assert not sources_checked(replace(silent, metrics=zero))
        counted = counters([0, 1], [0, 2], prompts=[0, 3])
        assert sources_checked(replace(silent, metrics=counted))

    def test_that_never_leave_zero_are_held_against_answers_that_tell(self) -> None:
        zero = counters([0, 0], [0, 0], prompts=[0, 0])
        assert self.faults(zero) == ["prompt tokens: the counter says 0, the answers say 400,000"]


class TestTheEnginesOwnSums:
    """As the scrapes found them (`kvbench.observe.rows`)."""

    def rows(self, *told: tuple[float, str, str, float]) -> pd.DataFrame:
        """Beside those of a sound round."""
        return pd.concat([good_pairs(1)[0].candidate.metrics, identity_rows(*told)])

    def faults(self, *told: tuple[float, str, str, float]) -> list[str]:
        return identity_faults(replace(good_pairs(1)[0].candidate, metrics=self.rows(*told)))

    def test_that_are_missed_at_rest_are_told_once_each_with_the_first_time(self) -> None:
        assert self.faults(
            (12.0, "rest", "cached-tokens", -0.2),
            (9.0, "rest", "cached-tokens", 0.1),
            (5.0, "rest", "cache-hits", 0.5),
        ) == [
            "the engine's own sum of cache-hits is off by 50 % at 5 s",
            "the engine's own sum of cached-tokens is off by 10 % at 9 s",
        ]

    def test_may_be_off_a_little_and_under_load(self) -> None:
        assert self.faults((9.0, "rest", "prompt-tokens", 0.004), (9.0, "load", "prompt-tokens", 0.3)) == []

    def test_that_are_missed_under_load_in_several_scrapes_in_a_row_are_told(self) -> None:
        """One alone may have fallen between two counts of the same event: a real engine showed it."""
        missed = [(t_s, "load", "prompt-tokens", 0.25) for t_s in (11.0, 12.0, 14.0)]
        between = (13.0, "load", "prompt-tokens", 0.0), (13.0, "load", "cached-tokens", 0.25)
        assert self.faults(*missed[:2]) == []
        assert self.faults(*missed, *between) == []
        assert self.faults(*missed) == ["the engine's own sum of prompt-tokens is off by 25 % at 11 s"]

    def test_of_a_page_that_says_rest_too_early_are_refuted_by_the_next(self) -> None:
        """An engine's page showed no running request and a step's first counts: at 1.3 s, and never again."""
        torn = (1.3, "rest", "cache-hits", 0.125)
        assert self.faults(torn, (2.3, "load", "cache-hits", 0.0), (3.3, "rest", "cache-hits", 0.0)) == []
        said = ["the engine's own sum of cache-hits is off by 12.5 % at 1.3 s"]
        assert self.faults(torn, (2.3, "load", "cache-hits", 0.1)) == said
        assert self.faults(torn, (2.3, "load", "prompt-tokens", 0.0)) == said

    def test_that_are_missed_make_the_run_invalid(self) -> None:
        pairs = good_pairs()
        broken = with_candidate(pairs, 1, metrics=self.rows((9.0, "rest", "cached-tokens", 0.1)))
        verdict = judge(comparison(broken))
        assert verdict.verdict == "INVALID"
        assert result_of(verdict, "token-sources-broken").status == "fail"


class TestClock:
    @pytest.mark.parametrize(
        ("column", "seconds", "faults"),
        [
            ("first_token_s", -0.01, ["1 answer came before the request was sent"]),
            ("last_token_s", -0.01, ["1 answer ended before it began"]),
            ("first_token_s", -0.0009, []),
        ],
    )
    def test_no_effect_comes_before_its_cause_beyond_reading_error(
        self, column: str, seconds: float, faults: list[str]
    ) -> None:
        recorded = good_pairs(1)[0].candidate
        assert clock_faults(edited(recorded, after_sending(column, seconds, 7))) == faults

    def test_the_end_of_an_answer_may_be_off_by_as_much(self) -> None:
        def edit(table: pd.DataFrame) -> None:
            table.loc[7, "last_token_s"] = table.loc[7, "first_token_s"] - 0.0009

        assert clock_faults(edited(good_pairs(1)[0].candidate, edit)) == []
