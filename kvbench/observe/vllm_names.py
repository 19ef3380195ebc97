"""vLLM's names, from 0.11 (the first release with the offloading connector) to 0.33.

Sources: expositions of 0.32.0, the packages of the releases named below, and vLLM's `v1/metrics/loggers.py` for
names that older releases have.
"""

from __future__ import annotations

from kvbench.observe.mapping import Mapping

__all__ = ["BY_SOURCE", "CACHED_BY_SOURCE", "CREATED", "OTHER_FAMILIES", "RECOMPUTED", "SILENT_CONNECTOR", "VLLM"]

BY_SOURCE = "vllm:prompt_tokens_by_source"
"""Since about 0.16: computed, device, any tier."""
CACHED_BY_SOURCE = "vllm:prompt_tokens_cached_by_source"
"""Since 0.32: the tiers apart."""
CREATED = "vllm:prompt_tokens_created"
RECOMPUTED = "vllm:prompt_tokens_recomputed"
"""From 0.16 on for some releases: a prompt that was cached to its last token, which is computed all the same."""
SILENT_CONNECTOR = "vllm:lmcache_mp_lookup_duration_seconds"
"""Of a connector that keeps its tiers to itself: what it serves counts as `external_unspecified`."""

_V = "vllm:"
_OFFLOAD = "vllm:kv_offload_"
_TIERING = "vllm:kv_offload_tiering_"
_SIMPLE = "vllm:simple_kv_offload_"
_PRIMARY = ("tier", "0:primary")  # vLLM counts its host tier among the tiers; the others stand behind it
_REASON = (("reason", "reason"),)
_FAILED = ("result", "failure")  # of a promotion
_SIZES = (
    *(("cpu_num_chunks", "chunks"), ("cpu_blocks_per_chunk", "blocks_per_chunk")),
    *(("cpu_kv_cache_size_bytes", "bytes"), ("cpu_kv_cache_size_tokens", "tokens"), ("tier", "tier")),
)

_TOKENS_AND_REQUESTS = (
    Mapping(_V + "prompt_tokens", "prompt_tokens"),
    Mapping(_V + "generation_tokens", "generation_tokens"),
    Mapping(_V + "prompt_tokens_cached", "cached_tokens"),
    Mapping(RECOMPUTED, "recomputed_tokens"),
    Mapping(_V + "prefix_cache_queries", "prefix_cache_queries"),
    Mapping(_V + "prefix_cache_hits", "prefix_cache_hits"),
    Mapping(_V + "external_prefix_cache_queries", "tier_cache_queries"),
    Mapping(_V + "external_prefix_cache_hits", "tier_cache_hits"),
    Mapping(_V + "request_prefill_kv_computed_tokens", "computed_tokens_per_request"),
    Mapping(_V + "num_requests_running", "requests_running"),
    Mapping(_V + "num_requests_waiting", "requests_waiting"),
    Mapping(_V + "num_requests_waiting_by_reason", "requests_deferred", where=("reason", "deferred")),
    Mapping(_V + "num_requests_kv_fetch_by_stage", "requests_fetching", keep=(("stage", "stage"),)),
    Mapping(_V + "request_success", "requests_finished", keep=(("finished_reason", "reason"),)),
    Mapping(_V + "admission_rejections", "requests_refused", keep=_REASON),
    Mapping(_V + "num_preemptions", "preemptions"),
    Mapping(_V + "request_num_preemptions", "preemptions_per_request"),
    Mapping(_V + "kv_cache_usage_perc", "kv_cache_usage"),
    Mapping(_V + "kv_block_lifetime_seconds", "block_lifetime"),
    Mapping(_V + "kv_block_idle_before_evict_seconds", "block_idle_before_evict"),
    Mapping(_V + "kv_block_reuse_gap_seconds", "block_reuse_gap"),
    Mapping(_V + "time_to_first_token_seconds", "engine_ttft"),
    Mapping(_V + "inter_token_latency_seconds", "engine_itl"),
    Mapping(_V + "request_time_per_output_token_seconds", "engine_tpot"),
    Mapping(_V + "e2e_request_latency_seconds", "engine_e2e"),
    Mapping(_V + "request_queue_time_seconds", "engine_queue_time"),
    Mapping(_V + "request_prefill_time_seconds", "engine_prefill_time"),
    Mapping(_V + "request_decode_time_seconds", "engine_decode_time"),
    Mapping(_V + "request_inference_time_seconds", "engine_inference_time"),
)

_OFFLOADING = (
    Mapping(_OFFLOAD + "store_bytes", "host_store_bytes"),
    Mapping(_OFFLOAD + "store_time", "host_store_seconds"),
    Mapping(_OFFLOAD + "store_size", "host_store_size"),
    Mapping(_OFFLOAD + "load_bytes", "host_load_bytes"),
    Mapping(_OFFLOAD + "load_time", "host_load_seconds"),
    Mapping(_OFFLOAD + "load_size", "host_load_size"),
    Mapping(_OFFLOAD + "allocation_failure", "host_store_drops"),
    Mapping(_OFFLOAD + "stores_skipped", "host_store_skips"),
    Mapping(_OFFLOAD + "cpu_allocation_size", "host_store_room"),
    Mapping(_OFFLOAD + "cpu_cache_usage_perc", "host_pinned_usage"),
    Mapping(_OFFLOAD + "cpu_cache_read_usage_perc", "host_pinned_by_reads"),
    Mapping(_OFFLOAD + "cpu_cache_write_usage_perc", "host_pinned_by_writes"),
    Mapping(_OFFLOAD + "lookup_async_delay_seconds", "host_lookup_time"),
    Mapping(_OFFLOAD + "lookup_sync_delay_seconds", "lookup_call_time"),
    # Since 0.28.
    Mapping(_TIERING + "read_bytes", "disk_read_bytes", without=_PRIMARY),
    Mapping(_TIERING + "read_time", "disk_read_seconds", without=_PRIMARY),
    Mapping(_TIERING + "write_bytes", "disk_write_bytes", without=_PRIMARY),
    Mapping(_TIERING + "write_time", "disk_write_seconds", without=_PRIMARY),
    Mapping(_TIERING + "chunk_queries", "disk_chunk_queries", without=_PRIMARY),
    Mapping(_TIERING + "chunk_hits", "disk_chunk_hits", without=_PRIMARY),
    Mapping(_TIERING + "lookup_async_delay_seconds", "disk_lookup_time", without=_PRIMARY),
    Mapping(_TIERING + "lookup_sync_delay_seconds", "disk_lookup_call_time", without=_PRIMARY),
    Mapping(_TIERING + "primary_read_usage_perc", "host_pinned_by_cascades"),
    Mapping(_TIERING + "primary_write_usage_perc", "host_pinned_by_promotions"),
    Mapping(_TIERING + "active_promotion_jobs", "promotions_running"),
    Mapping(_TIERING + "active_cascade_jobs", "cascades_running"),
    Mapping(_TIERING + "promotion_job_failures", "promotion_failures"),
    Mapping(_TIERING + "promotion_allocation_failures", "promotion_drops"),
    Mapping(_TIERING + "cascade_job_failures", "cascade_failures"),
    # Since 0.31.
    Mapping(_TIERING + "backpressure_stores_dropped", "store_drops"),
    Mapping(_TIERING + "backpressure_blocks_dropped", "store_drop_blocks"),
    Mapping(_TIERING + "backpressure_store_latency_ema", "disk_store_delay"),
    # Since 0.33.
    Mapping(_TIERING + "promotion_latency_seconds", "promotion_time", without=_FAILED),
    Mapping(_TIERING + "promotion_latency_seconds", "failed_promotion_time", where=_FAILED),
    Mapping(_OFFLOAD + "config_info", "offload_tiers", keep=_SIZES),
    # The connector for plain CPU offload, since 0.20.
    Mapping(_SIMPLE + "load_blocks", "host_load_blocks"),
    Mapping(_SIMPLE + "save_outcomes", "host_store_blocks", where=("outcome", "stored")),
    Mapping(_SIMPLE + "save_outcomes", "host_store_drops", where=("outcome", "dropped_cpu_full")),
    Mapping(_SIMPLE + "used_blocks", "host_blocks_used"),
)

_OLD = (
    # Renamed in 0.9 and still told by 0.11 beside the new names.
    Mapping(_V + "gpu_cache_usage_perc", "kv_cache_usage", replaced_by=_V + "kv_cache_usage_perc"),
    Mapping(_V + "gpu_prefix_cache_queries", "prefix_cache_queries", replaced_by=_V + "prefix_cache_queries"),
    Mapping(_V + "gpu_prefix_cache_hits", "prefix_cache_hits", replaced_by=_V + "prefix_cache_hits"),
    # Renamed in 0.11.
    Mapping(_V + "time_per_output_token_seconds", "engine_itl", replaced_by=_V + "inter_token_latency_seconds"),
    # The only names of transfers before about 0.24; newer releases tell both.
    *(
        Mapping(
            f"{_OFFLOAD}{old}",
            f"host_{verb}_{unit}",
            where=("transfer_type", transfer),
            replaced_by=f"{_OFFLOAD}{verb}_{new}",
        )
        for verb, transfer in (("load", "CPU_to_GPU"), ("store", "GPU_to_CPU"))
        for old, new, unit in (
            ("total_bytes", "bytes", "bytes"),
            ("total_time", "time", "seconds"),
            ("size", "size", "size"),
        )
    ),
)

VLLM = (*_TOKENS_AND_REQUESTS, *_OFFLOADING, *_OLD)

OTHER_FAMILIES = frozenset({BY_SOURCE, CACHED_BY_SOURCE, CREATED, SILENT_CONNECTOR})
"""Families that are looked at and have no row of their own."""
