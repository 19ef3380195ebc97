"""Benefits: what must get better. One proven is enough, so each takes its share of the level."""

from __future__ import annotations

from kvbench.judge.case import Case, Question, Ruling, Stakes
from kvbench.judge.rulings import rule_on

__all__ = ["judge_benefits"]


def judge_benefits(case: Case) -> list[Ruling]:
    """Every declared benefit. Proven at the level divided by their number; refuted, because all must be, at the
    level of one."""
    rules = case.comparison.rules.benefits
    stakes = Stakes(kept=case.alpha / max(len(rules), 1), broken=case.alpha)
    return [rule_on(Question(rule, "benefit", case, stakes)) for rule in rules]
