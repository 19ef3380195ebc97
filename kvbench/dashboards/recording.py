"""Recording rules: shares over budget by window, prompt tokens by source (tokens per second), hit rates.

A ratio without traffic is NaN: it fires nothing and passes nothing.
"""

from __future__ import annotations

from kvbench.dashboards.budgets import Budgets
from kvbench.dashboards.series import BY_SOURCE, CACHED_BY_SOURCE, bucket, count, counter
from kvbench.dashboards.written import rule_file

__all__ = ["ONE_SERVICE", "WINDOWS", "recording_rules"]

WINDOWS = ("5m", "30m", "1h", "6h", "3d")
ONE_SERVICE = "without (engine, instance, pod, node)"
"""Replicas of one service are one: shares over budget add up across them, quantiles would not."""


def recording_rules(budgets: Budgets) -> str:
    """The rule file."""
    return rule_file(
        "recording.py",
        [
            ("kvbench-budgets", [rule for window in WINDOWS for rule in _over_budget(budgets, window)]),
            ("kvbench-sources", _sources()),
            ("kvbench-hits", [rule for window in ("30m", "1d") for rule in _hits(window)]),
        ],
    )


def _record(name: str, expr: str, **labels: str) -> dict[str, object]:
    rule: dict[str, object] = {"record": name, "expr": expr}
    return {**rule, "labels": labels} if labels else rule


def _over_budget(budgets: Budgets, window: str) -> list[dict[str, object]]:
    requests = f"sum {ONE_SERVICE} (increase({count('engine_ttft')}[{window}]))"
    return [
        _record(f"kvbench:requests:increase{window}", requests),
        *(
            _record(f"kvbench:{name}_over_budget:ratio_rate{window}", _share_over(metric, edge, window))
            for name, metric, edge in (
                ("ttft", "engine_ttft", budgets.ttft_s),
                ("itl", "engine_itl", budgets.itl_s),
            )
        ),
        *_errors(window),
    ]


def _share_over(metric: str, edge_s: float, window: str) -> str:
    within = f'sum {ONE_SERVICE[:-1]}, le) (rate({bucket(metric)}{{le="{float(edge_s)!r}"}}[{window}]))'
    return f"1 - {within}\n  / sum {ONE_SERVICE} (rate({count(metric)}[{window}]))"


def _errors(window: str) -> list[dict[str, object]]:
    """Refusals count: the user got no answer. A server that does not tell them must not hide its other failures."""
    finished = f"sum {ONE_SERVICE[:-1]}, finished_reason) (rate({counter('requests_finished')}%s[{window}]))"
    failed, every = finished % '{finished_reason="error"}', finished % ""
    refused = f"kvbench:refused:rate{window}"
    told = f"sum {ONE_SERVICE[:-1]}, reason) (rate({counter('requests_refused')}[{window}]))"
    return [
        _record(refused, f"{told}\n  or 0 * {every}"),
        _record(f"kvbench:errors:ratio_rate{window}", f"({failed} + {refused})\n  / ({every} + {refused})"),
    ]


def _sources() -> list[dict[str, object]]:
    name = "kvbench:prompt_tokens:rate5m"
    return [
        _record(name, f"sum without (engine) (rate({CACHED_BY_SOURCE}[5m]))"),
        _record(
            name,
            f'sum without (engine, source) (rate({BY_SOURCE}{{source="local_compute"}}[5m]))',
            source="computed",
        ),
        _record(
            "kvbench:source_share:ratio_rate5m",
            f"{name} / ignoring (source) group_left sum without (source) ({name})",
        ),
    ]


def _hits(window: str) -> list[dict[str, object]]:
    return [
        _record(
            f"kvbench:{where}_hits:ratio_rate{window}",
            f"sum {ONE_SERVICE} (rate({counter(hits)}[{window}]))\n"
            f"  / sum {ONE_SERVICE} (rate({counter(queries)}[{window}]))",
        )
        for where, hits, queries in (
            ("device", "prefix_cache_hits", "prefix_cache_queries"),
            ("tier", "tier_cache_hits", "tier_cache_queries"),
        )
    ]
