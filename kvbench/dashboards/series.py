"""Names of the series that dashboards and rules ask for: the engine's as `kvbench.observe.canonical` knows them.

Hosts are told by node_exporter, GPUs by NVIDIA's dcgm-exporter; the gate's own are `kvbench_gate_*`.
"""

from __future__ import annotations

from kvbench.observe.canonical import MAPPINGS

__all__ = ["BY_SOURCE", "CACHED_BY_SOURCE", "bucket", "count", "counter", "family", "gauge"]

BY_SOURCE = "vllm:prompt_tokens_by_source_total"
CACHED_BY_SOURCE = "vllm:prompt_tokens_cached_by_source_total"
"""The two that the canonical `prompt_tokens_by_source` is made of: computed from the first, all else from this."""


def family(name: str) -> str:
    """The engine's newest family behind a canonical name. KeyError when there is none."""
    for mapping in MAPPINGS:
        if mapping.name == name and mapping.family.startswith("vllm:") and mapping.replaced_by is None:
            return mapping.family
    raise KeyError(name)


def counter(name: str) -> str:
    """A counter as Prometheus stores it."""
    return f"{family(name)}_total"


def gauge(name: str) -> str:
    """A gauge as Prometheus stores it."""
    return family(name)


def bucket(name: str) -> str:
    """The buckets of a histogram."""
    return f"{family(name)}_bucket"


def count(name: str) -> str:
    """How many values a histogram holds."""
    return f"{family(name)}_count"
