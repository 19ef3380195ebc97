"""Which canonical series the gate reads, and under which names engines expose them. Pure.

`naming` gives what was read its canonical names; everything behind that is the same for every engine.
"""

from __future__ import annotations

from kvbench.observe.kvbench_names import PREFIX as OWN
from kvbench.observe.mapping import Mapping
from kvbench.observe.metric_table import MAPPINGS, PROCESS_START
from kvbench.observe.trtllm_names import BY_TIER
from kvbench.observe.vllm_names import BY_SOURCE as VLLM_BY_SOURCE
from kvbench.observe.vllm_names import CACHED_BY_SOURCE as VLLM_CACHED_BY_SOURCE
from kvbench.observe.vllm_names import CREATED
from kvbench.spec.engine_metrics import ENGINE_METRICS
from kvbench.spec.rules import LATENCIES, Rules

__all__ = ["ALWAYS", "ENDINGS", "LATENCY_FAMILIES", "STARTED", "exposed_names", "shown", "wanted_names"]

LATENCY_FAMILIES = {
    "ttft": "engine_ttft",
    "ttft_service": "engine_ttft",
    "itl": "engine_itl",
    "tpot": "engine_tpot",
    "e2e": "engine_e2e",
}
"""Histograms of a server count from arrival there, so `ttft` and `ttft_service` are one here."""

STARTED = (PROCESS_START, CREATED)
"""Gauges whose change is another process; either may be absent. Kept under their own names."""

FINISHED = "requests_finished"
REFUSED = "requests_refused"
PROMPT = "prompt_tokens"
GENERATED = "generation_tokens"
CACHED = "cached_tokens"
BY_SOURCE = "prompt_tokens_by_source"
RUNNING = "requests_running"
WAITING = "requests_waiting"
TIER_QUERIES = "tier_cache_queries"
HOST_STORED = "host_store_bytes"
HOST_LOADED = "host_load_bytes"
DISK_QUERIES = "disk_chunk_queries"
DISK_WRITTEN = "disk_write_bytes"
DISK_READ = "disk_read_bytes"
CACHE_CONFIG = "vllm:cache_config_info"
UP = "up"

AS_EXPOSED = (*STARTED, CACHE_CONFIG, UP)
"""Series that are no metric of an engine and keep their names."""
SOURCE_SERIES = tuple(family + "_total" for family in (VLLM_BY_SOURCE, VLLM_CACHED_BY_SOURCE, BY_TIER))
"""What becomes prompt tokens by source; each engine tells them with labels of its own."""

ALWAYS = (
    *(FINISHED, REFUSED, PROMPT, GENERATED, CACHED, RUNNING, WAITING),
    *(TIER_QUERIES, HOST_STORED, HOST_LOADED, DISK_QUERIES, DISK_WRITTEN, DISK_READ),
)
"""What health, traffic, sources, cache fill and the state of a tier are read from, whatever the rules."""

ENDINGS = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}
"""What an exposed name has after its family's."""


def families_of(metric: str) -> list[Mapping]:
    """Families that become a canonical metric; those of kvbench's own readers are in no `/metrics`."""
    return [m for m in MAPPINGS if m.name == metric and not m.family.startswith(OWN)]


def exposed_names(metric: str) -> set[str]:
    """Every exposed series name of a canonical metric."""
    endings = ENDINGS[ENGINE_METRICS[metric].kind]
    return {mapping.family + ending for mapping in families_of(metric) for ending in endings}


def shown(series: str) -> str:
    """A canonical series for people: `engine_ttft_count (vllm:time_to_first_token_seconds_count, ...)`."""
    for metric in (series, series.rpartition("_")[0]):
        if metric in ENGINE_METRICS:
            ending = series.removeprefix(metric) or ENDINGS[ENGINE_METRICS[metric].kind][0]
            names = [m.family + ending for m in families_of(metric) if m.replaced_by is None]
            return f"{series} ({', '.join(names)})" if names else series
    return series


def wanted_names(rules: Rules) -> tuple[str, ...]:
    """Every exposed series name that judging by `rules` needs, sorted."""
    names = {*AS_EXPOSED, *SOURCE_SERIES}
    # TTFT is read in any case: it counts the requests.
    metrics = {"ttft", *(rule.metric for rule in (*rules.guardrails, *rules.benefits, *rules.evidence))}
    for metric in (*ALWAYS, *metrics):
        if metric in LATENCIES:
            names |= exposed_names(LATENCY_FAMILIES[metric])
        elif metric in ENGINE_METRICS and ENGINE_METRICS[metric].kind != "histogram":
            names |= exposed_names(metric)
    return tuple(sorted(names))
