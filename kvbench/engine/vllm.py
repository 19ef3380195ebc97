"""vLLM: the exact command, environment and connector configuration of a profile. Pure; nothing is started.

Sizes in bytes in profiles; `--kv-offloading-size` takes GiB, everything inside `--kv-transfer-config` takes bytes.
Names of flags and keys are those of vLLM 0.32.0.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvbench.engine.base import Rendered
from kvbench.engine.flags import argv_of, flag_name
from kvbench.engine.host_copy import connector_config, plugin_path
from kvbench.engine.models import engine_args
from kvbench.engine.ports import LOOPBACK
from kvbench.errors import InputError, NotSupportedYetError
from kvbench.spec.fitness import block_tokens
from kvbench.spec.profile import EngineSpec, FlagValue, HostTier, Profile

__all__ = ["EMBEDDED_ENVIRONMENT", "EXTRA_BODY", "Place", "check_args", "render"]

EMBEDDED_ENVIRONMENT = "vllm-cpu"
EXTRA_BODY: dict[str, object] = {"ignore_eos": True, "return_token_ids": True}
"""Exact output lengths, and token ids to compare outputs by."""

GIB = 2**30

SILENCE = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
"""For models that lie in a directory: the hub is never asked, so its absence costs no time-outs."""

KVBENCH_SETS = ("kv-transfer-config", "uds", "disable-log-stats")
"""Flags that must not be given in any spelling, dotted ones (`kv-transfer-config.kv_role`) included."""


@dataclass(frozen=True)
class Place:
    """What a profile does not say: where this one start happens."""

    command: tuple[str, ...]
    """Up to the first flag of the API server."""
    embedded: bool
    """The CPU engine of `kvbench engine install`, whose host tier is kvbench's plugin."""
    port: int
    engine_id: str
    model: str
    """A directory or a hub id."""
    local_model: bool
    disk_directory: Path | None
    cores: int


def check_args(engine: EngineSpec) -> None:
    """InputError for flags that would undo what kvbench sets; plain spellings were refused on loading."""
    for key in engine.args:
        if flag_name(key).partition(".")[0] in KVBENCH_SETS:
            raise InputError(
                f"engine.args.{key} is kvbench's to set: tiers come from the profile, engines listen on a loopback"
                " port, and their metrics are needed",
                do="leave it out",
            )


def render(profile: Profile, place: Place) -> Rendered:
    """The start of `profile` at `place`."""
    check_args(profile.engine)
    argv = [
        *place.command,
        *_model_arguments(profile, place),
        *("--host", LOOPBACK, "--port", str(place.port)),
        "--enable-prompt-tokens-details",  # per-request cached tokens
        "--disable-uvicorn-access-log",
        *(["--enforce-eager"] if place.embedded and not _given(profile, "enforce-eager") else []),
        *_device_arguments(profile),
        *_tier_arguments(profile, place),
        *argv_of(_further_args(profile)),
    ]
    return Rendered(argv=tuple(argv), env=_environment(profile, place))


def _given(profile: Profile, name: str) -> bool:
    return any(flag_name(key) == name for key in profile.engine.args)


def _further_args(profile: Profile) -> dict[str, FlagValue]:
    given = {flag_name(key): value for key, value in profile.engine.args.items()}
    return {key: value for key, value in {**engine_args(profile.engine.model), **given}.items() if key != "port"}


def _model_arguments(profile: Profile, place: Place) -> list[str]:
    # `vllm serve` takes the model as its operand; the server module takes it as an option.
    model = [place.model] if place.command[-1:] == ("serve",) else ["--model", place.model]
    revision = profile.engine.revision
    return [
        *model,
        *(["--revision", revision] if revision is not None else []),
        *("--served-model-name", profile.served_name),
    ]


def _device_arguments(profile: Profile) -> list[str]:
    device = profile.tiers.device
    argv: list[str] = []
    if device.memory_utilization is not None:
        argv += ["--gpu-memory-utilization", f"{device.memory_utilization:g}"]
    if device.blocks is not None:
        argv += ["--num-gpu-blocks-override", str(device.blocks)]
    if device.kv_dtype != "auto":
        argv += ["--kv-cache-dtype", device.kv_dtype]
    return argv


def _tier_arguments(profile: Profile, place: Place) -> list[str]:
    host = profile.tiers.host
    if host is None:
        return []
    if host.via == "lmcache":
        raise NotSupportedYetError("tiers.host.via: lmcache", do="use native or offloading")
    if place.embedded:
        return ["--kv-transfer-config", _json(_host_copy_config(profile, host, place))]
    extra = _extra_config(profile, host, place)
    if host.via == "native":
        # The flags fill in the connector, the role and the size, and leave the other keys as they are.
        config: dict[str, object] = {"engine_id": place.engine_id}
        if extra:
            config["kv_connector_extra_config"] = extra
        size = ["--kv-offloading-size", _gib(host.size), "--kv-offloading-backend", "native"]
        return [*size, "--kv-transfer-config", _json(config)]
    full = {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "engine_id": place.engine_id,
        "kv_connector_extra_config": {"spec_name": "CPUOffloadingSpec", "cpu_bytes_to_use": host.size, **extra},
    }
    return ["--kv-transfer-config", _json(full)]


def _extra_config(profile: Profile, host: HostTier, place: Place) -> dict[str, object]:
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
    if not host.offload_prompt_only:
        extra["offload_prompt_only"] = False
    disk = profile.tiers.disk
    if disk is not None:
        root = place.disk_directory if place.disk_directory is not None else disk.path
        extra["spec_name"] = "TieringOffloadingSpec"
        extra["secondary_tiers"] = [
            {
                "type": "fs",
                "root_dir": str(root),
                "n_read_threads": disk.read_threads,
                "n_write_threads": disk.write_threads,
            }
        ]
    return extra


def _host_copy_config(profile: Profile, host: HostTier, place: Place) -> dict[str, object]:
    disk = profile.tiers.disk
    root = None if disk is None else place.disk_directory or disk.path
    return connector_config(
        engine_id=place.engine_id,
        host_bytes=host.size,
        disk_root=root,
        policy=host.policy,
        blocks_per_chunk=_blocks_per_chunk(profile, host),
        store_threshold=host.store_threshold,
        offload_prompt_only=host.offload_prompt_only,
        read_threads=disk.read_threads if disk else 16,
        write_threads=disk.write_threads if disk else 16,
        host_throttle=host.throttle,
        disk_throttle=disk.throttle if disk else None,
    )


def _blocks_per_chunk(profile: Profile, host: HostTier) -> int:
    size = block_tokens(profile.engine)
    if host.chunk_tokens is not None and size is not None:
        return host.chunk_tokens // size  # a multiple, or the profile would not have loaded
    return host.blocks_per_chunk or 1


def _environment(profile: Profile, place: Place) -> dict[str, str]:
    # The development routes show the configuration in force and reset caches; engines listen on loopback only.
    env = {"VLLM_SERVER_DEV_MODE": "1", **SILENCE}
    if place.local_model:
        env |= OFFLINE
    if place.embedded:
        env |= _cpu_environment(profile, place.cores)
    return env | _with_plugin(profile.engine.env, place)


def _cpu_environment(profile: Profile, cores: int) -> dict[str, str]:
    env = {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(cores),
        # Threads that spin between steps take the cores from the scheduler and the client: a 3,072-token request
        # cost 0.9 to 1.2 s of CPU on two cores, and 0.55 s with threads that sleep.
        "OMP_WAIT_POLICY": "PASSIVE",
        "VLLM_HOST_IP": LOOPBACK,  # its workers' own sockets stay off the network too
    }
    if profile.tiers.device.blocks is not None:
        # The number of blocks decides what is allocated; without this the engine would first ask for most of the
        # machine's memory. One GiB is the smallest that the variable can say.
        env["VLLM_CPU_KVCACHE_SPACE"] = "1"
    return env


def _with_plugin(given: Mapping[str, str], place: Place) -> dict[str, str]:
    env = dict(given)
    if place.embedded:
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(plugin_path()), env.get("PYTHONPATH")]))
    return env


def _gib(size_bytes: int) -> str:
    """`16` for 16 GiB; any number of bytes survives, since vLLM multiplies by 2**30."""
    whole, rest = divmod(size_bytes, GIB)
    return str(whole) if rest == 0 else repr(size_bytes / GIB)


def _json(value: object) -> str:
    return json.dumps(value, separators=(", ", ": "))
