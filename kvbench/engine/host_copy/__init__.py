"""How a server of the embedded engine is told to offload: where its plugin lies and the connector's configuration.

The other modules of this directory run in the engine's environment: the plugin, and `kvbench_serve`, which starts
the server. They are never imported here. Sizes in bytes, bandwidths in bytes per second.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["SERVER_MODULE", "connector_config", "plugin_path"]

SERVER_MODULE = "kvbench_serve"
"""`python -m` name of the embedded engine's server; it takes the arguments of vLLM's own API server."""

PLUGIN_MODULE, PACED_DISK_MODULE = "kvbench_host_copy", "kvbench_paced_disk"


def plugin_path() -> Path:
    """The directory that goes on the server's PYTHONPATH."""
    return Path(__file__).resolve().parent


def connector_config(
    *,
    engine_id: str,
    host_bytes: int,
    disk_root: Path | None = None,
    policy: str = "lru",
    blocks_per_chunk: int = 1,
    store_threshold: int = 0,
    offload_prompt_only: bool = True,
    read_threads: int = 16,
    write_threads: int = 16,
    backpressure: dict[str, object] | None = None,
    host_throttle: float | None = None,
    disk_throttle: float | None = None,
    disk_events: bool = False,
) -> dict[str, object]:
    """The value of `--kv-transfer-config`: the host tier alone, or with a directory as the disk tier behind it.

    Every default is vLLM's own (0.32.0). `host_throttle` and `disk_throttle` limit loads from the host and reads
    from the disk, to make a tier bad on purpose. `disk_events`: the disk tier says what it stores, where the server
    publishes KV events at all.
    """
    tiered = disk_root is not None
    extra: dict[str, object] = {
        "spec_name": "HostCopyTieringSpec" if tiered else "HostCopySpec",
        "spec_module_path": PLUGIN_MODULE,
        "cpu_bytes_to_use": host_bytes,
        "eviction_policy": policy,
        "blocks_per_chunk": blocks_per_chunk,
        "offload_prompt_only": offload_prompt_only,
    }
    if store_threshold:
        extra["store_threshold"] = store_threshold
    if host_throttle is not None:
        extra["kvbench_host_bandwidth_bytes_per_s"] = host_throttle
    if disk_root is not None:
        extra["secondary_tiers"] = [
            _disk_tier(disk_root, read_threads, write_threads, disk_throttle, events=disk_events)
        ]
    if backpressure is not None:
        extra["backpressure"] = backpressure
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "engine_id": engine_id,
        "kv_connector_extra_config": extra,
    }


def _disk_tier(
    root: Path, read_threads: int, write_threads: int, throttle: float | None, *, events: bool
) -> dict[str, object]:
    tier: dict[str, object] = {
        "type": "fs",
        "root_dir": str(root),
        "n_read_threads": read_threads,
        "n_write_threads": write_threads,
    }
    if events:
        tier["enable_kv_events"] = True
    if throttle is not None:
        tier |= {
            "type": "PacedFileSystemTier",
            "module_path": PACED_DISK_MODULE,
            "read_bandwidth_bytes_per_s": throttle,
        }
    return tier
