"""LMCache for a vLLM engine: the command of its server, or the configuration of its form inside the engine. Pure.

Names of flags and keys are those of LMCache 0.5.6. Sizes in bytes in profiles; LMCache takes GiB.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path, PurePath

from kvbench.engine.base import Rendered
from kvbench.engine.ports import LOOPBACK
from kvbench.spec.fitness import LMCACHE_CHUNK_TOKENS, usual_block_tokens
from kvbench.spec.profile import HostTier, Profile

__all__ = [
    "BESIDE",
    "IN_PROCESS_CONNECTOR",
    "POLICIES",
    "SERVER_CONNECTOR",
    "LmcacheServer",
    "chunk_tokens",
    "connector_keys",
    "gib",
    "has_server",
    "in_process",
    "in_process_file",
    "server_command",
    "server_rendered",
    "via_lmcache",
]

GIB = 2**30
BESIDE = "lmcache"
"""What the server is called beside its engine."""
SERVER_CONNECTOR = "LMCacheMPConnector"
IN_PROCESS_CONNECTOR = "LMCacheConnectorV1"
POLICIES = {"lru": "LRU", "arc": "ARC"}

SILENCE = {"LMCACHE_TRACK_USAGE": "false", "LMCACHE_DISABLE_BANNER": "1", "DO_NOT_TRACK": "1"}


@dataclass(frozen=True)
class LmcacheServer:
    """Where the engine's LMCache server listens. Defaults are LMCache's own."""

    host: str = "tcp://localhost"
    port: int = 5555
    timeout_s: float = 10.0
    """A server that is gone holds requests up for this long, and a start; LMCache's own five minutes are no use."""
    http_port: int = 8080
    """Status, metrics and administration, without authentication: on loopback only."""


def via_lmcache(profile: Profile) -> bool:
    """Whether the tiers behind the device are LMCache's."""
    return profile.tiers.host is not None and profile.tiers.host.via == "lmcache"


def has_server(profile: Profile) -> bool:
    """Whether a server runs beside the engine."""
    return via_lmcache(profile) and not in_process(profile)


def in_process(profile: Profile) -> bool:
    """Whether LMCache runs inside the engine."""
    return via_lmcache(profile) and profile.tiers.host is not None and profile.tiers.host.in_process


def gib(size_bytes: int) -> str:
    """`16` for 16 GiB; any number of bytes survives, since the readers multiply by 2**30."""
    whole, rest = divmod(size_bytes, GIB)
    return str(whole) if rest == 0 else repr(size_bytes / GIB)


def chunk_tokens(profile: Profile) -> int:
    """Tokens that are kept as one."""
    host = profile.tiers.host
    return LMCACHE_CHUNK_TOKENS if host is None else host.tokens_per_chunk(usual_block_tokens(profile.engine))


def server_command(engine: tuple[str, ...]) -> tuple[str, ...]:
    """The server that lies beside an engine's command: of the same interpreter, or the script in the same place."""
    program = PurePath(engine[0])
    if program.name.startswith("python"):
        return (engine[0], "-m", "lmcache.cli.main", "server")
    return (str(program.with_name("lmcache")), "server")


def server_rendered(
    profile: Profile, host: HostTier, server: LmcacheServer, *, command: tuple[str, ...], disk_root: Path | None
) -> Rendered:
    """The start of the server of `profile`; `command` is its engine's."""
    argv = [
        *server_command(command),
        *("--host", server.host.removeprefix("tcp://"), "--port", str(server.port)),
        *("--http-host", LOOPBACK, "--http-port", str(server.http_port)),
        *("--l1-size-gb", gib(host.size), "--eviction-policy", POLICIES[host.policy]),
        *("--chunk-size", str(chunk_tokens(profile))),
        # The server's default of 0.5.6 knows GPUs only: engines on CPUs then fail to start.
        *("--supported-transfer-mode", "auto"),
    ]
    disk = profile.tiers.disk
    if disk is not None:
        argv += ["--l2-adapter", json.dumps({"type": "fs", "base_path": str(disk_root or disk.path)})]
    return Rendered(argv=tuple(argv), env={**SILENCE, **profile.engine.env})


def connector_keys(server: LmcacheServer) -> dict[str, object]:
    """What the engine's connector has to know of the server."""
    return {
        "lmcache.mp.host": server.host,
        "lmcache.mp.port": server.port,
        "lmcache.mp.mq_timeout": server.timeout_s,
    }


def in_process_file(profile: Profile, host: HostTier, disk_root: Path | None) -> str:
    """The YAML that `LMCACHE_CONFIG_FILE` names."""
    disk = profile.tiers.disk
    lines = [
        f"chunk_size: {chunk_tokens(profile)}",
        "local_cpu: true",
        f"max_local_cpu_size: {host.size / GIB!r}",
        f"save_decode_cache: {'false' if host.offload_prompt_only else 'true'}",
    ]
    if disk is not None:
        limit = disk.size_limit if disk.size_limit is not None else 0
        lines += [
            f"local_disk: {json.dumps(f'file://{disk_root or disk.path}/')}",
            f"max_local_disk_size: {limit / GIB!r}",
        ]
    return "".join(f"{line}\n" for line in lines)
