"""TensorRT-LLM's names in `/prometheus/metrics`. Its JSON is read by `iteration_stats`.

1.2 tells requests, latencies and two gauges; everything about tokens and tiers came later. Source: upstream's
`tensorrt_llm/metrics/collector.py`; not run.
"""

from __future__ import annotations

from kvbench.observe.mapping import Mapping

__all__ = ["BY_TIER", "CACHED", "OTHER_FAMILIES", "PROMPTS", "TRTLLM"]

_T = "trtllm_"
PROMPTS = _T + "prompt_tokens"
CACHED = _T + "prompt_cached_tokens"
BY_TIER = _T + "prompt_cache_hit_tokens"
"""Labels cache_level and cache_tier. Declared by every engine, and never filled by one whose cache manager does not
tell its levels: then no sample is not zero."""

TRTLLM = (
    # 1.2
    Mapping(_T + "request_success", "requests_finished", keep=(("finished_reason", "reason"),)),
    Mapping(_T + "e2e_request_latency_seconds", "engine_e2e"),
    Mapping(_T + "time_to_first_token_seconds", "engine_ttft"),
    Mapping(_T + "time_per_output_token_seconds", "engine_tpot"),
    Mapping(_T + "request_queue_time_seconds", "engine_queue_time"),
    Mapping(_T + "kv_cache_utilization", "kv_cache_usage"),
    Mapping(_T + "kv_cache_hit_rate", "cache_hit_rate"),
    # later
    Mapping(PROMPTS, "prompt_tokens"),
    Mapping(_T + "generation_tokens", "generation_tokens"),
    Mapping(CACHED, "cached_tokens"),
    Mapping(_T + "request_prefill_time_seconds", "engine_prefill_time"),
    Mapping(_T + "request_decode_time_seconds", "engine_decode_time"),
    Mapping(_T + "request_inference_time_seconds", "engine_inference_time"),
    Mapping(_T + "num_requests_running", "requests_running"),
    Mapping(_T + "num_requests_waiting", "requests_waiting"),
    Mapping(_T + "kv_cache_reused_blocks", "cache_blocks_reused"),
    Mapping(_T + "kv_cache_missed_blocks", "cache_blocks_missed"),
    Mapping(_T + "kv_cache_iter_reuse_rate", "cache_hit_rate_now"),
    Mapping(_T + "kv_cache_host_utilization", "host_cache_usage"),
    Mapping(_T + "kv_cache_onboard_bytes", "host_load_bytes"),
    Mapping(_T + "kv_cache_offload_bytes", "host_store_bytes"),
    Mapping(_T + "kv_cache_disk_prefetch_blocks", "disk_read_blocks"),
)

OTHER_FAMILIES = frozenset({BY_TIER})
"""Families that are looked at and have no row of their own."""
