"""Budgets of the measurement, what is not held against it, and what cannot be checked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from kvbench.judge.evidence import ArmRound
from kvbench.judge.findings import FindingKind
from kvbench.judge.judge import judge
from kvbench.judge.validity import check_validity
from tests.judge.ask import kinds, result_of
from tests.judge.build import SCRAPES, comparison, good_pairs, host_rows, metric_rows, request_rows, rules
from tests.judge.change import (
    after_intended,
    both_edited,
    candidate_edited,
    died,
    edited,
    fail,
    late,
    setting,
    with_baseline,
    with_candidate,
)


def host_also(**figures: float | list[float]) -> pd.DataFrame:
    """An idle host with further figures at its ten samples."""
    times = host_rows()["t_s"].unique()
    more = [
        pd.DataFrame({"t_s": times, "name": name, "value": np.broadcast_to(values, len(times))})
        for name, values in figures.items()
    ]
    return pd.concat([host_rows(), *more], ignore_index=True)


class TestBudgets:
    """A figure at its budget is within it."""

    def test_send_lag(self) -> None:
        on_the_edge = candidate_edited(after_intended(0.019))
        assert kinds(comparison(on_the_edge)) == set()
        strict = rules(validity={"send_lag_p99": "10ms"})
        assert kinds(comparison(on_the_edge, strict)) == {FindingKind.CLIENT_LATE}

    def test_few_late_requests_are_not_the_p99(self) -> None:
        assert kinds(comparison(candidate_edited(after_intended(0.2, slice(0, 1))))) == set()

    def test_lag_of_unmeasured_requests_does_not_count(self) -> None:
        def edit(table: pd.DataFrame) -> None:
            late(table)
            table.loc[:9, "measured"] = False

        assert FindingKind.CLIENT_LATE not in kinds(comparison(both_edited(edit)))

    def test_scrapes(self) -> None:
        assert kinds(comparison(with_candidate(good_pairs(), 1, scrapes=replace(SCRAPES, succeeded=95)))) == set()
        gap = replace(SCRAPES, longest_gap_ours_s=3.5)
        assert kinds(comparison(with_candidate(good_pairs(), 1, scrapes=gap))) == {FindingKind.SCRAPE_GAP}
        assert (
            kinds(comparison(with_candidate(good_pairs(), 1, scrapes=replace(gap, longest_gap_ours_s=3.0))))
            == set()
        )

    def test_scrapes_that_failed_while_the_engine_stalled_are_its_fault(self) -> None:
        stalled = replace(SCRAPES, succeeded=60, engine_stalled=40)
        assert kinds(comparison(with_candidate(good_pairs(), 1, scrapes=stalled))) == set()

    def test_contention(self) -> None:
        assert kinds(comparison(with_candidate(good_pairs(), 1, host=host_rows(steal=0.25, foreign=0.25)))) == set()

    def test_swap(self) -> None:
        """A few idle pages may go out at any time, and what was out before the round is nothing of it."""
        few = with_candidate(good_pairs(), 1, host=host_rows(swapped=64 * 2.0**20))
        assert kinds(comparison(few)) == set()
        before = host_rows(swapped=100 * 2.0**20)
        before = before[before["t_s"] > 70]
        assert kinds(comparison(with_candidate(good_pairs(), 1, host=before))) == set()

    def test_swap_that_is_as_full_as_before_but_was_moved_through(self) -> None:
        """64 MiB in a hundred seconds may be moved."""
        for megabytes_per_s, found in ((0.6, set()), (0.7, {FindingKind.SWAP})):
            moving = host_also(swap_read_bytes_per_s=megabytes_per_s * 2**20, swap_write_bytes_per_s=0.0)
            run = comparison(with_candidate(good_pairs(), 1, host=moving))
            assert kinds(run) == found
        (finding,) = check_validity(run).findings
        assert "the host swapped: 70 MiB went out or came back in the measured part" in finding.text

    def test_clocks(self) -> None:
        """They drift by milliseconds; half a second more is a clock that was set, or a machine that slept."""
        drift = host_also(clock_wall_s=[1e9 + 0.1 * place for place in range(10)], clock_suspended_s=3.0)
        assert kinds(comparison(with_candidate(good_pairs(), 1, host=drift))) == set()
        for name, words in (
            ("clock_wall_s", "a clock jumped: the wall clock was set by 5 s at 60 s"),
            ("clock_suspended_s", "a clock jumped: the machine slept for 5 s at 60 s"),
        ):
            jump = host_also(**{name: [0.0] * 5 + [5.0] * 5})
            (finding,) = check_validity(comparison(with_candidate(good_pairs(), 1, host=jump))).findings
            assert (finding.kind, finding.passes) == (FindingKind.CLOCK, True)
            assert words in finding.text

    def test_token_mismatch(self) -> None:
        few = candidate_edited(setting("prompt_tokens_engine", 1001, slice(0, 3)))
        assert kinds(comparison(few, rules(validity={"token_mismatch": "1%"}))) == set()
        assert kinds(comparison(few, rules(validity={"token_mismatch": "0.9%"}))) == {FindingKind.PROMPT_TOKENS}


class TestEngineFaults:
    """What happens to an engine is its own fault, not one of the measurement."""

    def test_death_of_the_candidate_alone_never_makes_a_run_invalid(self) -> None:
        """Although it ends the run early, spoils its scrapes and sends late."""
        pairs = good_pairs(2)
        broken: ArmRound = edited(pairs[1].candidate, late)
        pairs = with_candidate(
            pairs,
            1,
            events=(died(),),
            complete=False,
            requests=fail(broken.requests, slice(200, 400)),
            scrapes=replace(SCRAPES, succeeded=30),
            metrics=metric_rows({("generation_tokens", None): [9, 1]}, [5.0, 50.0]),
            host=host_rows(steal=3.0),
        )
        verdict = judge(comparison(pairs))
        assert kinds(comparison(pairs)) == set()
        assert verdict.verdict == "NO_GO"

    def test_death_of_both_is_invalid(self) -> None:
        pairs = with_candidate(good_pairs(), 1, events=(died(),), complete=False)
        pairs = with_baseline(pairs, 2, events=(died(),), complete=False)
        assert kinds(comparison(pairs)) == {FindingKind.DIED}
        assert judge(comparison(pairs)).verdict == "INVALID"

    def test_short_answers_of_the_baseline_are_invalid(self) -> None:
        pairs = good_pairs()
        short = edited(pairs[0].baseline, setting("output_tokens_received", 4, 7))
        assert kinds(comparison(with_baseline(pairs, 0, requests=short.requests))) == {FindingKind.OUTPUT_TOKENS}

    def test_failures_are_errors_never_length_faults(self) -> None:
        pairs = good_pairs()
        pairs = with_candidate(pairs, 1, requests=fail(pairs[1].candidate.requests, [3]))
        assert kinds(comparison(with_baseline(pairs, 1, requests=fail(pairs[1].baseline.requests, [3])))) == set()


class TestRounds:
    def test_a_run_that_something_else_ended_early_lacks_no_rounds(self) -> None:
        assert kinds(comparison(good_pairs(1), arm_differences=("model",))) == {FindingKind.ARMS}

    def test_a_round_that_was_recorded_twice(self) -> None:
        pairs = good_pairs()
        (finding,) = check_validity(comparison([*pairs, pairs[1]])).findings
        assert (finding.kind, finding.round) == (FindingKind.INCOMPLETE, 2)

    def test_a_round_without_requests(self) -> None:
        requests, tokens = request_rows([])
        pairs = with_candidate(good_pairs(), 1, requests=requests, tokens=tokens)
        assert kinds(comparison(pairs)) >= {FindingKind.INCOMPLETE}

    def test_no_round_at_all(self) -> None:
        verdict = judge(comparison([]))
        assert verdict.verdict == "INVALID"
        assert {rule.status for rule in verdict.rules if rule.kind == "validity"} == {"fail", "unknown", "pass"}
        assert result_of(verdict, "arms-differ").status == "pass"
        assert result_of(verdict, "clock-jump").text == "no pair of rounds was recorded"
        assert result_of(verdict, "stability").status == "unknown"
        assert all(rule.status != "pass" for rule in verdict.rules if rule.kind != "validity")

    def test_a_configuration_that_is_wrong_is_all_there_is_to_say(self) -> None:
        """Such a round was never driven, so its tables are empty."""
        requests, tokens = request_rows([])
        pairs = with_candidate(
            good_pairs(),
            0,
            config_differences=("no host tier",),
            requests=requests,
            tokens=tokens,
            scrapes=replace(SCRAPES, expected=0, succeeded=0),
        )
        assert kinds(comparison(pairs)) == {FindingKind.CONFIG}


class TestMetrics:
    def test_that_some_rounds_have_and_others_lack_have_vanished(self) -> None:
        gone = replace(SCRAPES, supported=False, succeeded=0)
        (finding,) = check_validity(comparison(with_candidate(good_pairs(), 1, scrapes=gone))).findings
        assert (finding.kind, finding.round, finding.arm) == (FindingKind.VANISHED, 2, "tiered")

    def test_that_never_were_there_are_unknown_and_do_not_block(self) -> None:
        pairs = good_pairs()
        for place in range(3):
            pairs = with_candidate(pairs, place, scrapes=replace(SCRAPES, supported=False, succeeded=0))
        checked = check_validity(comparison(pairs))
        assert checked.findings == ()
        assert set(checked.unknown) == {
            *(FindingKind.SCRAPE_GAP, FindingKind.RESET, FindingKind.SOURCES, FindingKind.RESIDUE)
        }
        assert checked.unknown[FindingKind.RESET] == "no /metrics: tiered"


class TestWhatCannotBeChecked:
    def test_metrics_without_any_tokens_do_not_say_that_tokens_add_up(self) -> None:
        pairs = good_pairs()
        for place in range(3):
            pairs = with_candidate(pairs, place, metrics=metric_rows({("preemptions", None): [0, 0]}, [5.0, 130.0]))
        checked = check_validity(comparison(pairs))
        assert checked.findings == ()
        assert set(checked.unknown) == {FindingKind.SOURCES}
        assert checked.unknown[FindingKind.SOURCES].startswith("the metrics of tiered tell no tokens that could be")

    def test_a_single_round_without_them_is_named(self) -> None:
        """Given one of three rounds whose metrics tell no tokens, then the other two do not speak for it."""
        silent = metric_rows({("preemptions", None): [0, 0]}, [5.0, 130.0])
        checked = check_validity(comparison(with_candidate(good_pairs(), 1, metrics=silent)))
        assert checked.unknown[FindingKind.SOURCES].startswith("the metrics of tiered in round 2 tell no tokens")

    @pytest.mark.parametrize(
        ("counter", "what"), [("iterations_unseen", "3 iterations"), ("metric_events_lost", "3 events")]
    )
    def test_what_was_never_counted_makes_sources_unknown(self, counter: str, what: str) -> None:
        """Given counters that missed something, then no rule on sources is decided, and the reason is said."""
        pairs = good_pairs()
        lost = pd.concat([pairs[1].candidate.metrics, metric_rows({(counter, None): [2, 5]}, [5.0, 130.0])])
        run = comparison(with_candidate(pairs, 1, metrics=lost))
        verdict = judge(run)
        assert check_validity(run).findings == ()
        found = result_of(verdict, "token-sources-broken")
        assert (found.status, found.text) == (
            "unknown",
            f"tiered: {what} were never counted, so where tokens came from is not known",
        )
        promoted = result_of(verdict, "promoted")
        assert promoted.status == "unknown"
        assert f"{what} of tiered were never counted" in promoted.text
        assert verdict.verdict == "INCONCLUSIVE"
        still = pd.concat([pairs[1].candidate.metrics, metric_rows({(counter, None): [2, 2]}, [5.0, 130.0])])
        assert judge(comparison(with_candidate(pairs, 1, metrics=still))).verdict == "GO"

    def test_is_unknown_and_does_not_block(self) -> None:
        pairs = with_candidate(
            good_pairs(), 0, config_unknown=("size of the host tier",), host=host_rows().iloc[:0]
        )
        pairs = with_baseline(
            pairs, 0, requests=edited(pairs[0].baseline, setting("prompt_tokens_engine", np.nan)).requests
        )
        run = comparison(pairs, attached=True)
        checked = check_validity(run)
        assert checked.findings == ()
        assert checked.unknown == {
            FindingKind.CONFIG: "could not be proven: tiered: size of the host tier",
            FindingKind.RESIDUE: "attached servers were not restarted, so what their tiers held is unknown",
            FindingKind.CONTENTION: "what else used the host was not recorded in every round",
            FindingKind.SWAP: "the swap in use was not recorded in every round",
            FindingKind.PROMPT_TOKENS: "an engine does not tell how many prompt tokens it counted",
        }
        assert judge(run).verdict == "GO"
        assert result_of(judge(run), "residue").status == "unknown"

    def test_a_launched_server_that_does_not_tell_what_it_holds_is_not_known_to_be_empty(self) -> None:
        """Given a round whose server told nothing before its first request, then nobody says that it was empty."""
        untold = ("no prompt_tokens, cached_tokens at /metrics before the first request",)
        verdict = judge(comparison(with_candidate(good_pairs(), 1, residue_unknown=untold)))
        found = result_of(verdict, "residue")
        assert (verdict.verdict, found.status) == ("GO", "unknown")
        assert found.text == f"tiered: {untold[0]}, so whether every tier was empty is not known"

    def test_half_of_what_contention_is_made_of_is_not_contention(self) -> None:
        half = host_rows()
        half = half[half["name"] == "steal_cores"]
        assert (
            FindingKind.CONTENTION in check_validity(comparison(with_candidate(good_pairs(), 0, host=half))).unknown
        )
