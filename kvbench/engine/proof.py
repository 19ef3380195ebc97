"""What a running server proves about itself, and where that differs from its profile.

Reads `/version`, `/v1/models`, `/metrics`, vLLM's development route `/server_info` and, for launched engines, the
memory that its processes map. What cannot be seen is unknown, never assumed. Sizes in bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from kvbench.engine.base import Effective
from kvbench.engine.flags import flag_name
from kvbench.engine.lmcache import IN_PROCESS_CONNECTOR, SERVER_CONNECTOR
from kvbench.engine.processes import mapped_shm
from kvbench.errors import EngineError
from kvbench.spec.profile import Profile
from kvbench.spec.quantity import show_bytes

__all__ = ["Proof", "Seen", "ask_server", "compare", "mapped_host_bytes", "same_version", "version_of"]

ANSWER_S = 10.0
DISK_TIERS = ("fs", "obj", "kvcr", "PacedFileSystemTier")
"""Types of secondary tiers that count as disk, as in `Profile.tier_names`; the last is a throttled file tier."""

LMCACHE_CONNECTORS = (SERVER_CONNECTOR, IN_PROCESS_CONNECTOR)
SIMPLE_CONNECTOR = "SimpleCPUOffloadConnector"
"""vLLM's own other one, which a variable of its environment switches to."""


@dataclass
class Seen:
    """Answers of one server; None: it does not say. JSON from outside, so its values are untyped."""

    version: str | None = None
    models: list[dict[str, Any]] | None = None
    info: dict[str, Any] | None = None
    metrics: dict[str, list[tuple[dict[str, str], float]]] | None = None
    """Family → samples; a family without samples is there with none."""
    host_mapped_bytes: int | None = None
    """Mapped by the engine's processes; None when they cannot be looked at."""
    texts: dict[str, object] = field(default_factory=dict)

    def section(self, name: str) -> dict[str, Any] | None:
        """A part of vLLM's own configuration; None when unknown, {} when the server says there is none."""
        config = (self.info or {}).get("vllm_config")
        if not isinstance(config, dict) or name not in config:
            return None
        value = config[name]
        return value if isinstance(value, dict) else {}

    def cache_label(self, name: str) -> str | None:
        """A label of `vllm:cache_config_info`."""
        samples = (self.metrics or {}).get("vllm:cache_config_info", [])
        value = samples[0][0].get(name) if samples else None
        return None if value in (None, "None") else value


def ask_server(client: httpx.Client, metrics_url: str) -> Seen:
    """Everything that a server tells. A route that is missing or broken leaves its part unknown."""
    seen = Seen()
    version = _get(client, "/version")
    seen.version = None if version is None else version_of(version)
    models = _json(client, "/v1/models")
    if isinstance(models, dict) and isinstance(models.get("data"), list):
        seen.models = [model for model in models["data"] if isinstance(model, dict)]
    info = _json(client, "/server_info?config_format=json")
    seen.info = info if isinstance(info, dict) and isinstance(info.get("vllm_config"), dict) else None
    seen.metrics = _metrics(client, metrics_url)
    seen.texts = {
        "version": None if version is None else _document(version),
        "models": models,
        "cache_config": seen.section("cache_config"),
        "kv_transfer_config": seen.section("kv_transfer_config"),
    }
    return seen


def _get(client: httpx.Client, url: str) -> httpx.Response | None:
    try:
        answer = client.get(url, timeout=ANSWER_S)
    except (httpx.HTTPError, httpx.InvalidURL):
        return None
    return answer if answer.status_code == 200 else None


def _json(client: httpx.Client, path: str) -> object:
    answer = _get(client, path)
    return None if answer is None else _document(answer)


def _document(answer: httpx.Response) -> object:
    try:
        return answer.json()
    except ValueError:
        return None


def version_of(answer: httpx.Response) -> str | None:
    """What a server answers at `/version`; None when that is no version."""
    told = _document(answer) if answer.status_code == 200 else None
    version = told.get("version") if isinstance(told, dict) else None
    return version if isinstance(version, str) else None


def _metrics(client: httpx.Client, url: str) -> dict[str, list[tuple[dict[str, str], float]]] | None:
    answer = _get(client, url)
    if answer is None:
        return None
    try:
        families = list(text_string_to_metric_families(answer.text))
    except (ValueError, IndexError, KeyError):
        return None
    return {family.name: [(s.labels, s.value) for s in family.samples] for family in families} or None


def mapped_host_bytes(pids: Iterable[int], engine_id: str) -> int:
    """Bytes of vLLM's shared offload region, as the process that maps most of it does.

    Seen in the memory map, because vLLM removes the file's name once every worker has mapped it.
    """
    prefix = f"vllm_offload_{engine_id}"
    return max((sum(n for f, n in mapped_shm(pid).items() if f.name.startswith(prefix)) for pid in pids), default=0)


def same_version(pinned: str, running: str) -> bool:
    """Equal but for a local build label (`0.32.0+cpu`)."""
    return pinned.partition("+")[0] == running.partition("+")[0]


def check_version(profile: Profile, running: str | None) -> None:
    """EngineError when the server is of another version than the profile pins."""
    pinned = profile.engine.version
    if pinned is not None and running is not None and not same_version(pinned, running):
        raise EngineError(
            f"profile {profile.name} pins version {pinned}, and the server that runs is {running}",
            do=f"pin version: {running}, or run {pinned}",
        )


def compare(profile: Profile, seen: Seen, kind: type[Proof] | None = None) -> Effective:
    """What the server proved, with every difference from the profile as a sentence.

    `kind` is for tiers that prove themselves in another way than vLLM's own.
    """
    check_version(profile, seen.version)
    proof = (kind or Proof)(profile, seen)
    for step in (proof.model, proof.device, proof.host, proof.disk):
        step()
    return proof.effective()


def _whole_bytes(value: object) -> int | None:
    """vLLM shows a size given in GiB as a float."""
    try:
        return round(float(str(value)))
    except (ValueError, OverflowError):
        return None


class Proof:
    """Collects facts, differences and unknowns, one part of the profile after the other."""

    def __init__(self, profile: Profile, seen: Seen) -> None:
        self._profile, self._seen = profile, seen
        self._differences: list[str] = []
        self._unknown: list[str] = [] if seen.version is not None else ["the version"]
        self._facts: dict[str, Any] = {"version": seen.version}

    def effective(self) -> Effective:
        return Effective(
            **self._facts,
            differences=tuple(self._differences),
            unknown=tuple(self._unknown),
            raw={key: value for key, value in self._seen.texts.items() if value is not None},
        )

    def _check(self, what: str, asked: object, got: object) -> None:
        """`asked` None: the profile leaves it to the engine. `got` None: the server does not say."""
        if asked is None:
            return
        if got is None:
            self._unknown.append(what)
        elif asked != got:
            self._differences.append(f"{what} is {got}, not {asked} as asked")

    def model(self) -> None:
        names = None if self._seen.models is None else [str(model.get("id")) for model in self._seen.models]
        served = self._profile.served_name
        entry = next((m for m in self._seen.models or [] if m.get("id") == served), None)
        self._facts["model"] = served if entry is not None else None
        if names is None:
            self._unknown.append("the served model")
        elif entry is None:
            self._differences.append(f"the server serves {', '.join(names) or 'no model'}, not {served}")
        length = entry.get("max_model_len") if entry is not None else None
        self._facts["max_model_len"] = length if isinstance(length, int) else None
        self._check("max-model-len", self._whole_arg("max-model-len"), self._facts["max_model_len"])

    def _whole_arg(self, name: str) -> int | None:
        given = next((v for k, v in self._profile.engine.args.items() if flag_name(k) == name), None)
        return int(str(given)) if given is not None and re.fullmatch(r"\d+", str(given)) else None

    def device(self) -> None:
        device = self._profile.tiers.device
        blocks = self._whole("num_gpu_blocks")
        self._facts["device_blocks"] = blocks
        if blocks is None:  # also where the engine chose them: the size of the tier is what is compared
            self._unknown.append("the number of device blocks")
        else:
            self._check("the number of device blocks", device.blocks, blocks)
        self._facts["block_tokens"] = self._whole("block_size")
        self._check("the block size", self._whole_arg("block-size"), self._facts["block_tokens"])
        dtype = self._cache("cache_dtype")
        self._facts["kv_dtype"] = dtype
        self._check("kv_dtype", None if device.kv_dtype == "auto" else device.kv_dtype, dtype)
        utilization = self._cache("gpu_memory_utilization")
        got = None if utilization is None else float(utilization)
        self._check("memory_utilization", device.memory_utilization, got)
        caching = self._cache("enable_prefix_caching")
        self._facts["prefix_caching"] = None if caching is None else caching == "True"
        if self._facts["prefix_caching"] is None:
            self._unknown.append("whether the device keeps prefixes")

    def _cache(self, name: str) -> str | None:
        label = self._seen.cache_label(name)
        if label is not None:
            return label
        value = (self._seen.section("cache_config") or {}).get(name)
        return None if value is None else str(value)

    def _whole(self, name: str) -> int | None:
        value = self._cache(name)
        return int(value) if value is not None and value.isdigit() else None

    def _connector(self) -> tuple[dict[str, Any] | None, dict[str, Any]]:
        """The server's connector configuration and the extra part of it."""
        config = self._seen.section("kv_transfer_config")
        if config is not None and config.get("kv_connector") is None:
            config = {}
        extra = (config or {}).get("kv_connector_extra_config")
        return config, extra if isinstance(extra, dict) else {}

    def _has_families(self, prefix: str) -> bool | None:
        """None: there is no page, or not one of vLLM's."""
        metrics = self._seen.metrics
        if metrics is None or not any(name.startswith("vllm:") for name in metrics):
            return None
        return any(name.startswith(prefix) for name in metrics)

    def _tiers_would_show(self) -> bool:
        """Whether tiers as the profile has them have families of vLLM's own; other connectors have none of them."""
        tier = self._profile.tiers.host
        return (tier is None or tier.via != "lmcache") and not self._has_families("vllm:simple_kv_offload")

    def host(self) -> None:
        if self._profile.tiers.host is None:
            self._no_host()
        else:
            self._host_of(self._profile.tiers.host.size)

    def _no_host(self) -> None:
        """A baseline has neither a connector nor its metrics, nor any of its memory."""
        config, _ = self._connector()
        families = self._has_families("vllm:kv_offload")
        signs = []
        if config:
            signs.append(f"a connector ({config.get('kv_connector')}) is configured")
        if families:
            signs.append("metrics of KV offload are exported")
        queries = (self._seen.metrics or {}).get("vllm:external_prefix_cache_queries", [])
        if any(value for _, value in queries):
            signs.append("the device's misses are looked up elsewhere")
        if self._seen.host_mapped_bytes:
            signs.append(f"{show_bytes(self._seen.host_mapped_bytes)} of offload memory are mapped")
        if signs:
            self._differences.append(f"the profile has no host tier, but {', '.join(signs)}")
        proven = config is not None and families is not None
        self._facts["host_bytes"] = 0 if proven and not signs else None
        if not proven and not signs:
            self._unknown.append("that there is no host tier")

    def _host_of(self, asked: int) -> None:
        config, extra = self._connector()
        self._facts["host_bytes"] = None
        families = self._has_families("vllm:kv_offload")
        if config == {} or (config is None and families is False and self._tiers_would_show()):
            self._differences.append("the profile has a host tier, but the server has none")
            self._facts["host_bytes"] = 0
            return
        tier = self._profile.tiers.host
        if tier is not None and tier.via == "lmcache":
            self._hold_lmcache(config)
            return
        if config is not None:
            self._hold_connector(str(config.get("kv_connector")))
        configured = _whole_bytes(extra.get("cpu_bytes_to_use"))
        if config is not None and configured != asked:
            self._differences.append(f"the host tier is configured with {configured} bytes, not {asked} as asked")
        mapped = self._seen.host_mapped_bytes
        if mapped:
            # Whole chunks only, so what is mapped is below the size asked for by less than one chunk; and since one
            # chunk at least must fit, it is more than half of it.
            if not asked / 2 < mapped <= asked:
                self._differences.append(
                    f"the host tier maps {show_bytes(mapped)}, not {show_bytes(asked)} as asked"
                )
            self._facts["host_bytes"] = mapped
        elif mapped is not None and config is not None:
            self._differences.append("the host tier is configured, but no process maps its memory")
        else:
            self._unknown.append("the size of the host tier")

    def _hold_lmcache(self, config: dict[str, Any] | None) -> None:
        """Of a server that runs already; one that is launched is asked for more, in `lmcache_proof`."""
        running = None if config is None else str(config.get("kv_connector"))
        if running is not None and running not in LMCACHE_CONNECTORS:
            asked = " or ".join(LMCACHE_CONNECTORS)
            self._differences.append(f"the host tier's connector is {running}, not {asked} as asked")
        self._unknown.append("the size of the host tier")

    def _hold_connector(self, running: str) -> None:
        """Switched over by a variable, vLLM answers the same flags with another connector."""
        if self._profile.engine.kind == "attached" and running == SIMPLE_CONNECTOR:
            return
        simple = self._profile.engine.env.get("VLLM_USE_SIMPLE_KV_OFFLOAD", "0") not in ("", "0")
        asked = SIMPLE_CONNECTOR if simple else "OffloadingConnector"
        if running != asked:
            self._differences.append(f"the host tier's connector is {running}, not {asked} as asked")

    def disk(self) -> None:
        config, extra = self._connector()
        tiers = extra.get("secondary_tiers")
        listed = [t for t in tiers if isinstance(t, dict)] if isinstance(tiers, list) else []
        has = any(tier.get("type") in DISK_TIERS for tier in listed)
        families = self._has_families("vllm:kv_offload_tiering")
        known: bool | None = None
        if not self._tiers_would_show():
            known = None
        elif config is not None and families is not None:
            known = has and families
        elif families is False or not self._profile.tiers.secondary:
            known = families  # these metrics come with secondary tiers of any type, peers included
        self._hold_disk(known, "the server")

    def _hold_disk(self, known: bool | None, holder: str) -> None:
        """Whether `holder` has a disk tier (None: that is not known) against whether the profile asks for one."""
        self._facts["disk"] = known
        asked = "disk" in self._profile.tier_names
        if known is None:
            self._unknown.append("whether there is a disk tier")
        elif known != asked:
            self._differences.append(
                f"the profile has a disk tier, but {holder} has none"
                if asked
                else f"the profile has no disk tier, but {holder} has one"
            )
