"""LMCache's own names: of its server (`lmcache_mp_`, on its HTTP port) and of the connector inside the engine.

Its first level is the host tier, its second the disk tier. It counts a lookup's tokens before it knows what the
device has, so what it found is not what a prompt was served from; that is vLLM's to tell. A family of the server
appears with its first event, so one that is absent may only not have happened yet: unknown all the same.
Sources: expositions of 0.5.6; the connector's names from its package, not run.
"""

from __future__ import annotations

from kvbench.observe.mapping import Mapping

__all__ = ["FOUND", "FOUND_ON_DISK", "FOUND_ON_HOST", "LMCACHE", "SERVER_PREFIX"]

SERVER_PREFIX = _S = "lmcache_mp_"
_C = "lmcache:"
_REASON = (("reason", "reason"),)
FOUND = _S + "lookup_hit_tokens"
FOUND_ON_HOST = _S + "lookup_hit_l1_tokens"
FOUND_ON_DISK = _S + "lookup_hit_l2_tokens"

_SERVER = (
    Mapping(_S + "lookup_requested_tokens", "tier_lookup_tokens"),
    Mapping(FOUND, "tier_found_tokens"),
    Mapping(FOUND_ON_HOST, "tier_found_tokens_by_source", given=(("source", "host"),)),
    Mapping(FOUND_ON_DISK, "tier_found_tokens_by_source", given=(("source", "disk"),)),
    Mapping(_S + "l1_usage_ratio", "host_cache_usage"),
    Mapping(_S + "l1_memory_usage_bytes", "host_cache_bytes"),
    Mapping(_S + "l1_read_chunks", "host_load_chunks"),
    Mapping(_S + "l1_write_chunks", "host_store_chunks"),
    Mapping(_S + "l1_evicted_chunks", "host_evicted_chunks"),
    Mapping(_S + "l1_allocation_failure_chunks", "host_store_drops"),
    Mapping(_S + "l1_read_failure_chunks", "host_load_failures", keep=_REASON),
    Mapping(_S + "l1_chunk_reuse_gap_seconds", "host_reuse_gap"),
    Mapping(_S + "l2_usage_bytes", "disk_cache_bytes"),
    Mapping(_S + "l2_prefetch_lookup_objects_chunks", "disk_chunk_queries"),
    Mapping(_S + "l2_prefetch_load_submitted_objects_chunks", "disk_chunk_hits"),
    Mapping(_S + "l2_prefetch_load_completed_chunks", "disk_read_chunks"),
    Mapping(_S + "l2_prefetch_failure_chunks", "promotion_failed_chunks", keep=_REASON),
    Mapping(_S + "l2_store_completed_objects_chunks", "disk_write_chunks"),
    Mapping(_S + "active_prefetch_jobs", "promotions_running"),
    Mapping(_S + "event_bus_dropped_events", "metric_events_lost"),
    Mapping(_S + "l0_block_lifetime_seconds", "block_lifetime", replaced_by="vllm:kv_block_lifetime_seconds"),
    Mapping(
        _S + "l0_block_idle_before_evict_seconds",
        "block_idle_before_evict",
        replaced_by="vllm:kv_block_idle_before_evict_seconds",
    ),
)

_CONNECTOR = (
    Mapping(_C + "num_lookup_tokens", "tier_lookup_tokens", replaced_by=_S + "lookup_requested_tokens"),
    Mapping(_C + "num_lookup_hits", "tier_found_tokens", replaced_by=FOUND),
    Mapping(_C + "num_requested_tokens", "tier_asked_tokens"),
    Mapping(_C + "num_hit_tokens", "tier_loaded_tokens"),
    Mapping(_C + "retrieve_hit_rate", "tier_loaded_share"),
    Mapping(_C + "num_stored_tokens", "tier_stored_tokens"),
    Mapping(_C + "local_cache_usage", "host_cache_bytes", replaced_by=_S + "l1_memory_usage_bytes"),
    Mapping(_C + "local_storage_usage", "disk_cache_bytes", replaced_by=_S + "l2_usage_bytes"),
    Mapping(_C + "time_to_retrieve", "tier_load_time"),
    Mapping(_C + "time_to_store", "tier_store_time"),
)

LMCACHE = (*_SERVER, *_CONNECTOR)
