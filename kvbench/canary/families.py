"""Which of an engine's families the gate reads, and what each becomes. Pure; vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.observe.canonical import MAPPINGS
from kvbench.spec.engine_metrics import ENGINE_METRICS
from kvbench.spec.rules import LATENCIES, Rules

__all__ = ["ALWAYS", "LATENCY_FAMILIES", "STARTED", "Counter", "engine_counters", "wanted_names"]

LATENCY_FAMILIES = {
    "ttft": "vllm:time_to_first_token_seconds",
    "ttft_service": "vllm:time_to_first_token_seconds",
    "itl": "vllm:inter_token_latency_seconds",
    "tpot": "vllm:request_time_per_output_token_seconds",
    "e2e": "vllm:e2e_request_latency_seconds",
}
"""Histograms of a server count from arrival there, so `ttft` and `ttft_service` are one here."""

STARTED = ("process_start_time_seconds", "vllm:prompt_tokens_created")
"""Gauges whose change is another process; either may be absent."""

FINISHED = "vllm:request_success_total"
REFUSED = "vllm:admission_rejections_total"
PROMPT = "vllm:prompt_tokens_total"
GENERATED = "vllm:generation_tokens_total"
CACHED = "vllm:prompt_tokens_cached_total"
BY_SOURCE = "vllm:prompt_tokens_by_source_total"
CACHED_BY_SOURCE = "vllm:prompt_tokens_cached_by_source_total"
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
HOST_STORED = "vllm:kv_offload_store_bytes_total"
DISK_WRITTEN = "vllm:kv_offload_tiering_write_bytes_total"
CACHE_CONFIG = "vllm:cache_config_info"
UP = "up"

ALWAYS = (
    *STARTED,
    *(FINISHED, REFUSED, PROMPT, GENERATED, CACHED, BY_SOURCE, CACHED_BY_SOURCE, RUNNING, WAITING),
    *(HOST_STORED, DISK_WRITTEN, CACHE_CONFIG, UP),
)
"""What health, traffic, sources and cache fill are read from, whatever the rules."""


@dataclass(frozen=True)
class Counter:
    """One exposed series of a canonical metric; only or all but the samples with a label."""

    name: str
    where: tuple[str, str] | None = None
    without: tuple[str, str] | None = None


def engine_counters(metric: str) -> tuple[Counter, ...]:
    """Exposed names of a canonical counter or gauge, the newest release's first; empty for a histogram."""
    kind = ENGINE_METRICS[metric].kind
    if kind == "histogram":
        return ()
    suffix = "_total" if kind == "counter" else ""
    return tuple(
        Counter(mapping.family + suffix, mapping.where, mapping.without)
        for mapping in MAPPINGS
        if mapping.name == metric
    )


def wanted_names(rules: Rules) -> tuple[str, ...]:
    """Every exposed series name that judging by `rules` needs, sorted."""
    names = set(ALWAYS)
    # TTFT is read in any case: it counts the requests.
    metrics = {"ttft", *(rule.metric for rule in (*rules.guardrails, *rules.benefits, *rules.evidence))}
    for metric in metrics:
        if metric in LATENCIES:
            names |= {LATENCY_FAMILIES[metric] + part for part in ("_bucket", "_count", "_sum")}
        elif metric in ENGINE_METRICS:
            names |= {counter.name for counter in engine_counters(metric)}
    return tuple(sorted(names))
