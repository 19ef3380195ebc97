"""Every known truth ends in its verdict, by the rule that must name it, when it is measured and not simulated."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kvbench.compare.stall import EVIDENCE_NAME
from kvbench.judge.verdict import Outcome
from kvbench.selftest.check import STANDS_FOR
from kvbench.selftest.truths import Truth
from tests.truths.play import PLAYED_TRUTHS, Group, begin, groups, verdicts

AT_A_TIME = 5
"""Comparisons that run side by side; most of their time is waiting."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the comparisons keep their runs."""
    return tmp_path_factory.mktemp("truths")


@pytest.fixture(scope="module")
def measured(folder: Path) -> dict[str, dict[str, Any]]:
    """Truth → verdict."""
    waiting = list(groups())
    found: dict[str, dict[str, Any]] = {}
    running: list[tuple[Group, subprocess.Popen[str]]] = []
    try:
        while waiting or running:
            while waiting and len(running) < AT_A_TIME:
                group = waiting.pop(0)
                running.append((group, begin(group, folder / group.name)))
            found |= verdicts(*running[0])
            running.pop(0)
    finally:
        for _, process in running:
            process.terminate()
            process.wait()
    return found


@pytest.mark.parametrize("truth", PLAYED_TRUTHS, ids=[truth.id for truth in PLAYED_TRUTHS])
def test_a_truth_ends_in_its_verdict_and_the_right_rule_names_it(
    measured: dict[str, dict[str, Any]], truth: Truth
) -> None:
    verdict = measured[truth.id]
    outcome = Outcome(verdict["verdict"])
    assert outcome in truth.expected, verdict.get("reasons")
    statuses = {rule["rule"]: rule["status"] for rule in verdict["rules"]}
    named = [rule for rule in truth.rules if statuses.get(rule) == STANDS_FOR[outcome]]
    assert named, {rule["rule"]: rule["text"] for rule in verdict["rules"] if rule["status"] != "pass"}


def test_what_was_seen_of_a_frozen_engine_lies_beside_its_round(
    measured: dict[str, dict[str, Any]], folder: Path
) -> None:
    (stability,) = (rule["text"] for rule in measured["freeze"]["rules"] if rule["rule"] == "stability")
    assert set(re.findall(r"what was seen of it then is in (\S+\.txt)", stability)) == {EVIDENCE_NAME}
    evidence, *_ = sorted(folder.glob(f"*/out/*/arms/freeze/round-*/{EVIDENCE_NAME}"))
    text = evidence.read_text()
    assert re.search(r"^requests_running \d", text, re.MULTILINE)
    assert re.search(r"^\d+ \w \d+ threads, .* kvbench\.engine\.emulated\.server ", text, re.MULTILINE)
    assert "== the stacks of its Python code\n" in text
    assert "== the end of engine-1.log\n" in text


def test_there_are_at_least_fifteen_truths() -> None:
    assert len(PLAYED_TRUTHS) >= 15
