"""One set of figures from those of all workers: sums of what was counted, the worst of everything else. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from kvbench.load.messages import Progress

__all__ = ["merge_figures", "merge_progress"]

_WORST_IS_LEAST = frozenset({"real_time_scheduling", "gc_disabled"})
_COUNTS = frozenset(
    {
        "requests",
        "failed",
        "connections_opened",
        "resent_on_stale_connection",
        "clock_steps",
        "client_cpu_s",
        "client_cpu_cores",
        "events",
        "multi_token_events",
        "uncounted_outputs",
        "substituted_turns",
    }
)


def merge_figures(workers: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """`load.json` of a round with several workers. A figure that a worker could not measure is left to the others;
    quantiles and shares are those of the worst worker, so the whole is never worse than it says."""
    names = list(dict.fromkeys(name for figures in workers for name in figures))
    merged = {name: _merged(name, [figures.get(name) for figures in workers]) for name in names}
    cpu_s, events = merged.get("client_cpu_s"), merged.get("events")
    if "client_cpu_ms_per_1000_events" in merged:
        merged["client_cpu_ms_per_1000_events"] = cpu_s * 1e6 / events if cpu_s is not None and events else None
    return merged | {"workers": float(len(workers))}


def _merged(name: str, values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    if name in _COUNTS:
        return sum(known)
    return min(known) if name in _WORST_IS_LEAST else max(known)


def merge_progress(reports: Sequence[Progress], t_s: float) -> dict[str, object]:
    """A `progress` event. Its TTFT is the median of the workers' medians: something to look at, not to judge by."""
    statuses = [report.refused_with for report in reports if report.refused_with is not None]
    medians = [report.ttft_p50_s for report in reports if report.ttft_p50_s is not None]
    return {
        "event": "progress",
        "t_s": t_s,
        "sent": sum(report.sent for report in reports),
        "done": sum(report.done for report in reports),
        "failed": sum(report.failed for report in reports),
        "running": sum(report.running for report in reports),
        "tokens": sum(report.tokens for report in reports),
        "ttft_p50_s": statistics.median(medians) if medians else None,
        "refused": sum(report.refused for report in reports),
        "refused_with": statuses[0] if statuses else None,
        "served": sum(report.served for report in reports),
    }
