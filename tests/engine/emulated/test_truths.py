"""Each known truth, injected into the candidate (or the baseline) in virtual time, is found out by name."""

from __future__ import annotations

import pytest

from kvbench.judge.verdict import RuleResult
from tests.engine.emulated.truths import TRUTHS, Truth, judged


@pytest.mark.parametrize("truth", TRUTHS, ids=[truth.id for truth in TRUTHS])
def test_a_truth_ends_in_its_verdict_and_the_right_rule_names_it(truth: Truth) -> None:
    verdict = judged(truth)
    rules: dict[str, RuleResult] = {rule.rule: rule for rule in verdict.rules}
    assert verdict.verdict.value in truth.verdict.split("|"), verdict.reasons
    if truth.rules:
        expected = ("fail", "unknown") if "INCONCLUSIVE" in truth.verdict else ("fail",)
        assert any(rules[name].status in expected for name in truth.rules if name in rules), verdict.reasons
