"""Where prompt tokens came from, as engines count it. Tokens; a source that a server cannot tell is left out.

`elsewhere` is a peer, or any tier of a server that does not tell its tiers apart.
"""

from __future__ import annotations

import math

from kvbench.observe.exposition import Exposition
from kvbench.observe.kvbench_names import TIER_TOKENS
from kvbench.observe.trtllm_names import BY_TIER, CACHED, PROMPTS
from kvbench.observe.vllm_names import BY_SOURCE, CACHED_BY_SOURCE, SILENT_CONNECTOR

__all__ = ["COUNTED_IN", "SOURCES", "TIERS_OF_TRTLLM", "known_total", "source_counters", "sources"]

SOURCES = ("device", "host", "disk", "computed")
TIERS_OF_TRTLLM = {"gpu": "device", "host": "host", "disk": "disk"}
"""TensorRT-LLM's words for what backs a cache level."""
COUNTED_IN = (BY_SOURCE, CACHED_BY_SOURCE, TIER_TOKENS, PROMPTS, CACHED, BY_TIER)
"""The families that tell where tokens came from."""
_DECIDES = frozenset({*COUNTED_IN, SILENT_CONNECTOR})
"""What is told depends on which of these are there."""


def source_counters(exposition: Exposition) -> dict[str, float]:
    """Prompt tokens so far by source. Together they are all prompt tokens, or there are none here.

    A family that is there and could not be read is no sign of a server that does not tell its tiers apart.
    """
    if not exposition.unread.isdisjoint(_DECIDES):
        return {}
    found = _of_vllm(exposition) if BY_SOURCE in exposition else _of_trtllm(exposition)
    return found if all(math.isfinite(tokens) for tokens in found.values()) else {}


def _of_vllm(exposition: Exposition) -> dict[str, float]:
    kinds = _by_label(exposition, BY_SOURCE, "source")
    counters = {"computed": kinds.pop("local_compute", 0.0), "device": kinds.pop("local_cache_hit", 0.0)}
    if CACHED_BY_SOURCE not in exposition:
        # External transfers, and whatever a later release adds.
        return {**counters, "elsewhere": sum(kinds.values())}
    cached = _by_label(exposition, CACHED_BY_SOURCE, "source")
    tiers = {tier: cached.pop(tier, 0.0) for tier in ("device", "host", "disk")}
    elsewhere = sum(cached.values())
    if TIER_TOKENS in exposition:  # what no tier was found for stays elsewhere
        told = _by_label(exposition, TIER_TOKENS, "source")
        tiers |= {tier: told.get(tier, 0.0) for tier in ("host", "disk")}
        elsewhere -= tiers["host"] + tiers["disk"]
    elif cached.get("external_unspecified") or SILENT_CONNECTOR in exposition:
        elsewhere += tiers.pop("host") + tiers.pop("disk")
    return {**counters, **tiers, "elsewhere": elsewhere}


def _of_trtllm(exposition: Exposition) -> dict[str, float]:
    """Prompts and what was cached of them are counted at a request's end, tiers when it is admitted."""
    prompts, cached = exposition.total(PROMPTS), exposition.total(CACHED)
    if prompts is None or cached is None:
        return {}
    counters = {"computed": prompts - cached}
    if not exposition[BY_TIER]:
        return {**counters, "elsewhere": cached}
    levels = _by_label(exposition, BY_TIER, "cache_tier")
    tiers = {source: levels.pop(tier, 0.0) for tier, source in TIERS_OF_TRTLLM.items()}
    return {**counters, **tiers, "elsewhere": sum(levels.values())}


def _by_label(exposition: Exposition, family: str, label: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for sample in exposition[family]:
        value = sample.labels.get(label, "")
        found[value] = found.get(value, 0.0) + sample.value
    return found


def known_total(exposition: Exposition, family: str, **labels: str) -> float | None:
    """A sum that is a number; None when the server does not tell it."""
    total = exposition.total(family, **labels)
    return total if total is not None and math.isfinite(total) else None


def sources(before: Exposition, after: Exposition) -> dict[str, float | None]:
    """Prompt tokens by source between two scrapes; None where the server cannot tell or was reset between them."""
    first, last = source_counters(before), source_counters(after)
    return {source: _increase(first.get(source), last.get(source)) for source in SOURCES}


def _increase(first: float | None, last: float | None) -> float | None:
    return None if first is None or last is None or last < first else last - first
