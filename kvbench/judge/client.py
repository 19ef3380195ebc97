"""Whether the client did its part of a round: it was in time, never stood still, and had sockets for everybody."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kvbench.judge import wording
from kvbench.judge.evidence import ArmRound
from kvbench.judge.latency import RoundLatencies, carries
from kvbench.spec.rules import Rules
from kvbench.spec.workload import Workload

__all__ = ["STOOD_STILL_S", "lateness", "without_socket"]

STOOD_STILL_S = 1.0
"""The playing loop wakes once a second at least (`kvbench.load.player.TICK_NS`), and what is due or has come by
then is sent or read within milliseconds: a client that was later than that did not run for a time (it was stopped,
swapped out, or had no CPU). A p99 of the send lag shows that only when it lasts a hundredth of the round."""

FROM_INTENDED = ("ttft", "e2e")
"""Latencies that the client's own lag is part of."""


def lateness(recorded: ArmRound, rules: Rules, workload: Workload) -> list[str]:
    """How the client was late: by the p99 of its send lag, by standing still, or by what its lag makes of a
    quantile that is judged. The budget for the send lag is that of all three; to stand still takes a second."""
    budget_s = rules.validity.send_lag_p99
    p99_s = recorded.send_lag.p99_s
    if p99_s is not None and p99_s > budget_s:
        return [f"sent late, p99 {wording.value(p99_s, 's')} after the intended time, {_allowed(budget_s)}"]
    return [*_stood_still(recorded, max(STOOD_STILL_S, budget_s)), *_moved(recorded, rules, workload)]


def _allowed(budget_s: float) -> str:
    return f"{wording.value(budget_s, 's')} allowed"


def _stood_still(recorded: ArmRound, limit_s: float) -> Iterable[str]:
    sent_s, read_s = recorded.send_lag.max_s, recorded.load.get("read_lag_max_s")
    if sent_s is not None and sent_s > limit_s:
        yield f"stood still: a request went out {wording.value(sent_s, 's')} after its intended time"
    elif read_s is not None and read_s > limit_s:
        yield f"stood still: part of an answer was read {wording.value(read_s, 's')} after it had come"


def _moved(recorded: ArmRound, rules: Rules, workload: Workload) -> Iterable[str]:
    """Quantiles that would be lower by more than the budget if every request had gone out in time."""
    judged = dict.fromkeys(
        (rule.metric, rule.quantile, rule.class_)
        for rule in (*rules.guardrails, *rules.benefits)
        if rule.metric in FROM_INTENDED and rule.quantile is not None
    )
    largest_s = recorded.send_lag.max_s
    if not judged or largest_s is None or largest_s <= rules.validity.send_lag_p99:
        return  # no quantile moves by more than the largest lag
    latencies = RoundLatencies(recorded, workload.request_timeout)
    lags_s = np.nan_to_num(latencies.column("sent_s") - latencies.column("intended_s"))
    lags_s[latencies.failed] = 0.0  # it counts at the time-out, whenever it went out
    for metric, quantile, class_ in judged:
        values_s = latencies.per_request(metric)
        chosen = latencies.of_class(class_) & latencies.counted(metric)
        if quantile is None or not carries(int(chosen.sum()), quantile):
            continue
        told_s, own_s = values_s[chosen], lags_s[chosen]
        by_s = float(np.quantile(told_s, quantile) - np.quantile(told_s - own_s, quantile))
        if by_s > rules.validity.send_lag_p99:
            what = wording.what(metric, quantile, class_)
            allowed = _allowed(rules.validity.send_lag_p99)
            yield f"sent late, which alone adds {wording.value(by_s, 's')} to the {what}, {allowed}"


def without_socket(recorded: ArmRound) -> list[str]:
    """Requests, measured or not, for which the client's own host had no socket: no error of the server's."""
    errors = recorded.requests["error"].dropna().astype("string")
    lacking = errors[errors.str.startswith("client_limit:").to_numpy(dtype=bool)]
    if not len(lacking):
        return []
    requests = wording.count(len(recorded.requests), "request")
    return [f"{len(lacking):,} of {requests} ({lacking.iloc[0].partition(':')[2].strip()})"]
