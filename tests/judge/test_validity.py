"""Every finding, each by a run that has exactly that fault; and what is not held against a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from kvbench.judge.evidence import ArmRound, Comparison, EngineEvent, RoundPair
from kvbench.judge.findings import PASSES, Finding, FindingKind, clean
from kvbench.judge.judge import judge
from kvbench.judge.validity import check_validity, spoiled
from tests.judge.build import (
    SCRAPES,
    arm_round,
    comparison,
    died,
    edited,
    fail,
    good_pairs,
    host_rows,
    metric_rows,
    request_rows,
    result_of,
    rules,
    ttfts,
    with_baseline,
    with_candidate,
    workload,
)

BY_SOURCE = "prompt_tokens_by_source"
Edit = Callable[[pd.DataFrame], None]


def candidate_edited(edit: Edit, place: int = 1) -> list[RoundPair]:
    pairs = good_pairs()
    return with_candidate(pairs, place, requests=edited(pairs[place].candidate, edit).requests)


def setting(column: str, values: object, rows: object = slice(None)) -> Edit:
    def edit(table: pd.DataFrame) -> None:
        if isinstance(values, float) and table[column].dtype == np.int64:
            table[column] = table[column].astype(float)
        table.loc[rows, column] = values

    return edit


def after_sending(column: str, seconds: float, rows: object) -> Edit:
    """A time of some requests, as seconds after they were sent."""

    def edit(table: pd.DataFrame) -> None:
        table.loc[rows, column] = table.loc[rows, "sent_s"] + seconds

    return edit


def after_intended(seconds: float, rows: object = slice(None)) -> Edit:
    """Send times of some requests, as seconds after the intended time."""

    def edit(table: pd.DataFrame) -> None:
        table.loc[rows, "sent_s"] = table.loc[rows, "intended_s"] + seconds

    return edit


def late(table: pd.DataFrame) -> None:
    table.loc[:9, "sent_s"] = table["intended_s"] + 0.05


def unsent(table: pd.DataFrame) -> None:
    table.loc[399, "status"] = "unsent"
    table.loc[399, ["measured", "intended_basis"]] = [False, None]


def counters(
    device: list[float],
    computed: list[float],
    *,
    prompts: list[float] | None = None,
    cached: list[float] | None = None,
) -> pd.DataFrame:
    """Scraped before the first request and after the last."""
    series: dict[tuple[str, str | None], list[float]] = {
        (BY_SOURCE, "device"): device,
        (BY_SOURCE, "computed"): computed,
    }
    if prompts is not None:
        series["prompt_tokens", None] = prompts
    if cached is not None:
        series["cached_tokens", None] = cached
    return metric_rows(series, [0.0, 500.0])


RUNS: dict[FindingKind, Callable[[], Comparison]] = {
    FindingKind.CONFIG: lambda: comparison(with_candidate(good_pairs(), 0, config_differences=("no host tier",))),
    FindingKind.ARMS: lambda: comparison(good_pairs(), arm_differences=("model: tiny instead of big",)),
    FindingKind.DIED: lambda: comparison(with_baseline(good_pairs(), 1, events=(died(),), complete=False)),
    FindingKind.FROZEN: lambda: comparison(
        with_baseline(good_pairs(), 1, events=(EngineEvent("frozen", 60.0, "no token for 60 s"),), complete=False)
    ),
    FindingKind.RESTARTED: lambda: comparison(
        with_baseline(good_pairs(), 1, events=(EngineEvent("restarted", 60.0, "uptime fell"),))
    ),
    FindingKind.RESET: lambda: comparison(
        with_candidate(good_pairs(), 1, metrics=metric_rows({("generation_tokens", None): [9, 1]}, [5.0, 50.0]))
    ),
    FindingKind.MISSING: lambda: comparison(good_pairs(2)),
    FindingKind.INCOMPLETE: lambda: comparison(with_candidate(good_pairs(), 1, complete=False)),
    FindingKind.RESIDUE: lambda: comparison(
        with_candidate(good_pairs(), 1, residue=("12 files in the disk tier",))
    ),
    FindingKind.CLIENT_LATE: lambda: comparison(candidate_edited(late)),
    FindingKind.SCHEDULE: lambda: comparison(_both_edited(unsent)),
    FindingKind.OFFERED_LOAD: lambda: comparison(candidate_edited(setting("intended_s", 99.0, 3))),
    FindingKind.PROMPT_TOKENS: lambda: comparison(candidate_edited(setting("prompt_tokens_engine", 1001, 7))),
    FindingKind.OUTPUT_TOKENS: lambda: comparison(candidate_edited(setting("output_tokens_received", 6, 7))),
    FindingKind.SOURCES: lambda: comparison(
        with_candidate(good_pairs(), 1, metrics=counters([0, 2e5], [0, 1e5], prompts=[0, 4e5]))
    ),
    FindingKind.VANISHED: lambda: comparison(
        with_candidate(good_pairs(), 1, scrapes=replace(SCRAPES, vanished=True, succeeded=99))
    ),
    FindingKind.SCRAPE_GAP: lambda: comparison(
        with_candidate(good_pairs(), 1, scrapes=replace(SCRAPES, succeeded=94))
    ),
    FindingKind.CONTENTION: lambda: comparison(
        with_candidate(good_pairs(), 1, host=host_rows(steal=0.3, foreign=0.25))
    ),
    FindingKind.CLOCK: lambda: comparison(candidate_edited(setting("first_token_s", 0.5, 7))),
}


def _both_edited(edit: Edit) -> list[RoundPair]:
    pairs = good_pairs()
    for change, side in ((with_baseline, "baseline"), (with_candidate, "candidate")):
        pairs = change(pairs, 1, requests=edited(getattr(pairs[1], side), edit).requests)
    return pairs


def kinds(run: Comparison) -> set[FindingKind]:
    return {finding.kind for finding in check_validity(run).findings}


@pytest.mark.parametrize("kind", list(FindingKind))
def test_a_run_with_one_fault_is_invalid_for_exactly_that_fault(kind: FindingKind) -> None:
    run = RUNS[kind]()
    expected = {kind}
    assert kinds(run) == expected
    verdict = judge(run)
    assert (verdict.verdict, verdict.exit_code, verdict.action) == ("INVALID", 4, None)
    found = result_of(verdict, kind.value)
    assert (found.status, found.kind) == ("fail", "validity")
    assert found.text.startswith(verdict.reasons[0])


def test_a_sound_run_has_no_finding_and_says_so_for_every_kind() -> None:
    checked = check_validity(comparison(good_pairs()))
    assert checked.findings == ()
    assert checked.unknown == {}
    assert [(result.rule, result.status) for result in checked.results()] == [
        (kind.value, "pass") for kind in FindingKind
    ]
    assert [result.text for result in checked.results()] == [clean(kind) for kind in FindingKind]


class TestTexts:
    def test_say_where_and_what(self) -> None:
        finding = Finding(FindingKind.DIED, "exit code 137", "40 s", "base", 2)
        assert finding.text == "round 2 of base: the baseline's engine died at 40 s: exit code 137"
        assert Finding(FindingKind.ARMS, "model").text == "the arms differ in more than tiers: model"
        assert Finding(FindingKind.VANISHED, arm="a").text.startswith("a: /metrics vanished")
        assert Finding(FindingKind.OFFERED_LOAD, "x", round=3).text.startswith("round 3: ")

    @pytest.mark.parametrize(
        ("kind", "text"),
        [
            (
                FindingKind.CLIENT_LATE,
                "round 2 of tiered: the client sent late, p99 50 ms after the intended time, 20 ms",
            ),
            (FindingKind.SCHEDULE, "round 2 of base: 1 of 400 scheduled requests were never sent"),
            (
                FindingKind.PROMPT_TOKENS,
                "1 of 400 completed requests, such as 1001 instead of 1000 tokens in request 7",
            ),
            (FindingKind.OUTPUT_TOKENS, "0 short and 1 long of 400 completed requests"),
            (FindingKind.SCRAPE_GAP, "94 % of the measured part covered, at least 95 % asked for"),
            (FindingKind.CONTENTION, "0.55 cores stolen or used by other processes, 0.5 allowed"),
            (FindingKind.CLOCK, "1 answer came before the request was sent"),
            (FindingKind.RESET, "the counter generation_tokens fell at 50 s although no process"),
            (FindingKind.MISSING, "2 pairs of rounds recorded, the rules ask for at least 3"),
            (FindingKind.SOURCES, "sources together 300,000 tokens, prompts 400,000"),
            (
                FindingKind.OFFERED_LOAD,
                "round 2: the arms were not offered the same load: 1 request with another intended",
            ),
            (FindingKind.INCOMPLETE, "the round is not complete: it was not played to its end"),
        ],
    )
    def test_carry_the_figures(self, kind: FindingKind, text: str) -> None:
        assert any(text in finding.text for finding in check_validity(RUNS[kind]()).findings)

    def test_many_findings_of_a_kind_are_cut_to_a_few(self) -> None:
        run = comparison(with_candidate(good_pairs(), 0, residue=tuple("abcde")))
        assert result_of(judge(run), "residue").text.endswith("; and 2 more")

    def test_the_explaining_finding_comes_first(self) -> None:
        pairs = with_candidate(good_pairs(), 1, host=host_rows(foreign=2.0), residue=("files",))
        reasons = judge(comparison(pairs, arm_differences=("model",))).reasons
        assert reasons[0].startswith("the arms differ")
        assert "tier was not empty" in reasons[1]
        assert "something else used the host" in reasons[2]


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

        assert FindingKind.CLIENT_LATE not in kinds(comparison(_both_edited(edit)))

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

    def test_token_mismatch(self) -> None:
        few = candidate_edited(setting("prompt_tokens_engine", 1001, slice(0, 3)))
        assert kinds(comparison(few, rules(validity={"token_mismatch": "1%"}))) == set()
        assert kinds(comparison(few, rules(validity={"token_mismatch": "0.9%"}))) == {FindingKind.PROMPT_TOKENS}


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
        found = check_validity(comparison(candidate_edited(setting(column, value, 3)))).findings
        texts = [f.what for f in found if f.kind is FindingKind.OFFERED_LOAD]
        assert texts == [f"1 request with another {words}"]

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
        assert kinds(comparison(_both_edited(unsent), workload=closed)) == set()

    def test_a_later_turn_that_was_never_due_was_not_scheduled(self) -> None:
        def edit(table: pd.DataFrame) -> None:
            unsent(table)
            table.loc[399, ["session", "turn"]] = [4, 1]

        assert kinds(comparison(_both_edited(edit))) == set()

    def test_a_first_turn_that_was_never_sent_was(self) -> None:
        def edit(table: pd.DataFrame) -> None:
            unsent(table)
            table.loc[399, ["session", "turn"]] = [4, 0]

        assert kinds(comparison(_both_edited(edit))) == {FindingKind.SCHEDULE}

    def test_what_lies_outside_measured_phases_need_not_be_sent(self) -> None:
        def edit(table: pd.DataFrame) -> None:
            unsent(table)
            table.loc[399, "phase"] = "cool"

        assert kinds(comparison(_both_edited(edit))) == set()


class TestIdentities:
    def run(self, metrics: pd.DataFrame, edit: Edit | None = None) -> set[FindingKind]:
        pairs = good_pairs()
        changed = pairs[1].candidate if edit is None else edited(pairs[1].candidate, edit)
        return kinds(comparison(with_candidate(pairs, 1, metrics=metrics, requests=changed.requests)))

    CACHED = 200 * 900.0
    COMPUTED = 400 * 1000.0 - CACHED

    def test_hold_for_a_sound_round(self) -> None:
        sound = counters(
            [7, 7 + self.CACHED], [5, 5 + self.COMPUTED], prompts=[9, 400_009], cached=[1, 1 + self.CACHED]
        )
        assert self.run(sound) == set()

    @pytest.mark.parametrize("off", [0.004, 0.006])
    def test_may_be_off_by_half_a_per_cent(self, off: float) -> None:
        whole = 400_000.0
        found = self.run(counters([0, whole * off], [0, whole], prompts=[0, whole]))
        assert found == (set() if off < 0.005 else {FindingKind.SOURCES})

    def test_what_the_engine_counted_is_what_the_answers_say(self) -> None:
        assert self.run(counters([0, 1e5], [0, 2e5], prompts=[0, 3e5])) == {FindingKind.SOURCES}
        wrong = counters([0, self.CACHED], [0, self.COMPUTED], prompts=[0, 4e5], cached=[0, 2 * self.CACHED])
        assert self.run(wrong) == {FindingKind.SOURCES}

    def test_cover_completed_requests_only(self) -> None:
        broken = counters([0, 1e5], [0, 2e5], prompts=[0, 4e5])
        assert self.run(broken, setting("status", "error", 3)) == set()

    def test_need_scrapes_around_all_requests(self) -> None:
        short = counters([0, 1e5], [0, 2e5], prompts=[0, 4e5])
        assert self.run(short.assign(t_s=short["t_s"].replace({500.0: 60.0}))) == set()
        assert self.run(short.assign(t_s=short["t_s"].replace({0.0: 60.0}))) == set()

    def test_need_answers_that_tell(self) -> None:
        wrong = counters([0, 1e5], [0, 2e5], prompts=[0, 3e5])
        assert self.run(wrong, setting("prompt_tokens_engine", np.nan, 3)) == set()

    def test_prompts_that_were_not_counted_are_not_compared(self) -> None:
        assert self.run(counters([0, 1e5], [0, 2e5])) == set()


class TestClock:
    @pytest.mark.parametrize(
        ("column", "kept"), [("first_token_s", {FindingKind.CLOCK}), ("last_token_s", {FindingKind.CLOCK})]
    )
    def test_an_effect_before_its_cause(self, column: str, kept: set[FindingKind]) -> None:
        assert kinds(comparison(candidate_edited(after_sending(column, -0.01, 7)))) == kept

    def test_a_millisecond_is_within_reading_error(self) -> None:
        assert kinds(comparison(candidate_edited(after_sending("first_token_s", -0.0009, 7)))) == set()


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
        assert set(checked.unknown) == {FindingKind.SCRAPE_GAP, FindingKind.RESET, FindingKind.SOURCES}
        assert checked.unknown[FindingKind.RESET] == "no /metrics: tiered"


class TestWhatCannotBeChecked:
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
            FindingKind.PROMPT_TOKENS: "an engine does not tell how many prompt tokens it counted",
        }
        assert judge(run).verdict == "GO"
        assert result_of(judge(run), "residue").status == "unknown"

    def test_half_of_what_contention_is_made_of_is_not_contention(self) -> None:
        half = host_rows()
        half = half[half["name"] == "steal_cores"]
        assert (
            FindingKind.CONTENTION in check_validity(comparison(with_candidate(good_pairs(), 0, host=half))).unknown
        )


class TestSpoiledPairs:
    def findings(self, pair: RoundPair) -> set[FindingKind]:
        return {finding.kind for finding in spoiled(pair, rules(), workload())}

    @pytest.mark.parametrize("kind", list(FindingKind))
    def test_only_what_passes_is_worth_a_repeat(self, kind: FindingKind) -> None:
        pairs = RUNS[kind]().pairs
        found = set().union(*(self.findings(pair) for pair in pairs))
        assert found == ({kind} & PASSES)

    def test_what_passes(self) -> None:
        assert {kind.value for kind in PASSES} == {
            "client-late", "schedule-not-kept", "scrape-gap", "host-contention", "clock-jump",
        }  # fmt: skip

    def test_a_dying_engine_is_not_forgiven_for_what_it_spoils(self) -> None:
        pairs = with_candidate(good_pairs(), 1, events=(died(),), scrapes=replace(SCRAPES, succeeded=5))
        assert self.findings(pairs[1]) == set()

    def test_nor_when_its_death_falls_together_with_a_busy_host(self) -> None:
        pairs = with_candidate(good_pairs(), 1, events=(died(),))
        assert self.findings(with_baseline(pairs, 1, host=host_rows(foreign=3.0))[1]) == set()

    def test_metrics_that_vanished_are_not_taken_for_missed_scrapes(self) -> None:
        pairs = with_candidate(good_pairs(), 1, scrapes=replace(SCRAPES, vanished=True, succeeded=50))
        assert self.findings(pairs[1]) == set()
        assert kinds(comparison(pairs)) == {FindingKind.VANISHED, FindingKind.SCRAPE_GAP}

    def test_a_broken_identity_is_not_forgiven_on_a_busy_host(self) -> None:
        pairs = with_candidate(good_pairs(), 1, metrics=counters([0, 2e5], [0, 1e5], prompts=[0, 4e5]))
        assert self.findings(with_baseline(pairs, 1, host=host_rows(foreign=3.0))[1]) == set()

    def test_every_reason_of_both_arms_is_given(self) -> None:
        pairs = with_baseline(candidate_edited(late), 1, host=host_rows(foreign=3.0))
        assert self.findings(pairs[1]) == {FindingKind.CONTENTION, FindingKind.CLIENT_LATE}

    def test_a_wrong_configuration_is_not_made_good_by_a_repeat(self) -> None:
        pairs = with_candidate(good_pairs(), 1, config_differences=("x",))
        pairs = with_baseline(pairs, 1, host=host_rows(foreign=3.0))
        assert self.findings(pairs[1]) == set()

    def test_the_baseline_counts_as_well(self) -> None:
        assert self.findings(with_baseline(good_pairs(), 1, host=host_rows(foreign=3.0))[1]) == {
            FindingKind.CONTENTION
        }


def test_the_figures_of_the_instrument_are_the_worst_ones() -> None:
    pairs = candidate_edited(late)
    pairs = with_baseline(pairs, 0, load={"timestamp_error_p99_s": 0.002}, scrapes=replace(SCRAPES, succeeded=97))
    pairs = with_candidate(pairs, 2, load={"timestamp_error_p99_s": 0.001})
    found = judge(comparison(pairs)).instrument
    assert found.send_lag_p99_s == pytest.approx(0.05, abs=0.001)
    assert found.timestamp_error_p99_s == 0.002
    assert found.scrape_coverage == 0.97
    assert found.multi_token_event_share == 0.0


def test_without_requests_the_instrument_has_no_figures() -> None:
    requests, tokens = request_rows([])
    empty = arm_round("a", 1, requests, tokens, scrapes=replace(SCRAPES, supported=False))
    found = judge(comparison([RoundPair(1, empty, empty)])).instrument
    assert set(found.model_dump().values()) == {None}


def test_lognormal_latencies_are_reproducible() -> None:
    """The builder gives paired draws: the same seed, the same requests."""
    assert np.array_equal(ttfts(seed=3), ttfts(seed=3))
