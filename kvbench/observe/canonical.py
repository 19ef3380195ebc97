"""What an engine exposes, in canonical names (`kvbench.spec.engine_metrics` has unit and meaning of each).

One table for vLLM 0.16 to 0.33. Series of several engine ranks are one: counters and counts are summed, shares are
those of the fullest rank. What a server does not expose is absent, never zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from kvbench.observe.exposition import Exposition, Sample, parse
from kvbench.spec.engine_metrics import ENGINE_METRICS

__all__ = [
    "FAMILIES",
    "SOURCES",
    "CanonicalSample",
    "canonical",
    "created",
    "identity_breaks",
    "parse_engine",
    "resets",
    "source_counters",
    "sources",
    "totals",
]

Labels = tuple[tuple[str, str], ...]
SOURCES = ("device", "host", "disk", "computed")


class CanonicalSample(NamedTuple):
    """One value; `labels` sorted by name."""

    name: str
    labels: Labels
    value: float


@dataclass(frozen=True)
class Mapping:
    """How one family of the engine becomes a canonical metric."""

    family: str
    name: str
    where: tuple[str, str] | None = None
    """Only samples with this label."""
    without: tuple[str, str] | None = None
    """No samples with this label."""
    keep: tuple[tuple[str, str], ...] = ()
    """Labels that are kept, as (the engine's name, the canonical name); the others are summed over."""
    replaced_by: str | None = None
    """A family of newer releases that says the same; where it is there, this one is ignored."""


_TIER = ("tier", "0:primary")  # vLLM counts its host tier among the tiers; the others stand behind it
_REASON = (("reason", "reason"),)
_OFFLOAD = "vllm:kv_offload_"
MAPPINGS = (
    Mapping("vllm:prompt_tokens", "prompt_tokens"),
    Mapping("vllm:generation_tokens", "generation_tokens"),
    Mapping("vllm:prompt_tokens_cached", "cached_tokens"),
    Mapping("vllm:prefix_cache_queries", "prefix_cache_queries"),
    Mapping("vllm:prefix_cache_hits", "prefix_cache_hits"),
    Mapping("vllm:external_prefix_cache_queries", "tier_cache_queries"),
    Mapping("vllm:external_prefix_cache_hits", "tier_cache_hits"),
    Mapping("vllm:num_requests_running", "requests_running"),
    Mapping("vllm:num_requests_waiting", "requests_waiting"),
    Mapping("vllm:request_success", "requests_finished", keep=(("finished_reason", "reason"),)),
    Mapping("vllm:admission_rejections", "requests_refused", keep=_REASON),
    Mapping("vllm:num_preemptions", "preemptions"),
    Mapping("vllm:kv_cache_usage_perc", "kv_cache_usage"),
    Mapping(_OFFLOAD + "store_bytes", "host_store_bytes"),
    Mapping(_OFFLOAD + "store_time", "host_store_seconds"),
    Mapping(_OFFLOAD + "load_bytes", "host_load_bytes"),
    Mapping(_OFFLOAD + "load_time", "host_load_seconds"),
    # The only names before about 0.24; newer releases expose both.
    *(
        Mapping(
            f"{_OFFLOAD}total_{old}",
            f"host_{verb}_{unit}",
            where=("transfer_type", transfer),
            replaced_by=f"{_OFFLOAD}{verb}_{old}",
        )
        for verb, transfer in (("load", "CPU_to_GPU"), ("store", "GPU_to_CPU"))
        for old, unit in (("bytes", "bytes"), ("time", "seconds"))
    ),
    Mapping(_OFFLOAD + "allocation_failure", "host_store_drops"),
    Mapping(_OFFLOAD + "stores_skipped", "host_store_skips"),
    Mapping(_OFFLOAD + "tiering_read_bytes", "disk_read_bytes", without=_TIER),
    Mapping(_OFFLOAD + "tiering_read_time", "disk_read_seconds", without=_TIER),
    Mapping(_OFFLOAD + "tiering_write_bytes", "disk_write_bytes", without=_TIER),
    Mapping(_OFFLOAD + "tiering_write_time", "disk_write_seconds", without=_TIER),
    Mapping(_OFFLOAD + "tiering_chunk_queries", "disk_chunk_queries", without=_TIER),
    Mapping(_OFFLOAD + "tiering_chunk_hits", "disk_chunk_hits", without=_TIER),
    Mapping(_OFFLOAD + "tiering_promotion_job_failures", "promotion_failures"),
    Mapping(_OFFLOAD + "tiering_promotion_allocation_failures", "promotion_drops"),
    Mapping(_OFFLOAD + "tiering_cascade_job_failures", "cascade_failures"),
    Mapping(_OFFLOAD + "tiering_backpressure_stores_dropped", "store_drops"),
    Mapping("vllm:time_to_first_token_seconds", "engine_ttft"),
    Mapping("vllm:inter_token_latency_seconds", "engine_itl"),
    Mapping("vllm:e2e_request_latency_seconds", "engine_e2e"),
    Mapping("vllm:request_queue_time_seconds", "engine_queue_time"),
    Mapping("vllm:request_prefill_time_seconds", "engine_prefill_time"),
    Mapping(_OFFLOAD + "lookup_async_delay_seconds", "host_lookup_time"),
)
_BY_SOURCE = "vllm:prompt_tokens_by_source"  # since about 0.16: computed, device, any tier
_CACHED_BY_SOURCE = "vllm:prompt_tokens_cached_by_source"  # since 0.32: the tiers apart
_CREATED = "vllm:prompt_tokens_created"
# A connector that keeps its tiers to itself: what it serves counts as `external_unspecified`.
_SILENT_CONNECTOR = "vllm:lmcache_mp_lookup_duration_seconds"

FAMILIES = frozenset({_BY_SOURCE, _CACHED_BY_SOURCE, _CREATED, _SILENT_CONNECTOR} | {m.family for m in MAPPINGS})
"""Every family that anything here looks at."""


def parse_engine(text: str, *, buckets: bool = True) -> Exposition:
    """The families that have a canonical name. ValueError when `text` is no exposition."""
    return parse(text, FAMILIES, buckets=buckets)


def canonical(exposition: Exposition) -> list[CanonicalSample]:
    """Every canonical sample, sorted by name and labels."""
    merged: dict[tuple[str, Labels], float] = {}
    for name, labels, value in _mapped(exposition):
        known = ENGINE_METRICS.get(name)
        if known is not None and known.unit == "fraction":
            merged[name, labels] = max(value, merged.get((name, labels), value))
        else:
            merged[name, labels] = merged.get((name, labels), 0.0) + value
    for source, tokens in source_counters(exposition).items():
        merged["prompt_tokens_by_source", (("source", source),)] = tokens
    return [CanonicalSample(name, labels, value) for (name, labels), value in sorted(merged.items())]


def _mapped(exposition: Exposition) -> Iterator[CanonicalSample]:
    for mapping in MAPPINGS:
        if mapping.family not in exposition or (mapping.replaced_by or "") in exposition:
            continue
        samples = [sample for sample in exposition[mapping.family] if _chosen(mapping, sample)]
        if not samples and ENGINE_METRICS[mapping.name].kind == "counter" and not mapping.keep:
            yield CanonicalSample(mapping.name, (), 0.0)  # declared, and nothing has happened yet
        for sample in samples:
            yield CanonicalSample(*_named(mapping, sample), sample.value)


def _chosen(mapping: Mapping, sample: Sample) -> bool:
    for rule, wanted in ((mapping.where, True), (mapping.without, False)):
        if rule is not None and (sample.labels.get(rule[0]) == rule[1]) is not wanted:
            return False
    return True


def _named(mapping: Mapping, sample: Sample) -> tuple[str, Labels]:
    labels = [(new, sample.labels[old]) for old, new in mapping.keep if old in sample.labels]
    if ENGINE_METRICS[mapping.name].kind == "histogram":
        part = sample.name.removeprefix(mapping.family)
        labels += [("le", sample.labels["le"])] if "le" in sample.labels else []
        return mapping.name + part, tuple(labels)
    return mapping.name, tuple(sorted(labels))


def totals(exposition: Exposition) -> dict[str, float]:
    """Canonical counters and gauges by name, summed over what labels they keep; no histograms."""
    found: dict[str, float] = {}
    for name, _, value in canonical(exposition):
        if name in ENGINE_METRICS:
            found[name] = found.get(name, 0.0) + value
    return found


def created(exposition: Exposition) -> float | None:
    """When the engine's counters were created, Unix seconds; another value is another process. None: not told."""
    return exposition.total(_CREATED)


def source_counters(exposition: Exposition) -> dict[str, float]:
    """Prompt tokens so far by source; a source that the server cannot tell is left out.

    `elsewhere` is a peer, or any tier of a server that does not tell its tiers apart: then host and disk are
    unknown.
    """
    if _BY_SOURCE not in exposition:
        return {}
    by_source = {kind: exposition.total(_BY_SOURCE, source=kind) or 0.0 for kind in _VLLM_KINDS}
    counters = {"computed": by_source["local_compute"], "device": by_source["local_cache_hit"]}
    if _CACHED_BY_SOURCE not in exposition:
        return {**counters, "elsewhere": by_source["external_kv_transfer"]}
    cached = {tier: exposition.total(_CACHED_BY_SOURCE, source=tier) or 0.0 for tier in ("device", "host", "disk")}
    everything = exposition.total(_CACHED_BY_SOURCE) or 0.0
    elsewhere = everything - sum(cached.values())
    if exposition.total(_CACHED_BY_SOURCE, source="external_unspecified") or _SILENT_CONNECTOR in exposition:
        del cached["host"], cached["disk"]
        elsewhere = everything - cached["device"]
    return {**counters, **cached, "elsewhere": elsewhere}


_VLLM_KINDS = ("local_compute", "local_cache_hit", "external_kv_transfer")


def sources(before: Exposition, after: Exposition) -> dict[str, float | None]:
    """Prompt tokens by source between two scrapes; None where the server cannot tell or was reset between them."""
    first, last = source_counters(before), source_counters(after)
    return {source: _increase(first.get(source), last.get(source)) for source in SOURCES}


def _increase(first: float | None, last: float | None) -> float | None:
    return None if first is None or last is None or last < first else last - first


def resets(before: Exposition, after: Exposition) -> tuple[str, ...]:
    """Canonical counters that fell, and `process` when the counters were created anew: the engine restarted."""
    first = {(s.name, s.labels): s.value for s in canonical(before)}
    fell = {
        name
        for name, labels, value in canonical(after)
        if _is_counter(name) and value < first.get((name, labels), value)
    }
    since = [created(exposition) for exposition in (before, after)]
    anew = None not in since and since[0] != since[1]
    return (*sorted(fell), *(["process"] if anew else []))


def _is_counter(name: str) -> bool:
    known = ENGINE_METRICS.get(name)
    return known is None or known.kind == "counter"  # a histogram's parts only grow, too


def identity_breaks(exposition: Exposition) -> tuple[str, ...]:
    """Sentences: sums that a correct engine keeps, and this one does not. For a server without requests under way.

    vLLM's own identities: the sources of prompt tokens add up to the prompt tokens; what was cached is what the
    device cache and the tiers hit.
    """
    value = exposition.total
    checks: Iterable[tuple[str, float | None, str, list[float | None]]] = (
        ("prompt tokens", value("vllm:prompt_tokens"), "their sources", [value(_BY_SOURCE)]),
        (
            "cached prompt tokens",
            value("vllm:prompt_tokens_cached"),
            "device and tier sources",
            [value(_BY_SOURCE, source=kind) for kind in ("local_cache_hit", "external_kv_transfer")],
        ),
        (
            "cached tokens by source",
            value(_CACHED_BY_SOURCE),
            "hits of the device cache and of the tiers",
            [value("vllm:prefix_cache_hits"), value("vllm:external_prefix_cache_hits")],
        ),
    )
    return tuple(
        f"{what} are {whole:.0f}, but {other} add up to {added:.0f}"
        for what, whole, other, parts in checks
        if whole is not None and (added := _sum(parts)) is not None and whole != added
    )


def _sum(parts: list[float | None]) -> float | None:
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None
