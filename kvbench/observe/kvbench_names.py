"""Names of the pages that kvbench serves for engines whose own cannot be scraped as they are.

Those of statistics that only one reader can have are canonical already; where the engine tells the same on its own
page, that one counts.
"""

from __future__ import annotations

from kvbench.observe.mapping import Mapping

__all__ = ["KVBENCH", "PREFIX", "TIER_TOKENS"]

PREFIX = "kvbench_"
TIER_TOKENS = PREFIX + "tier_tokens"
"""Prompt tokens that LMCache gave to vLLM, by `source`: host or disk. vLLM itself counts them in one sum."""

_T = "trtllm_"
_ALSO_TOLD = {
    "requests_finished": _T + "request_success",
    "requests_running": _T + "num_requests_running",
    "requests_waiting": _T + "num_requests_waiting",
    "kv_cache_usage": _T + "kv_cache_utilization",
    "host_cache_usage": _T + "kv_cache_host_utilization",
    "cache_blocks_reused": _T + "kv_cache_reused_blocks",
    "cache_blocks_missed": _T + "kv_cache_missed_blocks",
    "host_load_bytes": _T + "kv_cache_onboard_bytes",
    "host_store_bytes": _T + "kv_cache_offload_bytes",
    "disk_read_blocks": _T + "kv_cache_disk_prefetch_blocks",
}
_ONLY_HERE = (
    *("prompt_tokens_by_source", "host_load_blocks", "host_store_blocks", "host_dropped_blocks"),
    *("iterations_unseen", "metric_events_lost"),
)

KVBENCH = (
    *(Mapping(PREFIX + name, name, replaced_by=family) for name, family in _ALSO_TOLD.items()),
    *(Mapping(PREFIX + name, name, keep=(("source", "source"),)) for name in _ONLY_HERE),
)
