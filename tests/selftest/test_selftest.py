"""Each known truth is found out by name, and a judge that can no longer fail is found out by `kvbench selftest`."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from kvbench.engine.emulated import beginning
from kvbench.judge import judge as judging
from kvbench.judge.case import Case, Ruling
from kvbench.judge.validity import Checked as Validity
from kvbench.judge.verdict import Outcome
from kvbench.selftest.check import check, exit_code
from kvbench.selftest.setting import RULES
from kvbench.selftest.truths import TRUTHS, Truth, chosen
from kvbench.spec.emulation import Injections
from tests.cli.invoke import kvbench_here


@pytest.mark.parametrize("truth", TRUTHS, ids=[truth.id for truth in TRUTHS])
def test_a_truth_ends_in_its_verdict_and_the_right_rule_names_it(truth: Truth) -> None:
    result = check(truth)
    assert result.got in truth.expected, result.reasons
    assert result.rule in truth.rules, result.reasons
    assert exit_code([result]) == 0


def test_every_fault_that_can_be_injected_is_among_the_truths() -> None:
    injected = {key for truth in TRUTHS for key in (*truth.inject, *truth.in_baseline)}
    assert injected == set(Injections.model_fields)


def test_nothing_changed_is_never_a_go() -> None:
    (truth,) = chosen(["nothing-changed"])
    assert Outcome.GO not in truth.expected
    assert truth.injected == "nothing"


def test_one_document_for_machines_names_what_was_injected_and_the_rule() -> None:
    answer = kvbench_here("selftest", "--only", "slower-tail", "--only", "nothing-changed", "--json")
    document = json.loads(answer.out)
    unchanged, slower = document["truths"]
    assert (answer.code, document["exit_code"], document["emulated"]) == (0, 0, True)
    assert (unchanged["id"], unchanged["expected"]) == ("nothing-changed", "NO_GO|INCONCLUSIVE")
    assert slower == {
        "id": "slower-tail",
        "injected": "candidate: slower_tail share 0.3, by 5",
        "expected": "NO_GO",
        "got": "NO_GO",
        "rule": "ttft-p95",
        "status": "pass",
        "text": "three in ten requests wait 5 s longer for their first token",
    }


def test_people_see_progress_on_stderr_and_a_table_that_says_it_was_emulated() -> None:
    answer = kvbench_here("selftest", "--only", "win-through-host")
    assert answer.code == 0
    assert "1/1  pass  win-through-host: GO" in answer.err
    assert "emulated engine, virtual time" in answer.out
    assert "1 of 1 truths end as they must" in answer.out


def test_an_unknown_truth_is_refused_with_those_that_there_are() -> None:
    answer = kvbench_here("selftest", "--only", "gremlins")
    assert answer.code == 2
    assert "gremlins" in answer.err
    assert "slower-tail" in answer.err


@pytest.mark.parametrize(
    ("guardrail", "truth"),
    [
        ("ttft-p95", "slower-tail"),
        ("short-ttft", "over-budget"),
        ("rollback", "sustained"),
        ("goodput", "half-lost"),
        ("itl-p95", "stalls"),
        ("errors", "errors"),
        ("errors", "dropped-streams"),
        ("parity", "corrupt-outputs"),
        ("canaries", "leaked-outputs"),
        ("stability", "freeze"),
    ],
)
def test_a_guardrail_that_always_passes_is_found_out(
    guardrail: str, truth: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = judging.judge_guardrails

    def blind(case: Case) -> list[Ruling]:
        return [_kept(ruling) if ruling.result.rule == guardrail else ruling for ruling in sound(case)]

    monkeypatch.setattr(judging, "judge_guardrails", blind)
    answer = kvbench_here("selftest", "--only", truth, "--json")
    document = json.loads(answer.out)
    (found,) = document["truths"]
    assert (answer.code, document["exit_code"]) == (4, 4)
    assert (found["status"], found["rule"]) == ("fail", None)
    assert f"must be NO_GO by {guardrail}" in found["text"]


def test_every_guardrail_of_the_setting_has_a_truth_that_only_it_may_name() -> None:
    alone = {truth.rules[0] for truth in TRUTHS if truth.expected == (Outcome.NO_GO,) and len(truth.rules) == 1}
    assert {rule.id for rule in RULES.guardrails} <= alone
    assert {rule.id for rule in RULES.benefits} <= alone, "a benefit that is refuted"


def test_a_judge_that_refutes_no_benefit_any_more_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = judging.judge_benefits

    def undecided(case: Case) -> list[Ruling]:
        return [_kept(ruling, "unknown") if ruling.result.status == "fail" else ruling for ruling in sound(case)]

    monkeypatch.setattr(judging, "judge_benefits", undecided)
    answer = kvbench_here("selftest", "--only", "no-benefit", "--json")
    (found,) = json.loads(answer.out)["truths"]
    assert (answer.code, found["status"]) == (4, "fail")
    assert "must be NO_GO by long-ttft" in found["text"]


@pytest.mark.parametrize(
    ("truth", "blind"),
    [("residue", "counted_before"), ("other-configuration", "compare")],
    ids=["residue", "config"],
)
def test_checks_before_a_round_that_see_nothing_any_more_are_found_out(
    truth: str, blind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = SimpleNamespace(differences=()) if blind == "compare" else ()
    monkeypatch.setattr(beginning, blind, lambda *_: nothing)
    answer = kvbench_here("selftest", "--only", truth, "--json")
    (found,) = json.loads(answer.out)["truths"]
    assert (answer.code, found["status"]) == (4, "fail")


def test_a_judge_that_has_no_findings_any_more_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "check_validity", lambda _: Validity((), {}))
    answer = kvbench_here("selftest", "--only", "residue")
    assert answer.code == 4
    assert "0 of 1 truths end as they must" in answer.out
    assert "fail  residue: the tiers are not empty at the start; must be INVALID by residue" in answer.out


def _kept(ruling: Ruling, status: str = "pass") -> Ruling:
    return replace(ruling, result=ruling.result.model_copy(update={"status": status}))
