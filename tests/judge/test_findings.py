"""Every finding, each by a run that has exactly that fault, and its words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from kvbench.judge.evidence import Comparison, EngineEvent, RoundPair
from kvbench.judge.findings import PASSES, Finding, FindingKind, clean
from kvbench.judge.judge import judge
from kvbench.judge.validity import check_validity, spoiled
from tests.judge.ask import kinds, result_of
from tests.judge.build import SCRAPES, comparison, counters, good_pairs, host_rows, metric_rows, rules, workload
from tests.judge.change import (
    both_edited,
    candidate_edited,
    died,
    fail,
    late,
    primed,
    setting,
    unsent,
    with_baseline,
    with_candidate,
)

NO_SOCKET = "client_limit: Too many open files"

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
    FindingKind.REFUSING: lambda: comparison(
        with_baseline(good_pairs(), 1, events=(EngineEvent("refusing", 9.0, "it refuses all"),), complete=False)
    ),
    FindingKind.RESET: lambda: comparison(
        with_candidate(good_pairs(), 1, metrics=metric_rows({("generation_tokens", None): [9, 1]}, [5.0, 50.0]))
    ),
    FindingKind.MISSING: lambda: comparison(good_pairs(2)),
    FindingKind.INCOMPLETE: lambda: comparison(with_candidate(good_pairs(), 1, complete=False)),
    FindingKind.RESIDUE: lambda: comparison(
        with_candidate(good_pairs(), 1, residue=("12 files in the disk tier",))
    ),
    FindingKind.PRIMING: lambda: comparison(
        with_candidate(good_pairs(), 1, requests=primed(good_pairs()[1].candidate, failed=3))
    ),
    FindingKind.WORKER: lambda: comparison(
        with_candidate(good_pairs(), 1, load_faults=("worker 2 died",), complete=False)
    ),
    FindingKind.CLIENT_LATE: lambda: comparison(candidate_edited(late)),
    FindingKind.CLIENT_LIMIT: lambda: comparison(
        with_candidate(good_pairs(), 1, requests=fail(good_pairs()[1].candidate.requests, slice(0, 3), NO_SOCKET))
    ),
    FindingKind.SCHEDULE: lambda: comparison(both_edited(unsent)),
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
    FindingKind.SWAP: lambda: comparison(with_candidate(good_pairs(), 1, host=host_rows(swapped=100 * 2.0**20))),
    FindingKind.CLOCK: lambda: comparison(candidate_edited(setting("first_token_s", 0.5, 7))),
}


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
    assert clean(FindingKind.ARMS) == "the arms differ in tiers alone"
    assert clean(FindingKind.CONTENTION) == "nothing else used the host"


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
            (FindingKind.CLIENT_LIMIT, "had no socket for 3 of 400 requests (Too many open files); allow more"),
            (FindingKind.SCHEDULE, "round 2 of base: 1 of 400 scheduled requests were never sent"),
            (
                FindingKind.PROMPT_TOKENS,
                "1 of 400 completed requests, such as 1001 instead of 1000 tokens in request 7",
            ),
            (FindingKind.OUTPUT_TOKENS, "0 short and 1 long of 400 completed requests"),
            (FindingKind.SCRAPE_GAP, "94 % of the measured part covered, at least 95 % asked for"),
            (FindingKind.CONTENTION, "0.55 cores stolen or used by other processes, 0.5 allowed"),
            (
                FindingKind.SWAP,
                "100 MiB more in use than at the start of the measured part; tiers and engines must",
            ),
            (FindingKind.CLOCK, "1 answer came before the request was sent"),
            (
                FindingKind.PRIMING,
                "round 2 of tiered: the tiers were not filled as planned before the round: 3 of 8 requests that "
                "fill the tiers failed, such as 'timeout: no answer'",
            ),
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
            "worker-lost", "client-late", "client-limit", "schedule-not-kept", "scrape-gap", "host-contention",
            "host-swap", "clock-jump",
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
