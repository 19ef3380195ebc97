"""Whether what was read of the replicas can be judged at all: one check a finding. Pure; seconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import numpy as np

from kvbench.canary.families import FINISHED, GENERATED, LATENCY_FAMILIES, PROMPT, REFUSED, shown
from kvbench.canary.findings import CanaryFinding, FindingKind
from kvbench.canary.observed import Observed
from kvbench.canary.series import Group, Replica
from kvbench.canary.warm import Warmth
from kvbench.judge import wording
from kvbench.judge.sustained import EVALUABLE, FEWEST_REQUESTS
from kvbench.spec.engine_metrics import ENGINE_METRICS
from kvbench.spec.rules import LATENCIES, Rule

__all__ = ["check_health", "clock", "names_compared"]

FACTOR = 2.0
"""Requests a second and tokens a prompt of a replica may differ by so much between candidate and baseline; beyond
it, queueing alone makes their latencies incomparable."""


def clock(t_s: float) -> str:
    """`14:03:20 UTC`."""
    return datetime.fromtimestamp(t_s, UTC).strftime("%H:%M:%S UTC")


def check_health(
    seen: Observed, judged: Sequence[Group], warm: dict[tuple[str, str], Warmth]
) -> list[CanaryFinding]:
    """Everything that is to be said. `judged` holds the same groups without what came before they were warm."""
    findings = [*_unreachable(seen), *_overlap(seen)]
    for group in seen.groups:
        side = "candidate" if group is seen.candidate else "baseline"
        findings += _missing(seen, group, side)
        for replica in group.replicas:
            findings += _lost(seen, group, replica, side)
            findings += _began_anew(seen, replica, side, warm)
        findings += _gaps(seen, group, side)
    findings += _traffic(seen, judged)
    return findings


def _unreachable(seen: Observed) -> Iterator[CanaryFinding]:
    if seen.unread:
        first, last = seen.unread[0], seen.unread[-1]
        yield CanaryFinding(FindingKind.UNREACHABLE, f"metrics cannot be read since {clock(first.t_s)}: {last.why}")


def _overlap(seen: Observed) -> Iterator[CanaryFinding]:
    """The same series on both sides: whatever the candidate does, the baseline does a part of it as well."""
    if seen.baseline is None:
        return
    theirs = {replica.name: replica.samples.keys() for replica in seen.baseline.replicas}
    both = [each.name for each in seen.candidate.replicas if each.samples.keys() & theirs.get(each.name, set())]
    if both:
        text = f"{wording.listed(both)} in both selections; have the baseline's labels leave the candidate out"
        yield CanaryFinding(FindingKind.OVERLAP, text)


def _needed(seen: Observed, side: str) -> dict[str, str]:
    """Canonical series → what needs it. A baseline that nothing is held against need not have gauges of a tier."""
    needed = {LATENCY_FAMILIES["ttft"] + "_count": "the number of requests"}
    for rule in (*seen.rules.guardrails, *seen.rules.benefits):
        name = _series_of(rule.metric) if rule.class_ == "all" else None
        spared = side == "baseline" and rule.metric in ENGINE_METRICS and not names_compared([rule])
        if name is not None and not spared:
            needed[name] = f"rule {rule.id}"
    return needed


def _series_of(metric: str) -> str | None:
    """What every replica must tell for a rule on this metric; None where an engine may have had no event yet."""
    if metric in LATENCIES:
        return LATENCY_FAMILIES[metric] + "_bucket"
    known = ENGINE_METRICS.get(metric)
    if known is not None:
        return metric if known.kind == "gauge" else None
    return {"error_rate": FINISHED, "throughput_tokens": GENERATED, "source_share": PROMPT}.get(metric)


def _missing(seen: Observed, group: Group, side: str) -> Iterator[CanaryFinding]:
    served = [replica for replica in group.replicas if len(replica.t_s)]
    if not served:
        yield CanaryFinding(FindingKind.MISSING, f"{side}: no series match {group.name}")
        return
    others = (replica for replica in group.replicas if not len(replica.t_s))
    mute = [replica.name for replica in others if np.any(replica.up_s > seen.start_s)]
    if mute:
        text = f"{side}: no series of an engine from {wording.listed(mute)}, though scraped without a fault"
        yield CanaryFinding(FindingKind.MISSING, text)
    for name, why in _needed(seen, side).items():
        lacking = [replica.name for replica in served if not replica.has(name)]
        if lacking:
            text = f"{side}: {wording.listed(lacking)} without {shown(name)}: {why}"
            yield CanaryFinding(FindingKind.MISSING, text)
        for replica in served:
            inside = (replica.t_s > seen.start_s) & (replica.t_s <= seen.end_s)
            if not inside.any() or not replica.has(name):
                continue
            absent = np.isnan(replica.level(replica.keys(name)))[inside]
            if absent[-1] or absent.mean() > 1 - EVALUABLE:
                share = wording.share(float(absent.mean()))
                text = f"{side}: {replica.name} lacks {shown(name)} in {share} of its scrapes: {why}"
                yield CanaryFinding(FindingKind.MISSING, text)


def _lost(seen: Observed, group: Group, replica: Replica, side: str) -> Iterator[CanaryFinding]:
    """Down, or silent. A baseline replica that is gone while others serve was scaled away."""
    others = any(other is not replica and other.alive_at(seen.end_s) for other in group.replicas)
    blocks = side == "candidate" or not others
    last = replica.t_s[-1] if len(replica.t_s) else -np.inf
    down = replica.down_s[(replica.down_s > seen.start_s) & (replica.down_s <= seen.end_s)]
    if len(down) and down[-1] > last:
        began = down[down > last][0]
        text = f"{side}: {replica.name} does not answer since {clock(float(began))}"
        yield CanaryFinding(FindingKind.DOWN, text, blocks)
    elif len(replica.t_s) and not seen.unread and not replica.alive_at(seen.end_s):
        text = f"{side}: {replica.name} has no new sample since {clock(float(last))}"
        yield CanaryFinding(FindingKind.STALE, text, blocks)
    elif len(down):
        text = f"{side}: {wording.count(len(down), 'scrape')} of {replica.name} failed"
        yield CanaryFinding(FindingKind.DOWN, text, blocks=False)


def _began_anew(
    seen: Observed, replica: Replica, side: str, warm: dict[tuple[str, str], Warmth]
) -> Iterator[CanaryFinding]:
    """A restart of the candidate that nobody announced is never a pass; one of the baseline is waited for."""
    restarts = replica.restarts_s[(replica.restarts_s > seen.start_s) & (replica.restarts_s <= seen.end_s)]
    resets = replica.resets_s[(replica.resets_s > seen.start_s) & (replica.resets_s <= seen.end_s)]
    warmth = warm.get((side, replica.name))
    fellows = [each for (of, name), each in warm.items() if of == side and name != replica.name]
    # A new replica of the baseline may warm up while others of it serve.
    blocks = side == "candidate" or not any(each.since_s is not None for each in fellows)
    cold = warmth is not None and warmth.since_s is None
    if len(restarts):
        text = f"{side}: {replica.name} restarted at {clock(float(restarts[-1]))}"
        if len(restarts) > 1:
            text += f", the last of {len(restarts)} times"
        yield CanaryFinding(FindingKind.RESTARTED, text, side == "candidate" or (cold and blocks))
    apart = [t for t in resets if not len(restarts) or np.abs(restarts - t).min() > 2 * replica.interval_s]
    if apart:
        text = f"{side}: counters of {replica.name} fell at {clock(apart[-1])}, and no restart is known"
        yield CanaryFinding(FindingKind.RESET, text)
    if cold and warmth is not None:
        yield CanaryFinding(FindingKind.WARMING, f"{side}: {replica.name} is not warm: {warmth.why}", blocks)


def _gaps(seen: Observed, group: Group, side: str) -> Iterator[CanaryFinding]:
    """Scrapes that nobody made: Prometheus was away, or this gate was."""
    span_s = seen.end_s - seen.start_s
    longest, lost = 0.0, 0.0
    for replica in group.replicas:
        inside = (replica.t_s > seen.start_s) & (replica.t_s <= seen.end_s) & replica.after_gap
        steps = np.minimum(replica.steps_s[inside], replica.t_s[inside] - seen.start_s)
        if len(steps):
            longest, lost = max(longest, float(steps.max())), max(lost, float(steps.sum()))
    if lost > 0:
        text = f"{side}: no scrapes for {wording.value(longest, 's')} at a time, {wording.value(lost, 's')} in all"
        yield CanaryFinding(FindingKind.GAP, text, blocks=lost > (1 - EVALUABLE) * span_s)


def names_compared(rules: Sequence[Rule]) -> bool:
    """Whether any of these rules holds the candidate against the baseline."""
    return any(rule.max_ratio is not None or rule.min_ratio is not None for rule in rules)


def _traffic(seen: Observed, judged: Sequence[Group]) -> Iterator[CanaryFinding]:
    compared = names_compared([*seen.rules.guardrails, *seen.rules.benefits])
    requests = LATENCY_FAMILIES["ttft"] + "_count"
    for group in judged if compared else judged[:1]:
        side = "candidate" if group is judged[0] else "baseline"
        count = group.grown(requests)
        if count is not None and count < FEWEST_REQUESTS:
            refused = group.grown(REFUSED) or 0
            words = "no request" if count < 1 else f"only {wording.count(int(count), 'request')}"
            words += f", and {int(refused)} refused" if refused else ""
            yield CanaryFinding(FindingKind.TRAFFIC, f"{side}: {words} since {clock(_since(group, seen))}")
    if not compared or len(judged) < 2:
        return
    rates = [_per_replica(group, requests, seen) for group in judged]
    if any(rate is None or rate * (seen.end_s - seen.start_s) < FEWEST_REQUESTS for rate in rates):
        return
    lengths = [_ratio(group.grown(PROMPT), group.grown(requests)) for group in judged]
    for words, (candidate, baseline) in (("requests a second", rates), ("tokens a prompt", lengths)):
        if candidate and baseline and not 1 / FACTOR <= candidate / baseline <= FACTOR:
            yield CanaryFinding(
                FindingKind.UNEQUAL,
                f"a replica of the candidate gets {candidate:.3g} {words}, one of the baseline {baseline:.3g}",
            )


def _since(group: Group, seen: Observed) -> float:
    return group.first_s if group.first_s is not None else seen.start_s


def _per_replica(group: Group, name: str, seen: Observed) -> float | None:
    """Growth a second of one replica, on average over those that serve."""
    rates = []
    for replica in group.replicas:
        seconds = float(replica.steps_s.sum())
        growth = np.nansum(replica.grown(replica.keys(name)))
        if seconds > 0 and replica.has(name):
            rates.append(float(growth) / seconds)
    return sum(rates) / len(rates) if rates else None


def _ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b
