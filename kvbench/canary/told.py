"""What the candidate's servers declare about their tiers, asked of them directly. Bytes."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx
from pydantic import Field

from kvbench.canary.scraping import metrics_address
from kvbench.engine.proof import Seen, ask_server
from kvbench.judge.verdict import JudgeModel
from kvbench.observe.fetch import client
from kvbench.spec.access import Access
from kvbench.spec.canary import Canary

__all__ = ["ServerSays", "addresses_of", "ask_servers", "declared"]

HOST_FAMILIES = ("vllm:kv_offload_", "vllm:simple_kv_offload_", "vllm:lmcache_", "lmcache:")
DISK_FAMILIES = ("vllm:kv_offload_tiering_",)
"""What vLLM exposes once a tier is configured, and only then: a family is declared before its first sample."""
MOST_AT_ONCE = 16
PATIENCE_S = 5.0


class ServerSays(JudgeModel):
    """One server's own words."""

    configured: bool
    """Whether it tells its configuration: vLLM does so under VLLM_SERVER_DEV_MODE=1."""
    connector: str | None = None
    """The KV connector that is configured; None: none is, or it is not told."""
    host_bytes: int | None = None
    secondary: list[str] = Field(default_factory=list)
    """Kinds of the tiers behind the host."""
    families: list[str] | None = None
    """Families of tiers that `/metrics` declares; None: there are no metrics."""


def declared(says: ServerSays | None, tier: str | None) -> list[str]:
    """Families that are there only with this tier."""
    prefixes = DISK_FAMILIES if tier == "disk" else HOST_FAMILIES
    return [name for name in (says.families if says is not None else None) or [] if name.startswith(prefixes)]


def addresses_of(canary: Canary) -> list[str]:
    """The servers that may be asked: those that are scraped, else those that the file names for it."""
    return list(canary.scrape.candidate) if canary.scrape is not None else list(canary.on_breach.servers)


def ask_servers(canary: Canary, addresses: Sequence[str]) -> dict[str, ServerSays]:
    """Address → what it says. A server that does not answer is left out. Nothing is raised for what it may do."""
    if not addresses:
        return {}
    token_env = canary.scrape.token_env if canary.scrape is not None else None
    with ThreadPoolExecutor(min(len(addresses), MOST_AT_ONCE), thread_name_prefix="kvbench-ask") as pool:
        answers = pool.map(lambda address: _ask(address, token_env), addresses)
        return {address: says for address, says in zip(addresses, answers, strict=True) if says is not None}


def _ask(address: str, token_env: str | None) -> ServerSays | None:
    metrics = metrics_address(address)
    base = address.removesuffix("/metrics").removesuffix("/prometheus")
    with client(PATIENCE_S, Access(api_key_env=token_env)) as http:
        http.base_url = httpx.URL(base)
        seen = ask_server(http, metrics)
    if seen.metrics is None and seen.info is None:
        return None
    return _says(seen)


def _says(seen: Seen) -> ServerSays:
    config = seen.section("kv_transfer_config")
    families = None if seen.metrics is None else sorted(n for n in seen.metrics if n.startswith(HOST_FAMILIES))
    if config is None:
        return ServerSays(configured=False, families=families)
    connector = config.get("kv_connector")
    extra = config.get("kv_connector_extra_config")
    extra = extra if isinstance(extra, dict) else {}
    size = extra.get("cpu_bytes_to_use")
    tiers = extra.get("secondary_tiers")
    return ServerSays(
        configured=True,
        connector=None if connector is None else str(connector),
        host_bytes=round(size) if isinstance(size, int | float) else None,
        secondary=[str(tier.get("type")) for tier in tiers or [] if isinstance(tier, dict)],
        families=families,
    )
