"""How bursty arrivals are: counts and prompt tokens per window, gaps. Seconds."""

from __future__ import annotations

import numpy as np

from kvbench.plan.references import ratio
from kvbench.workload.traces.trace import Trace

__all__ = ["burstiness"]

WINDOWS_S = (1, 10, 60)
_BATCHED = 0.1
"""From this share of equal times on, a trace's clock is taken to be coarser than its arrivals."""


def burstiness(trace: Trace) -> dict[str, object]:
    """Dispersion is variance over mean of counts: 1 for Poisson arrivals, above it for bursts.

    Where many requests share a time, the file's clock is coarse (or it holds batches): gaps say nothing then, and
    windows below its step are left out.
    """
    gaps = np.diff(trace.times_s)
    steps = gaps[gaps > 0]
    equal = float(np.mean(gaps == 0)) if len(gaps) else 0.0
    step_s = float(np.median(steps)) if len(steps) else None
    batched = equal >= _BATCHED
    smallest = step_s if batched and step_s is not None else 0.0
    mean_gap = float(gaps.mean()) if len(gaps) else 0.0
    return {
        "requests_per_s": len(gaps) / trace.duration_s if trace.duration_s else None,
        "equal_times_share": equal,
        "time_step_s": step_s,
        "gap_cv": None if batched or not mean_gap else float(gaps.std() / mean_gap),
        "windows": [
            window for length in WINDOWS_S if length >= smallest and (window := _window(trace, float(length)))
        ],
    }


def _window(trace: Trace, length_s: float) -> dict[str, float | int | None] | None:
    """Of whole windows only; None when there are fewer than two. Empty ones count, and take no memory."""
    count = int(trace.duration_s // length_s)
    if count < 2:
        return None
    inside = trace.times_s < count * length_s
    index = (trace.times_s[inside] // length_s).astype(np.int64)
    prompts = trace.input_tokens[inside].astype(np.float64)
    _, place, requests = np.unique(index, return_inverse=True, return_counts=True)
    tokens = np.bincount(place, weights=prompts)
    mean = len(index) / count
    squares = float(np.sum((requests - mean) ** 2)) + (count - len(requests)) * mean**2
    return {
        "window_s": length_s,
        "mean_requests": mean,
        "peak_requests": int(requests.max()),
        "peak_over_mean": float(requests.max()) / mean,
        "dispersion": squares / (count - 1) / mean,
        "peak_over_mean_prompt_tokens": ratio(float(tokens.max()), float(prompts.sum()) / count),
    }
