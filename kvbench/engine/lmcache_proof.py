"""What a vLLM and its LMCache prove about their tiers, and whether they still cache. Sizes in bytes."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

from kvbench.engine.base import Effective
from kvbench.engine.failures import plain, strip_timestamp
from kvbench.engine.lmcache import IN_PROCESS_CONNECTOR, POLICIES, SERVER_CONNECTOR, chunk_tokens, in_process
from kvbench.engine.lmcache_server import LmcacheProcess
from kvbench.engine.proof import Proof, Seen, compare
from kvbench.spec.profile import Profile

__all__ = ["DegradedWatch", "prove", "prove_in_process"]

FILE_ADAPTERS = ("FSL2Adapter", "FSNativeL2Adapter")
"""What LMCache calls the adapters that keep chunks in files."""

_DEGRADED = re.compile(r"[^\n]*(?:degraded mode|No supported \w+ connector found)[^\n]*")
"""All that LMCache 0.5.6 says when it begins to answer without caching: its form inside the engine at the start,
the connector of its server when that is not reached any more.
"""


class DegradedWatch:
    """Looks at what the engine has logged since the last look; from any thread."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._read_to = 0
        self._found: str | None = None
        self._one_at_a_time = threading.Lock()

    def look(self) -> str | None:
        """The line that says that nothing is cached any more; None as long as there is none."""
        with self._one_at_a_time:
            if self._found is None:
                match = _DEGRADED.search(strip_timestamp(self._new_lines()))
                self._found = None if match is None else plain(match[0])
            return self._found

    def _new_lines(self) -> str:
        try:
            with self._log.open("rb") as log:
                log.seek(self._read_to)
                data = log.read()
        except OSError:
            return ""
        whole = data[: data.rfind(b"\n") + 1]
        self._read_to += len(whole)
        return whole.decode(errors="replace")


class _LmcacheProof(Proof):
    """Its tiers prove themselves by the server's status; inside the engine they tell nothing of themselves."""

    def host(self) -> None:
        """The connector, whether it caches, and the memory."""
        config, _ = self._connector()
        self._facts["host_bytes"] = None
        if config == {}:
            self._differences.append("the profile has a host tier, but the server has none")
            self._facts["host_bytes"] = 0
            return
        wanted = IN_PROCESS_CONNECTOR if in_process(self._profile) else SERVER_CONNECTOR
        self._check("the connector", wanted, None if config is None else config.get("kv_connector"))
        degraded = self._seen.texts.get("degraded")
        if degraded is not None:
            self._differences.append(f"the engine answers and caches nothing: its log says {degraded!r}")
        if in_process(self._profile):
            self._unknown.append("the size of the host tier")
        else:
            self._server()

    def _server(self) -> None:
        status = self._status()
        storage = _part(status, "storage_manager")
        memory = _part(storage, "l1_manager").get("memory_configured_bytes")
        size = memory if isinstance(memory, int) else None
        self._facts["host_bytes"] = size
        host = self._profile.tiers.host
        self._check("the host tier in bytes", host.size if host is not None else None, size)
        self._check("LMCache's chunk", chunk_tokens(self._profile), status.get("chunk_size"))
        policy = _part(storage, "l1_eviction_controller").get("eviction_policy")
        self._check("LMCache's policy", POLICIES[host.policy] if host is not None else None, policy)
        engines = [status.get(key) for key in ("registered_gpu_ids", "registered_non_cuda_instance_ids")]
        if all(isinstance(ids, list) for ids in engines) and not any(engines):
            self._differences.append("no engine is registered at the LMCache server, so nothing is cached")

    def _status(self) -> dict[str, Any]:
        status = self._seen.texts.get("lmcache_status")
        return status if isinstance(status, dict) else {}

    def disk(self) -> None:
        """Whether the server has a file tier."""
        adapters = _part(self._status(), "storage_manager").get("l2_adapters")
        kinds = [each.get("type") for each in adapters if isinstance(each, dict)] if adapters is not None else None
        has = None if kinds is None else any(kind in FILE_ADAPTERS for kind in kinds)
        self._hold_disk(has, "LMCache")


def _part(status: dict[str, Any], name: str) -> dict[str, Any]:
    """JSON from outside: what is not as known is not there."""
    value = status.get(name)
    return value if isinstance(value, dict) else {}


def prove(profile: Profile, seen: Seen, server: LmcacheProcess, degraded: DegradedWatch) -> Effective:
    """Everything that both servers tell; `seen` is the engine's part."""
    seen.texts["lmcache_version"] = server.ask("/version")
    seen.texts["lmcache_status"] = server.ask("/status")
    return _judged(profile, seen, degraded)


def prove_in_process(profile: Profile, seen: Seen, degraded: DegradedWatch) -> Effective:
    """Everything that an engine with LMCache inside tells."""
    return _judged(profile, seen, degraded)


def _judged(profile: Profile, seen: Seen, degraded: DegradedWatch) -> Effective:
    seen.texts["degraded"] = degraded.look()
    return compare(profile, seen, _LmcacheProof)
