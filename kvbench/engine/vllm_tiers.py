"""The KV tiers of a profile in vLLM's words: flags and connector configurations. Pure.

`--kv-offloading-size` takes GiB, everything inside `--kv-transfer-config` takes bytes; both are the total over all
ranks of one engine. Keys are those of 0.32.0; what a profile does not say is not written.
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel

from kvbench.engine.lmcache import IN_PROCESS_CONNECTOR, LmcacheServer, connector_keys, gib
from kvbench.spec.profile import DiskTier, HostTier, Tiers
from kvbench.spec.secondary import Backpressure, ObjectTier

__all__ = ["backpressure_keys", "offload_keys", "show_json", "tier_arguments"]

STORE_CONFIG = ("bucket", "endpoint_override", "region", "scheme", "ca_bundle")


def tier_arguments(
    tiers: Tiers, *, engine_id: str, disk_root: Path | None, lmcache: LmcacheServer, events: bool
) -> list[str]:
    """The flags of a profile's host tier and of what stands behind it; none without a host tier.

    `disk_root`: this launch's own directory under the disk tier's path. `events`: the disk tier tells its stores.
    """
    host = tiers.host
    if host is None:
        return []
    if host.via == "lmcache":
        return _lmcache_arguments(host, engine_id, lmcache)
    extra = offload_keys(host) | _secondary_keys(tiers, disk_root, events=events)
    if host.via == "native":
        # The flags fill in the connector, the role and the size, and leave the other keys as they are.
        return [*_offloading(host, "native"), "--kv-transfer-config", _config(engine_id, extra)]
    full = {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "engine_id": engine_id,
        "kv_connector_extra_config": {"spec_name": "CPUOffloadingSpec", "cpu_bytes_to_use": host.size, **extra},
    }
    return ["--kv-transfer-config", show_json(full)]


def _offloading(host: HostTier, backend: str) -> list[str]:
    return ["--kv-offloading-size", gib(host.size), "--kv-offloading-backend", backend]


def _config(engine_id: str, extra: dict[str, object]) -> str:
    return show_json({"engine_id": engine_id} | ({"kv_connector_extra_config": extra} if extra else {}))


def _lmcache_arguments(host: HostTier, engine_id: str, server: LmcacheServer) -> list[str]:
    """The size is not handed on to LMCache, whose server has its own; the flag still has to be there."""
    if host.in_process:
        full = {"kv_connector": IN_PROCESS_CONNECTOR, "kv_role": "kv_both", "engine_id": engine_id}
        return ["--kv-transfer-config", show_json(full)]
    return [
        *_offloading(host, "lmcache"),
        "--kv-transfer-config",
        _config(engine_id, connector_keys(server)),
    ]


def offload_keys(host: HostTier) -> dict[str, object]:
    """Keys of `kv_connector_extra_config` that are not vLLM's defaults; it ignores unknown ones in silence."""
    extra: dict[str, object] = {}
    if host.policy != "lru":
        extra["eviction_policy"] = host.policy
    if host.chunk_tokens is not None:
        extra["block_size"] = host.chunk_tokens
    if host.blocks_per_chunk is not None:
        extra["blocks_per_chunk"] = host.blocks_per_chunk
    if host.store_threshold:
        extra["store_threshold"] = host.store_threshold
    if host.max_tracker_size is not None:
        extra["max_tracker_size"] = host.max_tracker_size
    if not host.offload_prompt_only:
        extra["offload_prompt_only"] = False
    if host.canonical_layout:
        extra["canonical_layout"] = True
    return extra


def _secondary_keys(tiers: Tiers, disk_root: Path | None, *, events: bool) -> dict[str, object]:
    """The tiering spec is the only one that reads secondary tiers; the other ignores them without a word."""
    listed = [] if tiers.disk is None else [_file_tier(tiers.disk, disk_root or tiers.disk.path, events=events)]
    listed += [_further_tier(tier) for tier in tiers.secondary]
    return {"spec_name": "TieringOffloadingSpec", "secondary_tiers": listed} if listed else {}


def _file_tier(disk: DiskTier, root: Path, *, events: bool) -> dict[str, object]:
    tier: dict[str, object] = {
        "type": "fs",
        "root_dir": str(root),
        "n_read_threads": disk.read_threads,
        "n_write_threads": disk.write_threads,
    }
    if events:
        tier["enable_kv_events"] = True
    if disk.locality is not None:
        tier["locality"] = disk.locality
    return tier | backpressure_keys(disk.backpressure)


def _further_tier(tier: BaseModel) -> dict[str, object]:
    """Keys as they are named in the profile, an object store's address in a part of its own."""
    said = tier.model_dump(exclude_none=True, exclude={"backpressure"})
    if isinstance(tier, ObjectTier):
        said["store_config"] = {key: said.pop(key) for key in STORE_CONFIG if key in said}
    return said | backpressure_keys(getattr(tier, "backpressure", None))


def backpressure_keys(asked: Backpressure | None) -> dict[str, object]:
    """The part of a tier's entry; empty when none is asked for."""
    if asked is None:
        return {}
    keys = {"detector": "backpressure_cls", "policy": "policy_cls"}
    said = asked.model_dump(exclude_none=True)
    return {"backpressure": {keys.get(key, key): value for key, value in said.items()}}


def show_json(value: object) -> str:
    """One argument."""
    return json.dumps(value, separators=(", ", ": "))
