"""Benefits: what must get better. One proven is enough, so each takes its share of the level."""

from __future__ import annotations

from kvbench.judge.case import Case, Question, Ruling, Stakes
from kvbench.judge.evaluation import each_bound
from kvbench.judge.rulings import rule_on

__all__ = ["judge_benefits"]


def judge_benefits(case: Case) -> list[Ruling]:
    """Every declared benefit.

    Proven at the level divided by their number, because one is enough. Refuted at the level of one, because all
    must be; but any bound beyond refutes a benefit, so that its level is divided by its bounds (`each_bound`).
    """
    rules = case.comparison.rules.benefits
    return [
        rule_on(Question(rule, "benefit", case, Stakes(case.alpha / len(rules), each_bound(rule, case.alpha))))
        for rule in rules
    ]
