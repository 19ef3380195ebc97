"""What a server exposes, in canonical names (`kvbench.spec.engine_metrics` has kind, unit and meaning of each).

One table for vLLM, TensorRT-LLM and LMCache. Series of several engine ranks are one: counters and counts are
summed, shares and delays are those of the rank that has most. What a server does not expose, or exposes as no
number, is absent and never zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from kvbench.observe.continuity import resets
from kvbench.observe.exposition import Exposition, parse
from kvbench.observe.identities import identity_breaks
from kvbench.observe.mapping import CanonicalSample, Labels, Mapping
from kvbench.observe.metric_table import BY_FAMILY, FAMILIES, MAPPINGS
from kvbench.observe.token_sources import SOURCES, source_counters, sources
from kvbench.spec.engine_metrics import ENGINE_METRICS

__all__ = [
    "FAMILIES",
    "MAPPINGS",
    "SOURCES",
    "CanonicalSample",
    "canonical",
    "identity_breaks",
    "parse_engine",
    "resets",
    "source_counters",
    "sources",
    "summed",
    "totals",
]

_NO_SUMS = ("fraction", "s/MiB")
"""Units of which several engines or tiers have no sum: the largest counts."""


def parse_engine(text: str, *, buckets: bool = True) -> Exposition:
    """The families that have a canonical name."""
    return parse(text, FAMILIES, buckets=buckets)


def canonical(exposition: Exposition) -> list[CanonicalSample]:
    """Every canonical sample, sorted by name and labels."""
    merged: dict[tuple[str, Labels], float] = {}
    for mapping in (mapping for family in exposition.families for mapping in BY_FAMILY.get(family, ())):
        if not mapping.applies(exposition):
            continue
        together = _largest if mapping.metric.unit in _NO_SUMS else _add
        for name, labels, value in _mapped(mapping, exposition):
            before = merged.get((name, labels))
            merged[name, labels] = value if before is None else together(before, value)
    for source, tokens in source_counters(exposition).items():
        merged["prompt_tokens_by_source", (("source", source),)] = tokens
    return [
        CanonicalSample(name, labels, value)
        for (name, labels), value in sorted(merged.items())
        if math.isfinite(value) and (value >= 0 or _may_be_negative(name))
    ]


def _mapped(mapping: Mapping, exposition: Exposition) -> Iterator[CanonicalSample]:
    samples = exposition[mapping.family]
    chosen = [sample for sample in samples if mapping.chosen(sample)]
    for sample in chosen:
        yield CanonicalSample(*mapping.named(sample), sample.value)
    if not chosen and (not samples or mapping.metric.kind != "gauge"):
        # Children of a family come with their first event. A gauge has them from the start; where only others are
        # there, this release tells something else.
        for name, labels in mapping.zeros():
            yield CanonicalSample(name, labels, 0.0)


def _largest(one: float, other: float) -> float:
    return one if one >= other or math.isnan(one) else other  # no number stays none


def _add(one: float, other: float) -> float:
    return one + other


def _may_be_negative(name: str) -> bool:
    known = ENGINE_METRICS.get(name)
    return known is not None and known.kind == "gauge"


def totals(exposition: Exposition) -> dict[str, float]:
    """Canonical counters and gauges by name, summed over what labels they keep; no histograms."""
    return summed(canonical(exposition))


def summed(samples: Iterable[CanonicalSample]) -> dict[str, float]:
    """Counters and gauges among samples of one moment by name, summed over their labels."""
    found: dict[str, float] = {}
    for name, _, value in samples:
        if name in ENGINE_METRICS:
            found[name] = found.get(name, 0.0) + value
    return found
