"""How reports say things: words, symbols and numbers, the same in every format. No layout, no escaping."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from kvbench.judge.verdict import Outcome, RuleResult
from kvbench.judge.wording import TYPICAL_ROUND, quantile_name
from kvbench.report.plain import plain
from kvbench.spec.quantity import show_bytes, show_seconds
from kvbench.spec.rules import LATENCIES, METRICS, Guardrail, Rule, Rules, Sustained

__all__ = [
    "CHANGES",
    "KINDS",
    "MISSING",
    "OUTCOMES",
    "STATUSES",
    "is_ratio",
    "is_upper",
    "latency_name",
    "metric_name",
    "show_effect",
    "show_interval",
    "show_limit",
    "show_ratio",
    "show_share",
    "show_tokens",
    "show_value",
    "what_is_judged",
    "who_pays_note",
]

MISSING = "–"
"""Stands for a figure that was not measured. Never zero."""
STATUSES = {"pass": "✔", "fail": "✘", "unknown": "?"}
CHANGES = {"gained": "+", "lost": "−", "unclear": "?"}
"""Other symbols than those of rules: nothing is decided by them."""
KINDS = ("validity", "guardrail", "evidence", "benefit")
"""In the order in which a verdict is reached."""
OUTCOMES = {
    Outcome.GO: ("✔", "GO", "{candidate} may go to production"),
    Outcome.NO_GO: ("✘", "NO_GO", "{candidate} must not go to production"),
    Outcome.INCONCLUSIVE: ("?", "INCONCLUSIVE", "there is not enough evidence about {candidate}"),
    Outcome.INVALID: ("!", "INVALID", "the measurement of {candidate} cannot be trusted"),
}
_METRICS = {
    "ttft": "TTFT",
    "ttft_service": "TTFT from the actual send",
    "itl": "ITL",
    "tpot": "TPOT",
    "e2e": "E2E",
    "throughput_tokens": "output tokens per second",
}


def show_tokens(count: float) -> str:
    """Whole tokens with separators."""
    return f"{count:,.0f}"


def show_share(share: float) -> str:
    """A fraction as per cent, three significant digits where it is small."""
    percent = share * 100
    return f"{percent:.3g} %" if abs(percent) < 10 else f"{percent:.1f} %"


def show_ratio(ratio: float) -> str:
    """A ratio candidate / baseline, three significant digits."""
    return f"×{ratio:.3g}"


_SHOWN_AS: dict[str | None, Callable[[float], str]] = {
    "s": show_seconds,
    "bytes": show_bytes,
    "fraction": show_share,
    "ratio": show_ratio,
    "tokens": lambda value: f"{show_tokens(value)} tokens",
    "1/s": lambda value: f"{value:.3g}/s",
    None: lambda value: f"{value:,.0f}" if value == int(value) else f"{value:.4g}",
}


def show_value(value: float | None, unit: str | None) -> str:
    """A figure with its unit in the form that reads best; what was not measured is `MISSING`."""
    if value is None or math.isnan(value):
        return MISSING
    if math.isinf(value):
        return "unbounded"
    show = _SHOWN_AS.get(unit)
    return show(value) if show else f"{value:.3g} {plain(unit)}"


def rule_of(result: RuleResult, rules: Rules) -> Rule | None:
    """The rule that the user wrote, if this result is about one of those."""
    written: Sequence[Rule] = (*rules.guardrails, *rules.benefits, *rules.evidence)
    return next((rule for rule in written if rule.id == result.rule), None)


def sustained_of(rule: Rule | None) -> Sustained | None:
    """The windows of a rollback rule; None for every other rule."""
    return rule.sustained if isinstance(rule, Guardrail) else None


def metric_name(metric: str) -> str:
    """`ttft` → `TTFT`; a metric without a name of its own is written out."""
    return _METRICS.get(metric, plain(metric).replace("_", " "))


def latency_name(metric: str, quantile: float) -> str:
    """`TTFT p99`."""
    return f"{metric_name(metric)} {quantile_name(quantile)}"


def who_pays_note(confidence: float, *, stopped_early: bool) -> str:
    """What the changes of the classes are and are not. That a verdict was reached is no accident of the rounds that
    were played until then, so that plain intervals of just these hold a little less often than they say."""
    early = ", after early stopping, so somewhat less" if stopped_early else ""
    return (
        "Geometric mean over rounds, the candidate's against the baseline's; below ×1 is faster. A description, "
        f"not what decides: each interval alone is at confidence {confidence:.4g}{early}. Among many some err by "
        "chance."
    )


def is_ratio(result: RuleResult, rules: Rules) -> bool:
    """Whether a rule compares with the baseline, so that its effect and limit are ratios."""
    rule = rule_of(result, rules)
    if rule is None or (rule.max_ratio is None and rule.min_ratio is None):
        return result.unit == "ratio"
    absolute = (rule.max, rule.min)
    return result.limit is None or not any(bound is not None and bound == result.limit for bound in absolute)


def is_upper(result: RuleResult, rules: Rules) -> bool:
    """Whether a ratio's limit is the most that is allowed (else it is the least that is asked for)."""
    rule = rule_of(result, rules)
    return rule is None or rule.min_ratio is None or result.limit != rule.min_ratio


def show_limit(result: RuleResult, rules: Rules) -> str:
    """The limit with its direction, where the rule's own text is known."""
    if result.limit is None:
        return MISSING
    rule = rule_of(result, rules)
    if is_ratio(result, rules):
        return f"{'≤' if is_upper(result, rules) else '≥'} {show_ratio(result.limit)}"
    return _sign(result, rule) + show_value(result.limit, result.unit)


def _sign(result: RuleResult, rule: Rule | None) -> str:
    if sustained_of(rule) is not None:
        return "< "  # it fires at this share
    if result.metric == "promoted_tokens" or (
        rule is not None and rule.min is not None and result.limit == rule.min
    ):
        return "≥ "
    return "≤ " if rule is not None and rule.max is not None and result.limit == rule.max else ""


def show_interval(interval: tuple[float, float], unit: str | None) -> str:
    """`[×1.02, ×1.15]`: both ends in the unit of the figure they belong to."""
    return "[" + ", ".join(show_value(end, unit) for end in interval) + "]"


def show_effect(result: RuleResult, rules: Rules) -> tuple[str, str]:
    """The effect and its interval; the one that decided where there is one, else the plain one."""
    unit = "ratio" if is_ratio(result, rules) else result.unit
    effect = MISSING if result.effect is None else show_value(result.effect, unit)
    interval = result.decision_ci or result.ci
    return effect, show_interval(interval, unit) if interval else ""


def what_is_judged(result: RuleResult, rules: Rules) -> str:
    """`TTFT p99, class long`: the metric, its quantile, its class, whether it is a sustained rule, and what its
    interval is of where that is not plain."""
    if result.metric is None:
        return ""
    words = metric_name(result.metric)
    rule = rule_of(result, rules)
    if rule is not None and rule.source is not None:
        words += f" from {rule.source}"
    if result.quantile is not None:
        words += f" {quantile_name(result.quantile)}"
    if result.class_ != "all":
        words += f", class {plain(result.class_)}"
    if result.metric == "output_parity":
        return f"{words}, answers from one prefix taken as independent"
    sustained = sustained_of(rule)
    if sustained is None or rule is None or rule.max is None:
        of_a_budget = result.metric in LATENCIES and rule is not None and rule.max is not None
        return f"{words}, {TYPICAL_ROUND}" if of_a_budget and not is_ratio(result, rules) else words
    budget = show_value(rule.max, METRICS.get(rule.metric))
    return f"{words}: share over {budget}, sustained for {show_seconds(sustained.for_s)}"
