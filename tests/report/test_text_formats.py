"""Terminal, Markdown, JUnit and JSON: what they say, and that nothing in the data can say anything else."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from kvbench.judge.verdict import Outcome, Verdict
from kvbench.report.data import ReportData, engine_facts, tier_sentences
from kvbench.report.junit import render_junit
from kvbench.report.markdown import render_markdown
from kvbench.report.plain import plain
from kvbench.report.terminal import encodable, render_verdict
from kvbench.report.verdict_json import render_verdict_json
from kvbench.report.view import view
from kvbench.report.wording import MISSING, show_limit, show_value, what_is_judged
from kvbench.spec.profile import Profile
from tests.report.build import RULES, arm_facts, build
from tests.report.conftest import page_of
from tests.report.verdicts import plain_rule

CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff\uffff]")


def terminal(data: ReportData, width: int = 80, encoding: str = "utf-8", **more: object) -> str:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    render_verdict(Console(file=stream, width=width, **more), data)  # type: ignore[arg-type]
    stream.flush()
    return raw.getvalue().decode(encoding)


# ---- terminal


def test_the_first_line_is_the_verdict_in_words(each: ReportData) -> None:
    first = terminal(each).splitlines()[0]
    assert each.verdict.verdict.value in first
    assert "host-and-disk" in first


@pytest.mark.parametrize("width", [40, 60, 80, 111, 112, 200])
def test_no_line_is_wider_than_the_terminal_and_none_ends_in_blanks(go: ReportData, width: int) -> None:
    *lines, page, command = terminal(go, width).splitlines()
    assert max(map(len, lines)) <= width
    assert page.endswith("/report.html")  # paths are there to be copied, so they are never broken
    assert "kvbench report " in command
    assert not [line for line in lines if line != line.rstrip()]


def test_without_a_terminal_there_is_no_escape_sequence(go: ReportData, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b" not in terminal(go)
    monkeypatch.setenv("NO_COLOR", "1")
    coloured = re.sub(r"\x1b\[[0-9;]*m", "", terminal(go, force_terminal=True))
    assert not re.search(r"\x1b\[(3|9)\d", terminal(go, force_terminal=True))
    assert "✔ GO" in coloured


def test_a_terminal_without_unicode_gets_plain_letters(go: ReportData) -> None:
    text = terminal(go, encoding="ascii")
    assert text.startswith("+ GO: host-and-disk may go to production")
    assert "limit <= x1.5" in text


def test_reasons_action_and_every_rule_are_said(no_go: ReportData) -> None:
    text = " ".join(terminal(no_go).split())
    for sentence in [*no_go.verdict.reasons, "Disable the disk tier", *no_go.verdict.not_tested]:
        assert " ".join(sentence.split()) in text
    for rule in no_go.verdict.rules:
        assert rule.rule in text
    assert "×2.31 [×1.99, ×2.68]" in text
    assert "kvbench report results/20260314T150926Z-demo" in text


def test_the_worst_candidate_is_on_top_and_all_are_shown(several: ReportData) -> None:
    lines = terminal(several).splitlines()
    heads = [line for line in lines if re.match(r"[✔✘?!] (GO|NO_GO|INCONCLUSIVE|INVALID): ", line)]
    assert [head.split(":")[0].split()[1] for head in heads] == ["INVALID", "NO_GO", "GO"]
    assert lines[0] == heads[0]


def test_text_from_elsewhere_cannot_drive_the_terminal(attacked: ReportData) -> None:
    text = terminal(attacked, force_terminal=True, color_system="standard", no_color=False)
    assert not CONTROLS.search(re.sub(r"\x1b\[[0-9;]*m", "", text))
    assert "[bold red]" in text.replace("\n", "")


def test_every_format_says_what_a_budget_and_parity_are_judged_on(go: ReportData) -> None:
    told = {rule.rule: rule.what for rule in view(go).candidates[0].rules}
    assert told["short-ttft"] == "TTFT p90, class short, in a typical round"
    assert told["parity"] == "output parity, answers from one prefix taken as independent"
    assert told["ttft-p90"] == "TTFT p90"
    assert told["sustained"] == "TTFT p90, class short: share over 2 s, sustained for 30 s"
    for text in (terminal(go, 80), terminal(go, 400), render_markdown(go), page_of(go)):
        for rule in ("short-ttft", "parity"):
            assert told[rule] in " ".join(text.split())


def test_of_a_rule_with_both_limits_only_the_budget_is_of_a_typical_round(go: ReportData) -> None:
    both = RULES.model_copy(
        update={"guardrails": [rule.model_copy(update={"max": 2.0}) for rule in RULES.guardrails[:1]]}
    )
    result = next(rule for rule in go.verdict.rules if rule.rule == "ttft-p90")
    assert what_is_judged(result, both) == "TTFT p90"
    assert what_is_judged(result.model_copy(update={"limit": 2.0}), both) == "TTFT p90, in a typical round"


def test_p99_is_shown_only_where_three_values_lie_beyond(go: ReportData) -> None:
    rows = view(go).candidates[0].latency_of("ttft")
    assert [row.p99 != MISSING for row in rows] == [int(row.n) >= 300 for row in rows]
    assert {row.p99 != MISSING for row in rows} == {True, False}


@pytest.mark.parametrize(("n", "shown"), [(5, ""), (6, "p50"), (29, "p50"), (30, "p50 p90"), (300, "p50 p90 p99")])
def test_no_quantile_is_shown_that_the_sample_cannot_carry(go: ReportData, n: int, shown: str) -> None:
    row = {"arm": "a", "class": "c", "metric": "ttft", "count": n, "p50": 1.0, "p90": 2.0, "p99": 3.0}
    data = dataclasses.replace(go, verdict=go.verdict.model_copy(update={"latency": [row]}))
    (told,) = view(data).candidates[0].latency
    assert [name for name in ("p50", "p90", "p99") if getattr(told, name) != MISSING] == shown.split()


def test_what_a_single_round_knows_is_marked_as_a_description(go: ReportData) -> None:
    window = {"round": 1.0, "baseline": 1.0, "candidate": 0.5, "baseline_low_s": 0.9, "baseline_high_s": 1.1}
    rules = [
        rule.model_copy(update={"windows": [window], "sign_flip_p": 0.03125} if rule.kind == "benefit" else {})
        for rule in go.verdict.rules
    ]
    data = dataclasses.replace(go, verdict=go.verdict.model_copy(update={"rules": rules}))
    shown = view(data).candidates[0].per_round[0]
    assert shown.columns == ("round", "baseline", "candidate", "baseline low", "baseline high")
    assert shown.rows[0][3:] == ("900 ms", "1.1 s")
    assert "block bootstrap within the round, a description" in shown.what
    assert "sign-flip test of no difference: p = 0.031, a description" in shown.what


@pytest.mark.parametrize("columns", [80, 120])
def test_the_terminal_tells_the_load_that_was_achieved(go: ReportData, columns: int) -> None:
    text = terminal(go, width=columns)
    part = text.partition("Load that was achieved\n")[2].partition("The instrument itself")[0]
    assert part.count("/s") == 4, "two classes of two arms"
    assert all(word in part for word in ("short", "long", "baseline", "host-and-disk", "cached"))


@pytest.mark.parametrize(
    ("outcome", "needed", "words"),
    [
        (Outcome.INCONCLUSIVE, (9, 20), "; about 9 to 20 would be needed."),
        (Outcome.INCONCLUSIVE, (1200, 1200), "; about 1,200 would be needed."),
        (
            Outcome.INCONCLUSIVE,
            None,
            "; no number of rounds is known to settle all that is open, see the reasons.",
        ),
        (Outcome.GO, None, "the round is the unit of evidence."),
    ],
)
def test_how_many_rounds_would_be_needed_is_said_or_that_nobody_knows(
    outcome: Outcome, needed: tuple[int, int] | None, words: str
) -> None:
    data = build(outcome, requests_a_round=20)
    rounds = data.verdict.rounds.model_copy(update={"needed": needed})
    told = dataclasses.replace(data, verdict=data.verdict.model_copy(update={"rounds": rounds}))
    assert view(told).candidates[0].rounds.endswith(words)


def test_what_was_not_measured_is_never_zero(go: ReportData) -> None:
    unknown = {"device": None, "host": 0.0, "disk": None, "computed": 10.0}
    data = dataclasses.replace(go, verdict=go.verdict.model_copy(update={"sources": {"baseline": unknown}}))
    (sources,) = view(data).candidates[0].sources
    assert [part.tokens for part in sources.parts] == [MISSING, "0", MISSING, "10"]
    assert show_value(None, "s") == MISSING


def test_an_emulated_engine_is_said_before_anything_but_the_verdict(go: ReportData) -> None:
    arms = (go.arms[0], dataclasses.replace(go.arms[1], engine="emulated"))
    data = dataclasses.replace(go, arms=arms)
    assert "Emulated engine in host-and-disk" in terminal(data).splitlines()[1]
    assert "Emulated engine in host-and-disk" in render_markdown(data)


@pytest.mark.parametrize(
    ("rule", "limit", "unit", "shown"),
    [
        ("ttft-p90", 1.5, "s", "≤ ×1.5"),
        ("goodput", 1.1, "1/s", "≥ ×1.1"),
        ("short-ttft", 2.0, "s", "≤ 2 s"),
        ("errors", 0.02, "fraction", "≤ 2 %"),
        ("promoted", 1, "tokens", "≥ 1 tokens"),
        ("send-lag", 0.02, "s", "20 ms"),
        ("hits-worth-it", 1.0, "ratio", "≤ ×1"),
    ],
)
def test_a_limit_says_its_direction_and_unit(rule: str, limit: float, unit: str, shown: str) -> None:
    assert show_limit(plain_rule(rule, "guardrail", "pass", "", limit=limit, unit=unit), RULES) == shown


@given(st.text())
def test_plain_text_is_one_harmless_line(text: str) -> None:
    shown = plain(text)
    assert not CONTROLS.search(shown)
    assert "\n" not in shown
    assert plain(shown) == shown


@given(st.text())
def test_any_encoding_can_be_written(text: str) -> None:
    encodable(plain(text), "ascii").encode("ascii")


# ---- Markdown


def tables(markdown: str) -> list[list[str]]:
    blocks = re.split(r"\n\n+", markdown)
    return [block.splitlines() for block in blocks if block.startswith("|")]


def test_every_markdown_table_has_equal_columns(each: ReportData, attacked: ReportData) -> None:
    for data in (each, attacked):
        found = tables(render_markdown(data))
        assert len(found) >= 6
        for table in found:
            assert len({line.count("|") for line in table}) == 1
            assert re.fullmatch(r"\|( -+:? \|)+", table[1])


def test_markdown_opens_with_the_verdict_and_names_the_tier_to_disable(no_go: ReportData) -> None:
    text = render_markdown(no_go)
    assert "## ✘ NO_GO: host-and-disk must not go to production" in text
    assert "**Do this:** Disable the disk tier" in text


def test_markdown_shows_foreign_text_as_text(attacked: ReportData) -> None:
    text = render_markdown(attacked)
    assert not CONTROLS.search(text)
    outside_code = [line for line in text.splitlines() if not line.startswith("    ")]
    assert [line for line in outside_code if line.startswith("# ")] == [text.splitlines()[0]]
    ours = ("**Do this:**", "- ", "# ", "## ", "### ", "> ", "[!WARNING]")
    for line in outside_code:
        foreign = line
        for mark in ours:
            foreign = foreign.replace(mark, "")
        assert not re.search(r"[<>&](?!#\d+;)|(?<!\\)[\[\]`*]", foreign), line


# ---- JUnit


def test_junit_has_a_case_for_every_rule_and_one_for_the_verdict(each: ReportData) -> None:
    root = ET.fromstring(render_junit(each))
    names = [case.get("name") for case in root.iter("testcase")]
    assert sorted(map(str, names)) == sorted(["verdict", *(rule.rule for rule in each.verdict.rules)])
    (suite,) = root
    assert int(suite.get("tests", "")) == len(names)


def test_junit_is_red_unless_go(each: ReportData) -> None:
    root = ET.fromstring(render_junit(each))
    red = len(list(root.iter("failure"))) + len(list(root.iter("error")))
    assert (red == 0) == (each.verdict.verdict is Outcome.GO)
    assert int(root.get("failures", "")) + int(root.get("errors", "")) == red


def test_junit_skips_what_is_unknown_and_fails_what_failed(no_go: ReportData, go: ReportData) -> None:
    def outcomes(data: ReportData) -> dict[str, list[str]]:
        cases = ET.fromstring(render_junit(data)).iter("testcase")
        return {str(case.get("name")): [child.tag for child in case] for case in cases}

    assert outcomes(go)["goodput"] == ["skipped"]
    assert outcomes(go)["long-ttft"] == []
    assert outcomes(no_go)["ttft-p90"] == ["failure"]
    assert outcomes(no_go)["stability"] == []


def test_a_refuted_benefit_does_not_turn_a_go_red(go: ReportData) -> None:
    rules = [
        rule.model_copy(update={"status": "fail"}) if rule.rule == "goodput" else rule for rule in go.verdict.rules
    ]
    data = dataclasses.replace(go, verdict=go.verdict.model_copy(update={"rules": rules}))
    assert "<failure" not in render_junit(data)


def test_junit_is_valid_xml_whatever_the_text(attacked: ReportData) -> None:
    root = ET.fromstring(render_junit(attacked))
    assert not [element for element in root.iter() if element.tag in ("script", "img")]


def test_junit_has_a_suite_for_each_candidate(several: ReportData) -> None:
    suites = [suite.get("name") for suite in ET.fromstring(render_junit(several))]
    assert suites == [f"{name} against baseline" for name in ("disk-only", "small-host", "host-and-disk")]


# ---- verdict.json


def test_verdict_json_is_the_verdict(each: ReportData) -> None:
    text = render_verdict_json(each)
    assert Verdict.model_validate_json(text) == each.verdict
    assert list(json.loads(text))[:3] == ["schema", "verdict", "exit_code"]
    assert "candidates" not in json.loads(text)
    assert json.loads(text)["rules"][0].keys() >= {"rule", "class", "decision_ci", "windows"}


def test_verdict_json_lists_several_candidates_and_repeats_the_worst(several: ReportData) -> None:
    document = json.loads(render_verdict_json(several))
    assert document["verdict"] == "INVALID"
    assert [each["verdict"] for each in document["candidates"]] == ["GO", "NO_GO", "INVALID"]


def test_an_infinite_bound_is_null_in_json(go: ReportData) -> None:
    rule = plain_rule("x", "guardrail", "unknown", "x", decision_ci=(0.5, float("inf")))
    data = dataclasses.replace(go, verdict=go.verdict.model_copy(update={"rules": [rule]}))
    assert json.loads(render_verdict_json(data))["rules"][0]["decision_ci"] == [0.5, None]


# ---- facts


def test_tiers_are_told_in_sentences() -> None:
    profile = Profile.model_validate(
        {
            "name": "t",
            "engine": {"kind": "vllm", "environment": "vllm-cpu", "model": "tiny"},
            "tiers": {
                "device": {"blocks": 256, "kv_dtype": "fp8"},
                "host": {"size": 48 * 2**20},
                "disk": {"path": "cache", "size_limit": 2**31, "throttle": 2**20},
            },
        }
    )
    assert tier_sentences(profile) == (
        "device: 256 blocks, KV in fp8",
        "host: 48 MiB, lru, via native",
        "disk: files under cache, at most 2 GiB, slowed to 1 MiB/s",
    )


def test_facts_of_the_engine_tell_unproven_from_absent() -> None:
    facts = dict(
        engine_facts({"version": "0.32.0", "host_bytes": 0, "disk": None, "prefix_caching": True, "raw": {}})
    )
    assert facts == {
        "engine version": "0.32.0",
        "prefix caching": "on",
        "host tier": "none",
        "disk tier": "not proven",
    }


def test_a_command_can_be_pasted_into_a_shell(go: ReportData) -> None:
    import shlex

    shown = view(go).arms[1].command
    assert tuple(shlex.split(shown)) == arm_facts("host-and-disk").argv


def test_reports_of_a_run_without_tables_can_be_made() -> None:
    data = dataclasses.replace(build(Outcome.INVALID), rounds={})
    assert "INVALID" in terminal(data)
    assert "INVALID" in render_markdown(data)
