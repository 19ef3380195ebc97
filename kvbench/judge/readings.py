"""One figure of one round for each metric that a rule may name, in the metric's base unit.

A figure that the round does not have is `Missing` with the reason; it is never zero.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvbench.judge import wording
from kvbench.judge.case import JudgedRound
from kvbench.judge.findings import uncounted
from kvbench.judge.instrument import host_values
from kvbench.judge.latency import CARRIES_BEYOND, carries
from kvbench.judge.phases import measured_seconds, measured_start, within_measured
from kvbench.judge.rates import good_requests, tokens_in_time, untold_targets
from kvbench.spec.engine_metrics import ENGINE_METRICS
from kvbench.spec.rules import LATENCIES, Rule

__all__ = ["Missing", "Reading", "carried_quantile", "counted", "never_counted", "read", "requests_needed"]

QUANTILES = (0.999, 0.995, 0.99, 0.98, 0.95, 0.9, 0.75, 0.5)
"""What is worth recommending when a sample cannot carry a quantile."""


ELSEWHERE = {
    "capacity": "is measured by `kvbench capacity`, not by a comparison at one load",
    "quote_recall": "needs a workload with quotes, which this version does not have",
}
"""Metrics that a comparison does not have, and why."""


RESOLUTION = {"s": 1e-6, "s/MiB": 1e-6, "fraction": 1e-3}
"""What an engine's figure is known to, by its unit: times to a microsecond (CUDA's events, by which copies are
timed, resolve half of one), shares to a tenth of a per cent, which is what engines' logs show of them."""
WHOLE = 1.0
"""Of every other unit: requests, blocks, tokens, bytes are whole."""
PAGE_BYTES = 4096
"""Memory comes in pages."""


class Reading(NamedTuple):
    """A figure, and what it is known to: the smallest step it can change by where it is made of counts. One that
    repeats, such as the length of a queue that is always empty, is known to that and no better."""

    value: float
    step: float = 0.0
    most: float | None = None
    """What it can be at most, where only that is known and `value` is what it is at least."""

    @property
    def at_most(self) -> Reading:
        """The same, as large as it can be."""
        return self if self.most is None else Reading(self.most, self.step)


class Missing(NamedTuple):
    """Why there is no figure: the end of a sentence that begins with what was asked for."""

    why: str


def requests_needed(quantile: float) -> int:
    """Requests a round that carry a quantile."""
    return int(np.ceil(CARRIES_BEYOND / (1 - quantile) - 1e-6))


def counted(metric: str) -> bool:
    """Whether a figure is made of whole things, so that nothing of them is less than half a step."""
    known = ENGINE_METRICS.get(metric)
    return known is None or known.unit not in RESOLUTION


def carried_quantile(n: int) -> float | None:
    """The largest usual quantile that `n` requests a round carry."""
    return next((quantile for quantile in QUANTILES if carries(n, quantile)), None)


def read(rule: Rule, round_: JudgedRound, newest_tier: str | None) -> Reading | Missing:
    """The figure that `rule` asks for."""
    if rule.metric in LATENCIES:
        return _latency(rule, round_)
    if rule.metric in ("goodput", "throughput_tokens"):
        return _rate(rule, round_)
    if rule.class_ != "all":
        return Missing("is not known by class")
    if rule.metric in ELSEWHERE:
        return Missing(ELSEWHERE[rule.metric])
    if rule.metric == "promoted_tokens":
        return _source(rule.source or newest_tier, round_)
    return _source_share(rule, round_) if rule.metric == "source_share" else _recorded(rule.metric, round_)


def _latency(rule: Rule, round_: JudgedRound) -> Reading | Missing:
    if rule.quantile is None:
        return Missing("needs a quantile")
    sample = round_.latencies.sample(rule.metric, rule.class_)
    if sample.requests == 0:
        return Missing(f"has no request in round {round_.index}")
    if not carries(sample.requests, rule.quantile):
        carried = carried_quantile(sample.requests)
        return Missing(
            f"needs {requests_needed(rule.quantile)} requests a round, round {round_.index} of "
            f"{round_.recorded.arm} has {sample.requests}"
            + (f"; they carry a quantile of at most {carried:g}" if carried else "; they carry no quantile")
        )
    ((least, most),) = sample.bounds(rule.quantile)
    return Reading(least, most=most if most > least else None)


def _rate(rule: Rule, round_: JudgedRound) -> Reading | Missing:
    """Per second of the measured phases."""
    if not round_.latencies.of_class(rule.class_).any():
        return Missing(f"has no request in round {round_.index}")
    counted = good_requests if rule.metric == "goodput" else tokens_in_time
    if rule.metric == "goodput":
        untold = untold_targets(round_.latencies, round_.workload, rule.class_)
        if untold:
            return Missing(
                f"is unknown: of {wording.count(untold, 'completed request')} in round {round_.index} of "
                f"{round_.recorded.arm} it is not known when its tokens came, and so not whether targets were met"
            )
    seconds = measured_seconds(round_.workload)
    return Reading(counted(round_.latencies, round_.workload, rule.class_) / seconds, 1 / seconds)


def _source(source: str | None, round_: JudgedRound) -> Reading | Missing:
    if source is None:
        return Missing("needs a tier that is new, or a `source`")
    tokens = round_.sources[source]
    if tokens is None:
        return never_counted(round_) or Missing(
            f"is unknown: the engine of {round_.recorded.arm} does not tell tokens from {source} apart"
        )
    return Reading(tokens)


def _source_share(rule: Rule, round_: JudgedRound) -> Reading | Missing:
    if rule.source is None:
        return Missing("needs a `source`")
    known = [tokens for tokens in round_.sources.values() if tokens is not None]
    tokens = round_.sources[rule.source]
    if tokens is None or len(known) < len(round_.sources):
        return never_counted(round_) or Missing(
            f"is unknown: the engine of {round_.recorded.arm} does not tell its sources apart"
        )
    if sum(known) <= 0:
        return Missing(f"has no prompt token in round {round_.index}")
    return Reading(tokens / sum(known), 1 / sum(known))


def never_counted(round_: JudgedRound) -> Missing | None:
    """Where counters missed some of what happened in the measured part."""
    lost = round_.recorded.counters.lost(measured_start(round_.workload))
    if not lost:
        return None
    return Missing(f"is unknown: {uncounted(lost)} of {round_.recorded.arm} were never counted")


def _recorded(name: str, round_: JudgedRound) -> Reading | Missing:
    """A metric of the engine in the measured part: a counter's increase, a histogram's mean, a gauge's mean."""
    if name == "host_memory":
        return _host_memory(round_)
    absent = Missing(f"was not reported by {round_.recorded.arm} in round {round_.index}")
    metric, start_s = ENGINE_METRICS[name], measured_start(round_.workload)
    step = RESOLUTION.get(metric.unit, WHOLE)
    if metric.kind == "gauge":
        return _gauge(name, round_, step) or absent
    if metric.kind == "counter":
        increase = round_.recorded.counters.increase(name, start_s)
        return absent if increase is None else Reading(increase, step)
    total, events = (round_.recorded.counters.increase(name + part, start_s) for part in ("_sum", "_count"))
    return absent if total is None or not events else Reading(total / events, step / events)


def _gauge(name: str, round_: JudgedRound, step: float) -> Reading | None:
    """Mean over the scrapes of the measured part, each known to `step`; series of one scrape are added."""
    rows = round_.recorded.metrics
    rows = rows[rows["name"] == name]
    rows = rows[within_measured(rows["t_s"].to_numpy(dtype=np.float64), round_.workload)]
    if rows["value"].isna().any():  # a sum would take it for nothing
        return Reading(float("nan"))
    scrapes = rows.groupby("t_s")["value"].sum()
    return None if scrapes.empty else Reading(float(scrapes.mean()), step / len(scrapes))


def _host_memory(round_: JudgedRound) -> Reading | Missing:
    values = host_values(round_.recorded, "engine_memory_bytes", round_.workload)
    if not len(values):
        return Missing(f"was not recorded for {round_.recorded.arm} in round {round_.index}")
    return Reading(float(values.max()), PAGE_BYTES)
