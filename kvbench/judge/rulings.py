"""Which judge of a rule is the right one for its metric."""

from __future__ import annotations

from kvbench.judge.case import Question, Ruling
from kvbench.judge.errors import evaluate_errors
from kvbench.judge.evaluation import evaluate
from kvbench.judge.parity import evaluate_parity

__all__ = ["rule_on"]


def rule_on(question: Question) -> Ruling:
    """Judge a rule that is decided by an interval."""
    match question.rule.metric:
        case "error_rate":
            return evaluate_errors(question)
        case "output_parity":
            return evaluate_parity(question)
        case _:
            return evaluate(question)
