"""The odd one out among the replicas of a group, and a row about each of them. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from kvbench.canary.families import LATENCY_FAMILIES
from kvbench.canary.findings import CanaryFinding, FindingKind
from kvbench.canary.observed import Observed
from kvbench.canary.series import Group, Replica
from kvbench.canary.shares import allowed_share, budget_counts
from kvbench.canary.verdict import ReplicaRow
from kvbench.canary.warm import Warmth
from kvbench.judge import wording
from kvbench.judge.sustained import FEWEST_OVER, FEWEST_REQUESTS
from kvbench.spec.rules import LATENCIES, Rule, Rules

__all__ = ["odd_replicas", "replica_rows"]

FAR = 4.0
"""Standard errors between a replica's share and that of the others: one in some ten thousand by chance, and a group
has at most some hundred replicas, looked at again and again."""
TIMES = 3.0
"""And so many times the share of the others, because with many requests any two machines differ."""


def _budgets(rules: Rules) -> Iterator[Rule]:
    """Guardrails that a single replica can be held against."""
    for rule in rules.guardrails:
        if rule.class_ == "all" and rule.max is not None and rule.metric in (*LATENCIES, "error_rate"):
            yield rule


def _shares(rule: Rule, group: Group) -> dict[str, tuple[float, float]]:
    """Replica → requests, and how many were over at least."""
    found: dict[str, tuple[float, float]] = {}
    for replica in group.replicas:
        counts = budget_counts(rule, replica)
        if counts is not None and counts.samples.sum() > 0:
            clumped = max(float(counts.samples.sum()) / max(float(counts.requests.sum()), 1.0), 1.0)
            found[replica.name] = (
                float(counts.samples.sum()) / clumped,
                float(counts.over_least.sum()) / clumped,
            )
    return found


def odd_replicas(rules: Rules, groups: Sequence[Group]) -> list[CanaryFinding]:
    """Replicas far worse than the rest of their group, told once for each; they are said and block nothing: what
    they do to the group, the rules judge."""
    findings: list[CanaryFinding] = []
    for group in groups:
        told: set[str] = set()
        side = "candidate" if group is groups[0] else "baseline"
        for rule in _budgets(rules):
            for name, words in _odd(rule, group):
                if name not in told:
                    told.add(name)
                    findings.append(CanaryFinding(FindingKind.REPLICA, f"{side}: {words}", blocks=False))
    return findings


def _odd(rule: Rule, group: Group) -> Iterator[tuple[str, str]]:
    shares = _shares(rule, group)
    for name, (n, over) in shares.items():
        others_n = sum(each[0] for other, each in shares.items() if other != name)
        others_over = sum(each[1] for other, each in shares.items() if other != name)
        if n < FEWEST_REQUESTS or others_n < FEWEST_REQUESTS or over < FEWEST_OVER:
            continue
        share, others, pooled = over / n, others_over / others_n, (over + others_over) / (n + others_n)
        error = math.sqrt(pooled * (1 - pooled) * (1 / n + 1 / others_n))
        if share > allowed_share(rule) and share > TIMES * others and share - others > FAR * error:
            what = wording.what(rule.metric, rule.quantile)
            yield (
                name,
                f"{name} is the odd one out: {wording.share(share)} over the budget of {what}, "
                f"{wording.share(others)} on the others",
            )


def replica_rows(seen: Observed, judged: Sequence[Group], warm: dict[tuple[str, str], Warmth]) -> list[ReplicaRow]:
    """One row a replica, candidate first."""
    rows: list[ReplicaRow] = []
    rule = next(_budgets(seen.rules), None)
    for group, whole in zip(judged, seen.groups, strict=True):
        side = "candidate" if group is judged[0] else "baseline"
        odd = {name for each in _budgets(seen.rules) for name, _ in _odd(each, group)}
        shares = {} if rule is None else _shares(rule, group)
        for replica, all_of_it in zip(group.replicas, whole.replicas, strict=True):
            n, over = shares.get(replica.name, (0.0, 0.0))
            restarts = (all_of_it.restarts_s > seen.start_s) & (all_of_it.restarts_s <= seen.end_s)
            warmth = warm.get((side, replica.name))
            rows.append(
                ReplicaRow(
                    side=side,
                    replica=replica.name,
                    **_requests(replica),
                    share_over=over / n if n else None,
                    warm=warmth is None or warmth.since_s is not None,
                    restarts=int(restarts.sum()),
                    odd=replica.name in odd,
                )
            )
    return rows


def _requests(replica: Replica) -> dict[str, float | None]:
    keys = replica.keys(LATENCY_FAMILIES["ttft"] + "_count")
    if not keys:
        return {"requests": None, "per_s": None}
    requests, seconds = float(np.nansum(replica.grown(keys))), float(replica.steps_s.sum())
    return {"requests": requests, "per_s": requests / seconds if seconds > 0 else None}
