"""Before a run: which rules the workload cannot carry, and what would."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from kvbench.judge import wording
from kvbench.judge.errors import requests_for_error_rate
from kvbench.judge.latency import UNTIL_FIRST_TOKEN, carries
from kvbench.judge.looks import Look, multiplier, nominal_level
from kvbench.judge.rates import share_upper
from kvbench.judge.readings import carried_quantile, requests_needed
from kvbench.judge.sustained import EVALUABLE, FEWEST_REQUESTS, MOST_LOOKS, Exceedances, looks_at, watch
from kvbench.spec.engine_metrics import ENGINE_METRICS
from kvbench.spec.rules import LATENCIES, Guardrail, Rule, Rules, Sustained, metric_unit

__all__ = ["check_sample", "check_windows", "scarce"]

BY_CLASS = (*LATENCIES, "goodput", "throughput_tokens", "error_rate")
"""What is read from single requests; everything else is the engine's, the host's or about all answers together."""


def check_sample(
    rules: Rules,
    counts_by_class: Mapping[str, int | None],
    fewest_by_class: Mapping[str, int] | None = None,
    staying_by_class: Mapping[str, int] | None = None,
    taken_by_class: Mapping[str, float] | None = None,
) -> list[str]:
    """One sentence for every rule that cannot be decided with these measured requests a round, by class.

    The count of "all" is the sum of the classes unless it is given; None: only the run will tell, and only what no
    count would change is said. `fewest_by_class` is of the round that has fewest, where rounds differ: every round
    must carry a quantile. `staying_by_class`: the same of requests whose users stay to the end, where some leave;
    latencies beyond the first token are told of them. `taken_by_class`: how many requests a failing turn takes with
    it (`mean_place`), of classes that have sessions and of "all"; 1 where nothing is given.
    """
    known = [count for count in counts_by_class.values() if count is not None]
    counts = {"all": sum(known) if len(known) == len(counts_by_class) else None, **counts_by_class}
    fewest = {**counts, **(fewest_by_class or {})}
    staying = {**fewest, **(staying_by_class or {})}
    taken = taken_by_class or {}
    return [
        sentence
        for rule in (*rules.guardrails, *rules.benefits, *rules.evidence)
        for sentence in _problems(
            rule,
            counts,
            fewest if rule.metric in UNTIL_FIRST_TOKEN else staying,
            taken.get(rule.class_, 1.0),
            rules,
        )
    ]


def scarce(rules: Rules, counts_by_class: Mapping[str, int]) -> bool:
    """Whether another draw of the same load may have too few requests for a quantile: here are fewer than twice as
    many as it needs.
    """
    counts = {"all": sum(counts_by_class.values()), **counts_by_class}
    return any(
        counts.get(rule.class_, 0) < 2 * requests_needed(rule.quantile)
        for rule in (*rules.guardrails, *rules.benefits, *rules.evidence)
        if rule.quantile is not None
    )


def check_windows(
    rules: Rules, times_by_class: Mapping[str, Sequence[float]], start_s: float, end_s: float
) -> list[str]:
    """One sentence for every sustained rule that could never pass, however fast the answers.

    `times_by_class`: when measured requests are due in a round measured from `start_s` to `end_s`, by class and of
    "all"; what is not there is not known beforehand.
    """
    return [
        sentence
        for rule in rules.guardrails
        if rule.sustained is not None
        for sentence in _too_thin(rule, rule.sustained, times_by_class.get(rule.class_), start_s, end_s)
    ]


def _too_thin(
    rule: Guardrail, sustained: Sustained, times: Sequence[float] | None, start_s: float, end_s: float
) -> Iterator[str]:
    if sustained.for_s > end_s - start_s:
        yield (
            f"{rule.id} looks back over {wording.value(sustained.for_s, 's')}, the measured part of a round is "
            f"{wording.value(end_s - start_s, 's')} long; use longer phases or a shorter for"
        )
        return
    if (looks_planned := looks_at(sustained, start_s, end_s)) > MOST_LOOKS:
        yield (
            f"{rule.id} looks {looks_planned:,} times at a round, ten times a window of "
            f"{wording.value(sustained.window, 's')}; at most {MOST_LOOKS:,} are kept: use a longer window or "
            "shorter phases"
        )
        return
    if times is None:
        return
    ones, none, due_s = np.ones(len(times)), np.zeros(len(times)), np.sort(times)
    looks = watch(Exceedances(due_s, ones, none, ones, none), sustained, 0.5, start_s, end_s).moments
    enough = [look.evaluable for look in looks]
    if rule.metric == "itl":  # an answer counts for as long as its tokens come, and nobody knows yet how long
        enough = [int(np.searchsorted(due_s, look.t_s, side="right")) >= FEWEST_REQUESTS for look in looks]
    if sum(enough) < EVALUABLE * len(looks):
        seen = sum(enough) / len(looks)
        yield (
            f"{rule.id} needs {FEWEST_REQUESTS} requests in its window of {wording.value(sustained.window, 's')} "
            f"for {wording.share(EVALUABLE)} of the time, the schedule has them for {wording.share(seen)}; use a "
            "longer window or a higher rate"
        )


def _problems(
    rule: Rule, counts: Mapping[str, int | None], fewest: Mapping[str, int | None], taken: float, rules: Rules
) -> Iterator[str]:
    if rule.class_ not in counts:
        known = ", ".join(sorted(counts))
        yield f"{rule.id} is about class {rule.class_}, which the schedule does not have; it has {known}"
        return
    if rule.class_ != "all" and rule.metric not in BY_CLASS:
        yield f"{rule.id}: {rule.metric} is not known by class; leave class out"
        return
    if isinstance(rule, Guardrail) and rule.sustained is not None:
        return
    n = fewest[rule.class_]
    if n is not None and rule.metric in LATENCIES and rule.quantile is not None and not carries(n, rule.quantile):
        yield _too_few(rule, rule.quantile, n)
    if rule.metric == "error_rate" and rule.max is not None and rule.max < 1:
        yield from _error_rate(rule, rule.max, counts[rule.class_], taken, rules)
    if rule.over_rounds:
        yield from _out_of_reach(rule, rules)


def _too_few(rule: Rule, quantile: float, n: int) -> str:
    needed = requests_needed(quantile)
    place = "" if rule.class_ == "all" else f" in class {rule.class_}"
    carried = carried_quantile(n)
    way_out = f"use quantile ≤ {carried:g} or" if carried is not None else "it carries no quantile; use"
    times = math.ceil(10 * needed / n) / 10 if n else None
    longer = f"measured phases {times:g} times as long" if times is not None else "a workload that has some"
    return f"{rule.id} needs {needed} requests a round{place}, the schedule has {n}; {way_out} {longer}"


def _last_look(rules: Rules) -> Look:
    """Where all rounds are done and the whole level may be spent, less what earlier looks have taken."""
    return Look(rules.rounds.max, rules.rounds.min, rules.rounds.max)


def _error_rate(rule: Rule, limit: float, n: int | None, taken: float, rules: Rules) -> Iterator[str]:
    """Even without a single failure, an exact bound is as low as the sample allows: never zero."""
    level = nominal_level((1 - rules.confidence) / 2, _last_look(rules))
    if not level:
        yield f"{rule.id}: no number of requests gives a confidence of {rules.confidence}; use at most 0.9999"
        return
    total = None if n is None else n * rules.rounds.max
    place = "" if rule.class_ == "all" else f" of class {rule.class_}"
    if limit <= 0:
        least = share_upper(0, total / taken, level) if total else 1.0
        proven = f", these {total:,} at most {wording.share(least)}" if total else ""
        yield f"{rule.id}: no number of requests{place} proves that none ever fails{proven}; use a limit above 0"
        return
    needed = requests_for_error_rate(limit, level, taken)
    if total is not None and total < needed:
        rounds = f"{wording.count(rules.rounds.max, 'round')} {'has' if rules.rounds.max == 1 else 'have'}"
        along = f", since a failing turn takes {taken:.3g} requests with it" if taken > 1 else ""
        yield (
            f"{rule.id} needs {needed:,} requests{place} over all rounds to prove at most {wording.share(limit)}"
            f"{along}, {rounds} {total:,}; use a higher limit, longer phases or more rounds"
        )


def _out_of_reach(rule: Rule, rules: Rules) -> Iterator[str]:
    """Limits that no interval over rounds lies within, whatever is measured: it has a width on either side."""
    unit = metric_unit(rule.metric)
    if rule.max is not None:
        least = _least_proven(rule, rules)
        if rule.max < least:
            yield (
                f"{rule.id}: {rule.metric} of 0 in each of {rules.rounds.max} rounds proves at most "
                f"{wording.value(least, unit)} a round, at most {wording.value(rule.max, unit)} asked for; use a "
                f"higher limit{' or more rounds' if rule.max > 0 else ''}"
            )
        elif rule.max <= 0:
            yield f"{rule.id}: no interval over rounds ends at 0; use a limit above 0"
    if rule.min is not None and unit == "fraction" and rule.min >= 1:
        yield f"{rule.id}: no interval over rounds begins at 100 %; use a limit below"


def _least_proven(rule: Rule, rules: Rules) -> float:
    """What rounds that all count nothing prove of a count's mean, which is known to one event each; 0: no count."""
    metric, look = ENGINE_METRICS.get(rule.metric), _last_look(rules)
    if metric is None or metric.kind != "counter" or metric.unit == "s":
        return 0.0
    errors = multiplier((1 - rules.confidence) / 2, look)
    return errors / math.sqrt(look.done) if errors is not None and math.isfinite(errors) else 0.0
