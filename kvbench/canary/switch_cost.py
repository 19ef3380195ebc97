"""What switching a tier off took: time without service, hits lost, TTFT meanwhile. Pure; seconds, tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvbench.canary.families import BY_SOURCE, CACHED, LATENCY_FAMILIES, PROMPT, RUNNING, WAITING
from kvbench.canary.recovery import summary
from kvbench.canary.series import MISSED, Floats, Group
from kvbench.canary.verdict import SwitchCost
from kvbench.judge.sources import SOURCES

__all__ = ["Stretches", "switch_cost"]

REQUESTS = LATENCY_FAMILIES["ttft"] + "_count"


@dataclass(frozen=True)
class Stretches:
    """When what was: before the hook from `before_s` on, and back from `back_s` on (None: it never was)."""

    before_s: float
    fired_s: float
    served_s: float | None
    """When processes that began after the hook were first seen; None: none was."""
    back_s: float | None
    end_s: float


def switch_cost(candidate: Group, baseline: Group | None, when: Stretches) -> SwitchCost:
    """Everything that the series tell."""
    before = _part(candidate, when.before_s, when.fired_s)
    served_s = when.fired_s if when.served_s is None else when.served_s - 1e-3
    until_s = when.end_s if when.back_s is None else max(when.back_s, served_s)
    until_back = _part(candidate, served_s, until_s)
    after = None if when.back_s is None else _part(candidate, max(when.back_s, served_s), when.end_s)
    gap = _without_service(candidate, when)
    rate = _rate(before, when.fired_s - when.before_s)
    since = _part(candidate, served_s, when.end_s)
    lost = _recomputed(before, since)
    length = _ratio(before.grown(PROMPT), before.grown(REQUESTS))
    return SwitchCost(
        without_service_s=gap,
        requests_under_way=_under_way(candidate, when.fired_s) if when.served_s is not None else None,
        requests_meanwhile=None if gap is None or rate is None else gap[1] * rate,
        cached_share_before=_cached(before),
        cached_share_until_back=_cached(until_back),
        cached_share_after=None if after is None else _cached(after),
        recomputed_tokens=lost,
        recomputed_requests=None if lost is None or not length else lost / length,
        requests_since=since.grown(REQUESTS),
        sources_before=_sources(before),
        sources_after={} if after is None else _sources(after),
        ttft_before=summary(before),
        ttft_until_back=summary(until_back),
        ttft_after=None if after is None else summary(after),
        ttft_baseline=None if baseline is None else summary(_part(baseline, when.fired_s, when.end_s)),
    )


def _part(group: Group, start_s: float, end_s: float) -> Group:
    return group.each(lambda replica: replica.within(start_s, end_s))


def _answers(group: Group) -> Floats:
    """Times at which any replica answered its scrape."""
    times = [replica.t_s for replica in group.replicas if len(replica.t_s)]
    return np.unique(np.concatenate(times)) if times else np.empty(0)


def _without_service(group: Group, when: Stretches) -> tuple[float, float] | None:
    """The longest time after the hook without an answer; at least from its first failed scrape to its last."""
    answers = _answers(group)
    answers = answers[answers <= when.end_s]
    last_before = answers[answers <= when.fired_s][-1:]
    after = answers[answers > when.fired_s]
    steps = np.diff(np.concatenate([last_before, after]))
    if not len(steps) or group.interval_s <= 0:
        return None
    place = int(np.argmax(steps))
    begin = float(np.concatenate([last_before, after])[place])
    longest = float(steps[place])
    failed = [replica.down_s for replica in group.replicas]
    failed_s = np.concatenate(failed) if failed else np.empty(0)
    inside = failed_s[(failed_s > begin) & (failed_s < begin + longest)]
    alone = when.served_s is not None and len(group.replicas) == 1
    if not alone and not len(inside) and longest <= MISSED * group.interval_s:
        return 0.0, 0.0  # nothing was restarted, or others served meanwhile
    return (float(inside.max() - inside.min()) if len(inside) else 0.0), longest


def _under_way(group: Group, fired_s: float) -> float | None:
    """Requests in the replicas that began anew, at the last scrape of the process before."""
    total: float | None = None
    for replica in group.replicas:
        anew = replica.restarts_s[replica.restarts_s > fired_s]
        if not len(anew):
            continue
        held = replica.level([*replica.keys(RUNNING), *replica.keys(WAITING)])
        known = held[(replica.t_s < anew[0]) & ~np.isnan(held)]
        if len(known):
            total = (total or 0.0) + float(known[-1])
    return total


def _rate(group: Group, seconds: float) -> float | None:
    requests = group.grown(REQUESTS)
    return None if requests is None or seconds <= 0 else requests / seconds


def _ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b


def _cached(group: Group) -> float | None:
    return _ratio(group.grown(CACHED), group.grown(PROMPT))


def _recomputed(before: Group, since: Group) -> float | None:
    """Hits that did not come. More of them than before is no cost, and no gain either."""
    share, tokens, cached = _cached(before), since.grown(PROMPT), since.grown(CACHED)
    return None if share is None or tokens is None or cached is None else max(share * tokens - cached, 0.0)


def _sources(group: Group) -> dict[str, float | None]:
    prompt = group.grown(PROMPT)
    found = {source: group.grown(BY_SOURCE, source=source) for source in SOURCES}
    found["computed"] = group.computed_tokens
    return {source: _ratio(tokens, prompt) for source, tokens in found.items()}
