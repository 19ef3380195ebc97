"""The emulated engine's counters as vLLM 0.32 exposes them: names, labels, and families without a sample yet.

Kinds and spellings are those of captured expositions; a family that only some event fills is declared from the
start and has no sample before that event.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kvbench.engine.emulated.counters import REFUSALS, Counters, Histogram
from kvbench.engine.emulated.sizes import Sizes

__all__ = ["exposition"]

_FS = (("tier", "1:fs"),)
Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class _Family:
    name: str
    kind: str
    samples: tuple[tuple[Labels, float], ...] = ()
    histogram: Histogram | None = None
    lazy: bool = False
    """No sample while it is zero."""


def exposition(
    counters: Counters, sizes: Sizes, *, model: str, created_s: float, started_s: float | None = None
) -> str:
    """Prometheus text; `created_s` is the Unix time at which the counters began, `started_s` the process (None: at
    the same time)."""
    lines: list[str] = []
    common = (("engine", "0"), ("model_name", model))
    for family in _families(counters, sizes):
        suffix = "_total" if family.kind == "counter" else ""
        lines.append(f"# TYPE vllm:{family.name}{suffix} {family.kind}")
        if family.histogram is not None and (family.histogram.count or not family.lazy):
            lines += _histogram(family.name, common, family.histogram)
        for labels, value in family.samples:
            if value or not family.lazy:
                lines.append(f"vllm:{family.name}{suffix}{_text((*common, *labels))} {float(value)!r}")
    lines.append("# TYPE vllm:prompt_tokens_created gauge")
    lines.append(f"vllm:prompt_tokens_created{_text(common)} {created_s!r}")
    lines.append("# TYPE process_start_time_seconds gauge")
    lines.append(f"process_start_time_seconds {created_s if started_s is None else started_s!r}")
    return "\n".join(lines) + "\n"


def _text(labels: Labels) -> str:
    def escaped(value: str) -> str:
        return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in sorted(labels)) + "}"


def _histogram(name: str, labels: Labels, histogram: Histogram) -> Iterator[str]:
    below = 0
    for edge, count in zip((*histogram.edges, float("inf")), histogram.buckets, strict=True):
        below += count
        le = "+Inf" if edge == float("inf") else repr(edge)
        yield f"vllm:{name}_bucket{_text((*labels, ('le', le)))} {float(below)!r}"
    yield f"vllm:{name}_count{_text(labels)} {float(histogram.count)!r}"
    yield f"vllm:{name}_sum{_text(labels)} {histogram.sum!r}"


def _counter(name: str, value: float, labels: Labels = (), *, lazy: bool = False) -> _Family:
    return _Family(name, "counter", ((labels, value),), lazy=lazy)


def _by(name: str, label: str, values: Mapping[str, float]) -> _Family:
    return _Family(name, "counter", tuple((((label, key),), value) for key, value in values.items()))


def _families(c: Counters, sizes: Sizes) -> Iterator[_Family]:
    host = sizes.host_bytes > 0
    yield _Family("num_requests_running", "gauge", (((), c.running),))
    yield _Family("num_requests_waiting", "gauge", (((), c.waiting),))
    yield _Family("kv_cache_usage_perc", "gauge", (((), c.usage),))
    yield _counter("prefix_cache_queries", c.prefix_queries)
    yield _counter("prefix_cache_hits", c.admitted_device)
    yield _counter("external_prefix_cache_queries", c.external_queries if host else 0)
    yield _counter("external_prefix_cache_hits", c.admitted_host + c.admitted_disk)
    yield _counter("num_preemptions", c.preemptions)
    yield _counter("prompt_tokens", c.prompt_tokens)
    by_source = {
        "local_compute": c.computed_tokens,
        "local_cache_hit": c.device_tokens,
        "external_kv_transfer": c.external_tokens,
    }
    yield _by("prompt_tokens_by_source", "source", by_source)
    yield _counter("prompt_tokens_cached", c.device_tokens + c.external_tokens)
    cached = {"device": c.admitted_device, "host": c.admitted_host, "disk": c.admitted_disk}
    yield _by("prompt_tokens_cached_by_source", "source", {**cached, "p2p": 0, "external_unspecified": 0})
    yield _counter("generation_tokens", c.generation_tokens)
    yield _by("request_success", "finished_reason", c.finished)
    yield _by("admission_rejections", "reason", dict.fromkeys(REFUSALS, 0.0))
    for name, histogram in (
        ("time_to_first_token_seconds", c.ttft),
        ("inter_token_latency_seconds", c.itl),
        ("e2e_request_latency_seconds", c.e2e),
        ("request_queue_time_seconds", c.queue),
        ("request_prefill_time_seconds", c.prefill),
    ):
        yield _Family(name, "histogram", histogram=histogram)
    yield _Family("cache_config_info", "gauge", ((_configuration(sizes), 1.0),))
    if host:
        yield from _host_families(c, sizes)
    if sizes.disk:
        yield from _disk_families(c)


def _configuration(sizes: Sizes) -> Labels:
    return (
        ("block_size", str(sizes.block_tokens)),
        ("cache_dtype", "auto"),
        ("enable_prefix_caching", "True"),
        ("num_gpu_blocks", str(sizes.device_blocks)),
    )


def _host_families(c: Counters, sizes: Sizes) -> Iterator[_Family]:
    prefix = "kv_offload_"
    yield _counter(prefix + "store_bytes", c.store_bytes, lazy=True)
    yield _counter(prefix + "store_time", c.store_s, lazy=True)
    yield _counter(prefix + "load_bytes", c.load_bytes, lazy=True)
    yield _counter(prefix + "load_time", c.load_s, lazy=True)
    yield _counter(prefix + "allocation_failure", c.allocation_failures, lazy=True)
    yield _Family(prefix + "lookup_async_delay_seconds", "histogram", histogram=c.lookup, lazy=True)
    if sizes.store_threshold >= 2:
        yield _counter(prefix + "stores_skipped", c.stores_skipped, lazy=True)


def _disk_families(c: Counters) -> Iterator[_Family]:
    prefix = "kv_offload_tiering_"
    for name, value in (
        ("read_bytes", c.read_bytes),
        ("read_time", c.read_s),
        ("write_bytes", c.write_bytes),
        ("write_time", c.write_s),
        ("chunk_queries", c.chunk_queries),
        ("chunk_hits", c.chunk_hits),
        ("promotion_job_failures", 0),
        ("cascade_job_failures", 0),
        ("backpressure_stores_dropped", 0),
    ):
        yield _counter(prefix + name, value, _FS, lazy=True)
    yield _counter(prefix + "promotion_allocation_failures", c.promotion_drops, lazy=True)
