"""Series as Prometheus keeps them, made from known truths: one replica after the other, scraped at a fixed step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kvbench.canary.naming import canonical_samples
from kvbench.canary.observed import Observed, Unread
from kvbench.canary.series import Group, Replica, Samples, key_of
from kvbench.engine.emulated.counters import FIRST_TOKEN_S
from kvbench.spec.rules import Rules

T0 = 1_790_000_000.0
STEP_S = 5.0
TTFT = "vllm:time_to_first_token_seconds"

Share = Callable[[float], float]
"""Seconds since the start → the share of requests that are slow."""


@dataclass(frozen=True)
class Truth:
    """How one server behaves. Fast requests take 0.05 s, slow ones 3 s."""

    slow: Share = lambda _t: 0.001
    per_s: float = 10.0
    errors: float = 0.0
    restart_at: float | None = None
    silent_from: float | None = None
    gap: tuple[float, float] | None = None
    without: str | None = None
    fast_s: float = 0.05
    seed: int = 1
    frozen_from: float | None = None
    off_at: float | None = None
    """From then on without its host tier."""


def replica(name: str, truth: Truth, seconds: float, step_s: float = STEP_S) -> Replica:
    """Its samples from T0 on."""
    rng = np.random.default_rng([truth.seed, *name.encode()])
    t = np.arange(0.0, seconds + 1e-9, step_s)
    alive = np.ones(len(t), dtype=bool) if truth.frozen_from is None else t < truth.frozen_from
    n = rng.poisson(truth.per_s * step_s, len(t)) * alive
    slow = rng.binomial(n, [min(truth.slow(float(at)), 1.0) for at in t])
    failed = rng.binomial(n, truth.errors)
    again = len(t) if truth.restart_at is None else int(np.searchsorted(t, truth.restart_at))
    kept = np.ones(len(t), dtype=bool)
    if truth.silent_from is not None:
        kept &= t < truth.silent_from
    if truth.gap is not None:
        kept &= (t <= truth.gap[0]) | (t >= truth.gap[1])
    samples: Samples = {}
    times = T0 + t[kept]

    def add(metric: str, values: np.ndarray, **labels: str) -> None:
        if truth.without is None or not metric.startswith(truth.without):
            samples[key_of(metric, {"engine": "0", "model_name": "m", **labels})] = (times, values[kept])

    def count(metric: str, growth: np.ndarray, **labels: str) -> None:
        total = np.cumsum(growth).astype(float)
        if again < len(t):
            total[again:] -= total[again - 1]
        add(metric, total, **labels)

    for edge in (*FIRST_TOKEN_S, float("inf")):
        below = (n - slow) * (edge >= truth.fast_s) + slow * (edge >= 3.0)
        count(TTFT + "_bucket", below, le="+Inf" if edge == float("inf") else repr(edge))
    count(TTFT + "_count", n)
    count(TTFT + "_sum", (n - slow) * truth.fast_s + slow * 3.0)
    for reason, ended in (("length", n - failed), ("error", failed), ("abort", 0 * n)):
        count("vllm:request_success_total", ended, finished_reason=reason)
    count("vllm:admission_rejections_total", 0 * n, reason="max_num_queued_reqs")
    count("vllm:prompt_tokens_total", 200 * n)
    count("vllm:generation_tokens_total", 16 * n)
    with_tier = n if truth.off_at is None else n * (t < truth.off_at)
    count("vllm:prompt_tokens_cached_total", 60 * n + 40 * with_tier)
    for source, tokens in (("local_compute", 140 * n - 40 * with_tier), ("local_cache_hit", 60 * n)):
        count("vllm:prompt_tokens_by_source_total", tokens, source=source)
    for source, tokens in (("device", 60 * n), ("host", 40 * with_tier), ("disk", 0 * n)):
        count("vllm:prompt_tokens_cached_by_source_total", tokens, source=source)
    count("vllm:external_prefix_cache_queries_total", 140 * with_tier)
    count("vllm:kv_offload_store_bytes_total", 1000 * with_tier)
    add("vllm:num_requests_running", np.where(alive, (n > 0).astype(float), 3.0))
    add("vllm:num_requests_waiting", np.zeros(len(t)))
    started = np.where(np.arange(len(t)) >= again, T0 + t[min(again, len(t) - 1)], T0 - 7200.0)
    samples[key_of("process_start_time_seconds", {})] = (times, started[kept])
    return Replica(name, canonical_samples(samples))


def group(name: str, *truths: Truth, seconds: float, step_s: float = STEP_S) -> Group:
    """One replica a truth."""
    return Group(name, tuple(replica(f"{name}-{i}", truth, seconds, step_s) for i, truth in enumerate(truths)))


SUSTAINED = {
    "id": "sustained",
    "metric": "ttft",
    "quantile": 0.99,
    "max": 1.0,
    "sustained": {"window": 30, "for": 120},
}
P99 = {"id": "p99", "metric": "ttft", "quantile": 0.99, "max": 1.0}
ERRORS = {"id": "errors", "metric": "error_rate", "max": 0.02}


def rules(*guardrails: dict[str, object], **more: object) -> Rules:
    """Rules of a canary."""
    return Rules.model_validate({"guardrails": list(guardrails) or [SUSTAINED, ERRORS], **more})


def observed(
    candidate: Group,
    baseline: Group | None = None,
    *,
    seconds: float,
    asked: Rules | None = None,
    planned_s: float | None = None,
    once: bool = False,
    warm_up: bool = False,
    unread: tuple[Unread, ...] = (),
    start: float = 0.0,
) -> Observed:
    """A watch that has gone on for `seconds`."""
    return Observed(
        names=("stable", "canary"),
        rules=asked or rules(),
        candidate=candidate,
        baseline=baseline,
        start_s=T0 + start,
        end_s=T0 + seconds,
        planned_end_s=T0 + (planned_s or seconds),
        once=once,
        newest_tier="host",
        warm_up=warm_up,
        unread=unread,
    )
