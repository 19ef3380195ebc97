"""Canonical names of what engines tell about themselves, with unit and meaning. Engine-neutral; no parsing here.

Counters grow from the engine's start; gauges are the moment's value. Absent means that the engine cannot tell.
Which family of which engine becomes what stands in `kvbench.observe.canonical.MAPPINGS`.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["BUCKETED", "COUNTER_RESET", "ENGINE_METRICS", "IDENTITY_GAP", "PROCESS", "EngineMetric"]


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
    # Where prompt tokens came from.
    "prompt_tokens": _counter("tokens", "prompt tokens of prefilled requests"),
    "generation_tokens": _counter("tokens", "tokens generated"),
    "prompt_tokens_by_source": _counter(
        "tokens", "prompt tokens by where their KV came from (label source: the four sources, or elsewhere)"
    ),
    "cached_tokens": _counter("tokens", "prompt tokens whose KV was not computed, whatever the source"),
    "recomputed_tokens": _counter("tokens", "tokens that were cached and computed all the same; old releases tell"),
    "prefix_cache_queries": _counter("tokens", "prompt tokens looked up in the device cache"),
    "prefix_cache_hits": _counter("tokens", "of these, found"),
    "tier_cache_queries": _counter("tokens", "prompt tokens looked up behind the device"),
    "tier_cache_hits": _counter("tokens", "of these, found"),
    "tier_lookup_tokens": _counter("tokens", "tokens a cache server was asked for, those on the device included"),
    "tier_found_tokens": _counter("tokens", "of these, found, those on the device included"),
    "tier_found_tokens_by_source": _counter("tokens", "the same by the tier that held them (label source)"),
    "tier_stored_tokens": _counter("tokens", "tokens a cache server took in"),
    "tier_asked_tokens": _counter("tokens", "tokens the engine wanted loaded from its cache server"),
    "tier_loaded_tokens": _counter("tokens", "of these, loaded"),
    "tier_loaded_share": _gauge("fraction", "the same as a share, since it was told last; 1 where none was wanted"),
    "cache_blocks_reused": _counter("blocks", "blocks of prompts found in a cache, whatever the tier"),
    "cache_blocks_missed": _counter("blocks", "blocks of prompts found in no cache"),
    "cache_hit_rate": _gauge(
        "fraction", "share of prompt blocks found in a cache, since the start; best of several"
    ),
    "cache_hit_rate_now": _gauge("fraction", "the same of the latest step alone"),
    "computed_tokens_per_request": _histogram("tokens", "prompt tokens computed, by request"),
    # Requests.
    "requests_running": _gauge("requests", "requests in the running batch"),
    "requests_waiting": _gauge("requests", "requests not scheduled yet, those that wait for KV included"),
    "requests_deferred": _gauge("requests", "of these, held up by something that passes, such as KV under way"),
    "requests_fetching": _gauge("requests", "of these, that need KV loaded in the background (label stage)"),
    "requests_finished": _counter("requests", "finished requests (label reason where it is told)"),
    "requests_refused": _counter("requests", "requests turned away at admission (label reason)"),
    "preemptions": _counter("requests", "running requests whose blocks were taken away"),
    "preemptions_per_request": _histogram("preemptions", "times that its blocks were taken away, by request"),
    # The device tier.
    "kv_cache_usage": _gauge("fraction", "share of device blocks in use; the fullest engine of several"),
    "block_lifetime": _histogram("s", "device block filled to evicted; a sample of all blocks"),
    "block_idle_before_evict": _histogram("s", "device block last used to evicted; a sample of all blocks"),
    "block_reuse_gap": _histogram("s", "between two uses of a device block; a sample of all blocks"),
    # The host tier, and the copies between it and the device.
    "host_cache_usage": _gauge("fraction", "share of the host tier that holds KV; the fullest part of several"),
    "host_cache_bytes": _gauge("bytes", "KV held in the host tier"),
    "host_pinned_usage": _gauge("fraction", "share of the host tier that transfers hold fast; not how full it is"),
    "host_pinned_by_reads": _gauge("fraction", "of the host tier, what reads from it hold fast"),
    "host_pinned_by_writes": _gauge("fraction", "of the host tier, what writes into it hold fast"),
    "host_pinned_by_promotions": _gauge("fraction", "of the host tier, what promotions hold fast; most of several"),
    "host_pinned_by_cascades": _gauge("fraction", "of the host tier, what cascades hold fast; most of several"),
    "offload_tiers": _gauge(
        "tiers", "tiers behind the device (label tier; of the host: chunks, blocks_per_chunk, bytes, tokens)"
    ),
    "host_blocks_used": _gauge("blocks", "blocks of the host tier that hold KV"),
    "host_store_bytes": _counter("bytes", "device to host"),
    "host_store_seconds": _counter("s", "time in these copies, summed over overlapping jobs"),
    "host_store_size": _histogram("bytes", "device to host, by job"),
    "host_store_blocks": _counter("blocks", "device to host"),
    "host_store_chunks": _counter("chunks", "taken into the host tier"),
    "host_store_room": _histogram("chunks", "room asked for in the host tier, by store or promotion"),
    "host_load_bytes": _counter("bytes", "host to device, also for what came from the disk first"),
    "host_load_seconds": _counter("s", "time in these copies, summed over overlapping jobs"),
    "host_load_size": _histogram("bytes", "host to device, by job"),
    "host_load_blocks": _counter("blocks", "host to device"),
    "host_load_chunks": _counter("chunks", "read from the host tier, for the device or for the disk tier"),
    "host_load_failures": _counter("chunks", "chunks that the host tier held and could not be read (label reason)"),
    "host_store_drops": _counter("events", "stores given up because the host tier was full"),
    "host_store_skips": _counter("events", "stores left out by store_threshold"),
    "host_evicted_chunks": _counter("chunks", "evicted from the host tier"),
    "host_dropped_blocks": _counter("blocks", "blocks that left the host tier without reaching a colder one"),
    "host_reuse_gap": _histogram("s", "between two uses of a chunk in the host tier; a sample of all chunks"),
    "host_lookup_time": _histogram("s", "first deferral to resolved, for a request that waited for a tier"),
    "lookup_call_time": _histogram("s", "one lookup behind the device, in the scheduler's own time"),
    "tier_load_time": _histogram("s", "one retrieval by the engine from its cache server"),
    "tier_store_time": _histogram("s", "one store by the engine to its cache server"),
    # The disk tier: promotions from it, cascades to it.
    "disk_cache_bytes": _gauge("bytes", "KV held in the disk tier"),
    "disk_read_bytes": _counter("bytes", "disk to host"),
    "disk_read_seconds": _counter("s", "time in these reads"),
    "disk_read_blocks": _counter("blocks", "disk to host"),
    "disk_read_chunks": _counter("chunks", "disk to host"),
    "disk_write_bytes": _counter("bytes", "host to disk, blocks whose file exists already included"),
    "disk_write_seconds": _counter("s", "time in these writes"),
    "disk_write_chunks": _counter("chunks", "host to disk, those that succeeded"),
    "disk_chunk_queries": _counter("chunks", "chunks looked up on disk, each request until its first miss"),
    "disk_chunk_hits": _counter("chunks", "of these, found"),
    "disk_lookup_time": _histogram("s", "first deferral to resolved, for a chunk looked up on disk"),
    "disk_lookup_call_time": _histogram("s", "one lookup of a chunk on disk, in the scheduler's own time"),
    "promotions_running": _gauge("jobs", "promotions from the disk tier under way"),
    "promotion_time": _histogram(
        "s", "a promotion from the disk tier that went well: asked for to ready in the host"
    ),
    "failed_promotion_time": _histogram("s", "a promotion from the disk tier that failed: asked for to given up"),
    "promotion_failures": _counter("jobs", "failed reads from the disk tier: the request recomputes"),
    "promotion_failed_chunks": _counter("chunks", "chunks looked for on disk and not delivered (label reason)"),
    "promotion_drops": _counter("events", "promotions given up because the host tier was full"),
    "cascades_running": _gauge("jobs", "writes to the disk tier under way"),
    "cascade_failures": _counter("jobs", "failed writes to the disk tier"),
    "store_drops": _counter("events", "stores dropped by back-pressure of the disk tier"),
    "store_drop_blocks": _counter("blocks", "blocks of these stores"),
    "disk_store_delay": _gauge("s/MiB", "moving average of stores to the disk tier, by back-pressure; the slowest"),
    # Latency as the engine sees it.
    "engine_ttft": _histogram("s", "arrival at the server to first token"),
    "engine_itl": _histogram("s", "gap between steps of a request"),
    "engine_tpot": _histogram("s", "time per output token after the first, by request"),
    "engine_e2e": _histogram("s", "arrival at the server to last token"),
    "engine_queue_time": _histogram("s", "arrival to scheduled; contains the time of loading KV from a tier"),
    "engine_prefill_time": _histogram("s", "scheduled to first token"),
    "engine_decode_time": _histogram("s", "first token to last token"),
    "engine_inference_time": _histogram("s", "scheduled to last token"),
    # What the engine says of its own telling.
    "metric_events_lost": _counter("events", "events that were never counted because a queue was full"),
    "iterations_unseen": _counter("iterations", "iterations whose record never came; another reader may have it"),
}

BUCKETED = (
    *("block_lifetime", "block_idle_before_evict", "block_reuse_gap", "host_reuse_gap"),
    *("promotion_time", "disk_lookup_time", "host_lookup_time"),
)
"""Histograms of which a run's metrics have the buckets, too."""

COUNTER_RESET = "counter_reset"
"""In a run's metrics, a row for each series that fell between two scrapes, at the time of the scrape that shows it.

Label counter: its canonical name, or `process` where the counters were created anew. The value is by how much.
"""
PROCESS = "process"
"""Stands for all counters of a process that began anew."""

IDENTITY_GAP = "identity_gap"
"""In a run's metrics, at every scrape: by how much the parts of a sum miss the whole, as a share of the larger.

Labels: identity, and at: `rest` where no request was under way, else `load`. Identities that need rest are there at
rest alone, and after a request gave up by what they grew by since.
"""
