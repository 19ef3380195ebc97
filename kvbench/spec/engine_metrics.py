"""Canonical names of what engines tell about themselves, with unit and meaning. Engine-neutral; no parsing here.

Counters grow from the engine's start; gauges are the moment's value. Absent means that the engine cannot tell.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["ENGINE_METRICS", "EngineMetric"]


class EngineMetric(NamedTuple):
    """`unit` is the base unit; a histogram appears as `<name>_sum`, `<name>_count`, `<name>_bucket` (label le)."""

    kind: Literal["counter", "gauge", "histogram"]
    unit: str
    meaning: str


def _counter(unit: str, meaning: str) -> EngineMetric:
    return EngineMetric("counter", unit, meaning)


def _gauge(unit: str, meaning: str) -> EngineMetric:
    return EngineMetric("gauge", unit, meaning)


def _histogram(unit: str, meaning: str) -> EngineMetric:
    return EngineMetric("histogram", unit, meaning)


ENGINE_METRICS: dict[str, EngineMetric] = {
    "prompt_tokens": _counter("tokens", "prompt tokens of prefilled requests"),
    "generation_tokens": _counter("tokens", "tokens generated"),
    "prompt_tokens_by_source": _counter(
        "tokens", "prompt tokens by where their KV came from (label source: the four sources, or elsewhere)"
    ),
    "cached_tokens": _counter("tokens", "prompt tokens whose KV was not computed, whatever the source"),
    "prefix_cache_queries": _counter("tokens", "prompt tokens looked up in the device cache"),
    "prefix_cache_hits": _counter("tokens", "of these, found"),
    "tier_cache_queries": _counter("tokens", "prompt tokens looked up behind the device"),
    "tier_cache_hits": _counter("tokens", "of these, found"),
    "requests_running": _gauge("requests", "requests in the running batch"),
    "requests_waiting": _gauge("requests", "requests not scheduled yet, those that wait for KV included"),
    "requests_finished": _counter("requests", "finished requests (label reason)"),
    "requests_refused": _counter("requests", "requests turned away at admission (label reason)"),
    "preemptions": _counter("requests", "running requests whose blocks were taken away"),
    "kv_cache_usage": _gauge("fraction", "share of device blocks in use; the fullest engine of several"),
    "host_store_bytes": _counter("bytes", "device to host"),
    "host_store_seconds": _counter("s", "time in these copies, summed over overlapping jobs"),
    "host_load_bytes": _counter("bytes", "host to device, also for what came from the disk first"),
    "host_load_seconds": _counter("s", "time in these copies, summed over overlapping jobs"),
    "host_store_drops": _counter("events", "stores given up because the host tier was full"),
    "host_store_skips": _counter("events", "stores left out by store_threshold"),
    "disk_read_bytes": _counter("bytes", "disk to host"),
    "disk_read_seconds": _counter("s", "time in these reads"),
    "disk_write_bytes": _counter("bytes", "host to disk, blocks whose file exists already included"),
    "disk_write_seconds": _counter("s", "time in these writes"),
    "disk_chunk_queries": _counter("chunks", "chunks looked up on disk, each request until its first miss"),
    "disk_chunk_hits": _counter("chunks", "of these, found"),
    "promotion_failures": _counter("jobs", "failed reads from the disk tier: the request recomputes"),
    "promotion_drops": _counter("events", "promotions given up because the host tier was full"),
    "cascade_failures": _counter("jobs", "failed writes to the disk tier"),
    "store_drops": _counter("events", "stores dropped by back-pressure of the disk tier"),
    "engine_ttft": _histogram("s", "arrival at the server to first token"),
    "engine_itl": _histogram("s", "gap between steps of a request"),
    "engine_e2e": _histogram("s", "arrival at the server to last token"),
    "engine_queue_time": _histogram("s", "arrival to scheduled; contains the time of loading KV from a tier"),
    "engine_prefill_time": _histogram("s", "scheduled to first token"),
    "host_lookup_time": _histogram("s", "first deferral to resolved, for a request that waited for a tier"),
}
