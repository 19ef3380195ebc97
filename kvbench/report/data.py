"""What every report is made from: a verdict and what a stored run says about how it was reached.

Plain values; times in seconds, sizes in bytes. Building one from a run directory is the caller's work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

import pandas as pd

from kvbench.judge.verdict import Verdict
from kvbench.spec.profile import Profile
from kvbench.spec.quantity import show_bytes
from kvbench.spec.rules import Rules
from kvbench.spec.workload import Workload

__all__ = ["ArmFacts", "HostFacts", "ReportData", "RoundTables", "engine_facts", "tier_sentences"]


@dataclass(frozen=True)
class HostFacts:
    """The machine that ran the client (and, where they were launched, the engines)."""

    cpu_model: str
    cores: int
    memory_bytes: int
    kernel: str


@dataclass(frozen=True)
class ArmFacts:
    """An arm as it took part."""

    name: str
    role: Literal["baseline", "candidate"]
    engine: str
    """The kind of engine: vllm, tensorrt-llm, attached, emulated."""
    engine_version: str | None
    model: str
    tiers: tuple[str, ...]
    """One sentence a tier, hot to cold; `tier_sentences` makes them."""
    argv: tuple[str, ...] = ()
    """The command as rendered; empty for attached servers."""
    effective: tuple[tuple[str, str], ...] = ()
    """What the running server proved to be, label and value; `engine_facts` makes them."""
    differences: tuple[str, ...] = ()
    """Where the server is not as the profile asks."""
    unproven: tuple[str, ...] = ()
    """What could not be proven."""


@dataclass(frozen=True, eq=False)
class RoundTables:
    """The tables of one round of one arm, with the schemas of `kvbench.record.tables`."""

    index: int
    requests: pd.DataFrame
    tokens: pd.DataFrame
    metrics: pd.DataFrame
    host: pd.DataFrame


@dataclass(frozen=True, eq=False)
class ReportData:
    """Everything a report shows. Equal values give equal reports, byte for byte."""

    verdict: Verdict
    name: str
    run_id: str
    directory: str
    """Where the run lies, as the reader would type it."""
    started_utc: datetime
    kvbench_version: str
    host: HostFacts
    arms: tuple[ArmFacts, ...]
    """The baseline first."""
    workload: Workload
    rules: Rules
    warnings: tuple[str, ...] = ()
    """Sentences that a reader must see before trusting a figure, such as rounds that were repeated."""
    rounds: Mapping[str, list[RoundTables]] = field(default_factory=dict)
    """Arm name → its rounds in order of index; an arm without rounds may be absent."""


def tier_sentences(profile: Profile) -> tuple[str, ...]:
    """One sentence for each tier that the profile switches on, hot to cold."""
    tiers = profile.tiers
    device = "the engine's own size"
    if tiers.device.blocks is not None:
        device = f"{tiers.device.blocks:,} blocks"
    elif tiers.device.memory_utilization is not None:
        device = f"{tiers.device.memory_utilization:.0%} of its memory"
    dtype = "" if tiers.device.kv_dtype == "auto" else f", KV in {tiers.device.kv_dtype}"
    sentences = [f"device: {device}{dtype}"]
    if (host := tiers.host) is not None:
        slow = f", slowed to {show_bytes(host.throttle)}/s" if host.throttle else ""
        sentences.append(f"host: {show_bytes(host.size)}, {host.policy}, via {host.via}{slow}")
    if (disk := tiers.disk) is not None:
        size = f", at most {show_bytes(disk.size_limit)}" if disk.size_limit else ""
        slow = f", slowed to {show_bytes(disk.throttle)}/s" if disk.throttle else ""
        sentences.append(f"disk: files under {disk.path}{size}{slow}")
    return tuple(sentences)


_FACTS = {
    "version": "engine version",
    "model": "model",
    "max_model_len": "longest context, tokens",
    "block_tokens": "tokens per block",
    "device_blocks": "device blocks",
    "kv_dtype": "KV data type",
    "prefix_caching": "prefix caching",
    "host_bytes": "host tier",
    "disk": "disk tier",
}


def engine_facts(effective: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    """Labels and values of `kvbench.engine.base.Effective` (as a mapping); what is None was not proven."""
    return tuple((label, _fact(key, effective[key])) for key, label in _FACTS.items() if key in effective)


def _fact(key: str, value: object) -> str:
    if value is None:
        return "not proven"
    if isinstance(value, bool):
        return "on" if value else "off"
    if key == "host_bytes" and isinstance(value, int | float):
        return show_bytes(value) if value else "none"
    return f"{value:,}" if isinstance(value, int) else str(value)
