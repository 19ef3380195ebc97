"""What the emulated server says its configuration is, in vLLM's words as far as it has them. Bytes and blocks."""

from __future__ import annotations

from kvbench.engine.emulated.sizes import Sizes

__all__ = ["configuration"]


def configuration(sizes: Sizes, engine_id: str) -> dict[str, object]:
    """What `/server_info` says, in vLLM's words as far as it has them."""
    cache: dict[str, object] = {
        "block_size": sizes.block_tokens,
        "num_gpu_blocks": sizes.device_blocks,
        "cache_dtype": "auto",
        "enable_prefix_caching": True,
    }
    transfer: dict[str, object] | None = None
    if sizes.host_bytes:
        extra: dict[str, object] = {
            "cpu_bytes_to_use": sizes.host_bytes,
            "eviction_policy": sizes.host_policy,
            "blocks_per_chunk": sizes.blocks_per_chunk,
        }
        if sizes.disk:
            extra["secondary_tiers"] = [{"type": "fs"}]
        transfer = {
            "kv_connector": "OffloadingConnector",
            "kv_role": "kv_both",
            "engine_id": engine_id,
            "kv_connector_extra_config": extra,
        }
    return {"cache_config": cache, "kv_transfer_config": transfer}
