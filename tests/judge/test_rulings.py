"""Each metric has its own judge."""

from __future__ import annotations

import pytest

from kvbench.judge.case import Question, Stakes, build_case
from kvbench.judge.errors import evaluate_errors
from kvbench.judge.evaluation import evaluate
from kvbench.judge.parity import evaluate_parity
from kvbench.judge.rulings import rule_on
from tests.judge.build import comparison, good_pairs, rules


@pytest.mark.parametrize(
    ("rule", "judge_of_it"),
    [
        ({"metric": "error_rate", "max": 0.02}, evaluate_errors),
        ({"metric": "output_parity"}, evaluate_parity),
        ({"metric": "ttft", "quantile": 0.5, "max": 2.0}, evaluate),
        ({"metric": "goodput", "min": 1.0}, evaluate),
    ],
)
def test_a_rule_is_judged_by_the_judge_of_its_metric(rule: dict[str, object], judge_of_it: object) -> None:
    run = comparison(good_pairs(), rules(guardrails=[{"id": "r", **rule}]))
    question = Question(run.rules.guardrails[0], "guardrail", build_case(run), Stakes(0.025, 0.025))
    assert rule_on(question) == judge_of_it(question)
    assert rule_on(question).result.metric == rule["metric"]
