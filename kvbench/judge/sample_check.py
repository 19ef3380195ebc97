"""Before a run: which rules the workload cannot carry, and what would."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from kvbench.judge import wording
from kvbench.judge.errors import requests_for_error_rate
from kvbench.judge.latency import carries
from kvbench.judge.readings import carried_quantile, requests_needed
from kvbench.spec.rules import LATENCIES, Guardrail, Rule, Rules

__all__ = ["check_sample"]


def check_sample(rules: Rules, counts_by_class: Mapping[str, int]) -> list[str]:
    """One sentence for every rule that cannot be decided with these measured requests a round, by class.

    The count of "all" is the sum of the classes unless it is given.
    """
    counts = {"all": sum(counts_by_class.values()), **counts_by_class}
    return [
        sentence
        for rule in (*rules.guardrails, *rules.benefits, *rules.evidence)
        for sentence in _problems(rule, counts, rules)
    ]


def _problems(rule: Rule, counts: Mapping[str, int], rules: Rules) -> Iterator[str]:
    if rule.class_ not in counts:
        known = ", ".join(sorted(counts))
        yield f"{rule.id} is about class {rule.class_}, which the schedule does not have; it has {known}"
        return
    n = counts[rule.class_]
    if isinstance(rule, Guardrail) and rule.sustained is not None:
        return
    if rule.metric in LATENCIES and rule.quantile is not None and not carries(n, rule.quantile):
        yield _too_few(rule, rule.quantile, n)
    if rule.metric == "error_rate" and rule.max is not None and 0 < rule.max < 1:
        yield from _error_rate(rule, rule.max, n, rules)


def _too_few(rule: Rule, quantile: float, n: int) -> str:
    needed = requests_needed(quantile)
    place = "" if rule.class_ == "all" else f" in class {rule.class_}"
    carried = carried_quantile(n)
    way_out = f"use quantile ≤ {carried:g} or" if carried is not None else "it carries no quantile; use"
    times = math.ceil(10 * needed / n) / 10 if n else None
    longer = f"measured phases {times:g} times as long" if times is not None else "a workload that has some"
    return f"{rule.id} needs {needed} requests a round{place}, the schedule has {n}; {way_out} {longer}"


def _error_rate(rule: Rule, limit: float, n: int, rules: Rules) -> Iterator[str]:
    """Even without a single failure, an exact bound is as low as the sample allows."""
    needed = requests_for_error_rate(limit, (1 - rules.confidence) / 2)
    total = n * rules.rounds.max
    if total < needed:
        place = "" if rule.class_ == "all" else f" of class {rule.class_}"
        rounds = f"{wording.count(rules.rounds.max, 'round')} {'has' if rules.rounds.max == 1 else 'have'}"
        yield (
            f"{rule.id} needs {needed:,} requests{place} over all rounds to prove at most {wording.share(limit)}, "
            f"{rounds} {total:,}; use a higher limit, longer phases or more rounds"
        )
