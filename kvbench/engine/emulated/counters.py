"""What the emulated engine counts about itself, and the same in canonical names. Tokens, bytes, seconds."""

from __future__ import annotations

from array import array
from bisect import bisect_left

import numpy as np

from kvbench.engine.emulated.request import Request

__all__ = ["Counters", "Histogram", "canonical_series"]

FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    *(160.0, 640.0, 2560.0),
)
GAP_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0),
    *(960.0, 1920.0, 7680.0),
)
"""Upper edges of vLLM's buckets."""

_UNSORTED_AT_MOST = 1000

REASONS = ("stop", "length", "abort", "error", "repetition")
REFUSALS = ("max_num_queued_reqs", "max_num_queued_tokens")


class Histogram:
    """Sum, count, and how many were at most each edge."""

    __slots__ = ("_buckets", "_unsorted", "count", "edges", "sum")

    def __init__(self, edges: tuple[float, ...]) -> None:
        self.edges = edges
        self._buckets = [0] * (len(edges) + 1)
        self._unsorted: list[array[float]] = []
        """Rising times whose gaps are counted and not in their buckets yet."""
        self.sum = 0.0
        self.count = 0

    def observe(self, value: float) -> None:
        """One value."""
        self.sum += value
        self.count += 1
        self._buckets[bisect_left(self.edges, value)] += 1

    def observe_gaps(self, times: array[float]) -> None:
        """Every gap between these times, which must not change any more."""
        if len(times) < 2:
            return
        self.sum += times[-1] - times[0]
        self.count += len(times) - 1
        self._unsorted.append(times)
        if len(self._unsorted) >= _UNSORTED_AT_MOST:
            self._sort()

    def _sort(self) -> None:
        if not self._unsorted:
            return
        gaps = np.concatenate([np.diff(np.frombuffer(times)) for times in self._unsorted])
        self._unsorted = []
        found = np.bincount(np.searchsorted(self.edges, gaps, side="left"), minlength=len(self._buckets))
        self._buckets = [have + int(more) for have, more in zip(self._buckets, found, strict=True)]

    @property
    def buckets(self) -> list[int]:
        """How many lie in each, the last being above every edge."""
        self._sort()
        return self._buckets


class Counters:
    """Grow from a start of the engine on; a new object is a restart."""

    def __init__(self) -> None:
        self.prompt_tokens = self.generation_tokens = 0
        self.computed_tokens = self.device_tokens = self.external_tokens = 0
        """Of prefilled requests."""
        self.admitted_device = self.admitted_host = self.admitted_disk = 0
        """At admission."""
        self.prefix_queries = self.external_queries = 0
        self.preemptions = 0
        self.finished = dict.fromkeys(REASONS, 0)
        self.store_bytes = self.load_bytes = 0
        self.store_s = self.load_s = 0.0
        self.store_jobs = self.load_jobs = 0
        self.allocation_failures = self.stores_skipped = 0
        self.read_bytes = self.write_bytes = 0
        self.read_s = self.write_s = 0.0
        self.chunk_queries = self.chunk_hits = 0
        self.promotion_drops = 0
        self.ttft = Histogram(FIRST_TOKEN_S)
        self.itl = Histogram(GAP_S)
        self.e2e = Histogram(REQUEST_S)
        self.queue = Histogram(REQUEST_S)
        self.prefill = Histogram(REQUEST_S)
        self.lookup = Histogram(FIRST_TOKEN_S)
        # The moment's values:
        self.running = self.waiting = 0
        self.usage = 0.0

    def admitted(self, request: Request) -> None:
        """A request has its place; a preempted one was counted before."""
        self.prefix_queries += request.total_tokens
        self.admitted_device += request.device_tokens
        self.external_queries += request.total_tokens - request.device_tokens
        self.admitted_host += request.host_tokens
        self.admitted_disk += request.disk_tokens

    def prefilled(self, request: Request, now_s: float, miscount: float) -> None:
        """The first token is there."""
        self.prompt_tokens += request.prompt_tokens
        self.device_tokens += request.device_tokens
        self.external_tokens += request.host_tokens + request.disk_tokens
        computed = request.prompt_tokens - request.cached_tokens
        self.computed_tokens += computed + int(miscount * request.prompt_tokens)
        self.ttft.observe(now_s - request.arrived_s)
        self.queue.observe(request.scheduled_s - request.arrived_s)
        self.prefill.observe(now_s - request.scheduled_s)

    def over(self, request: Request, now_s: float) -> None:
        """A request has ended."""
        self.finished[request.finish_reason or "abort"] += 1
        self.e2e.observe(now_s - request.arrived_s)
        self.itl.observe_gaps(request.times)


def canonical_series(
    counters: Counters, *, host: bool, disk: bool
) -> list[tuple[str, tuple[tuple[str, str], ...], float]]:
    """(canonical name, labels, value), as a scrape of the same counters would give; buckets left out."""
    c = counters
    plain: dict[str, float] = {
        "prompt_tokens": c.prompt_tokens,
        "generation_tokens": c.generation_tokens,
        "cached_tokens": c.device_tokens + c.external_tokens,
        "prefix_cache_queries": c.prefix_queries,
        "prefix_cache_hits": c.admitted_device,
        "tier_cache_queries": c.external_queries if host else 0,
        "tier_cache_hits": c.admitted_host + c.admitted_disk,
        "requests_running": c.running,
        "requests_waiting": c.waiting,
        "preemptions": c.preemptions,
        "kv_cache_usage": c.usage,
    }
    histograms = {
        "engine_ttft": c.ttft,
        "engine_itl": c.itl,
        "engine_e2e": c.e2e,
        "engine_queue_time": c.queue,
        "engine_prefill_time": c.prefill,
    }
    if host:
        plain |= {
            "host_store_bytes": c.store_bytes,
            "host_store_seconds": c.store_s,
            "host_load_bytes": c.load_bytes,
            "host_load_seconds": c.load_s,
            "host_store_drops": c.allocation_failures,
        }
        histograms["host_lookup_time"] = c.lookup
    if disk:
        plain |= {
            "disk_read_bytes": c.read_bytes,
            "disk_read_seconds": c.read_s,
            "disk_write_bytes": c.write_bytes,
            "disk_write_seconds": c.write_s,
            "disk_chunk_queries": c.chunk_queries,
            "disk_chunk_hits": c.chunk_hits,
            "promotion_failures": 0,
            "promotion_drops": c.promotion_drops,
            "cascade_failures": 0,
            "store_drops": 0,
        }
    sources = {
        "computed": c.computed_tokens,
        "device": c.admitted_device,
        "host": c.admitted_host,
        "disk": c.admitted_disk,
        "elsewhere": 0,
    }
    series: list[tuple[str, tuple[tuple[str, str], ...], float]]
    series = [(name, (), float(value)) for name, value in plain.items()]
    for name, histogram in histograms.items():
        series += [(f"{name}_sum", (), histogram.sum), (f"{name}_count", (), float(histogram.count))]
    series += [("requests_finished", (("reason", reason),), float(n)) for reason, n in c.finished.items()]
    series += [("requests_refused", (("reason", reason),), 0.0) for reason in REFUSALS]
    series += [("prompt_tokens_by_source", (("source", name),), float(n)) for name, n in sources.items()]
    return series
