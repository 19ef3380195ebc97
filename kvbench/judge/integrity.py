"""Identities that a sound round satisfies: token sources add up, and nothing happens before its cause.

Where a request failed, what the engine counted for it is not known; one whose user left is counted by both.
"""

from __future__ import annotations

import json

import numpy as np

from kvbench.judge import wording
from kvbench.judge.evidence import ArmRound
from kvbench.judge.latency import numbers
from kvbench.judge.sources import BY_SOURCE
from kvbench.spec.engine_metrics import IDENTITY_GAP

__all__ = ["clock_faults", "identity_faults", "source_faults"]

TOLERANCE = 0.005
"""Relative: what identities may be off. They are exact on an engine at rest (facts on vLLM's metrics); this leaves
room for tokens counted at admission on one side and after prefill on the other."""
CLOCK_STEP_S = 1.0
"""Time services slew a clock by at most 0.5 ms a second, and the two clocks of a sample are read within
milliseconds; engines take the wall clock for some of their own figures (vLLM: when a request arrived)."""
CLOCK_TOLERANCE_S = 1e-3
"""Times of one request come from one clock; kernel and user-space stamps agree within this."""


def source_faults(recorded: ArmRound) -> list[str]:
    """Where tokens by source do not add up, from the first scrape to the last, when no request failed."""
    table, counters = recorded.requests, recorded.counters
    span = counters.span(BY_SOURCE)
    if span is None or not len(table) or (table["status"] == "error").any():
        return []
    first_s, last_s = span
    began, ended = numbers(table, "sent_s"), numbers(table, "ended_s")
    if np.isnan(began).all() or np.nanmin(began) < first_s or np.nanmax(np.append(ended, -np.inf)) > last_s:
        return []
    faults = []
    total, together = counters.increase("prompt_tokens"), counters.increase(BY_SOURCE)
    if total is not None and together is not None and _apart(together, total):
        faults.append(f"sources together {together:,.0f} tokens, prompts {total:,.0f}")
    answered = table["status"].isin(["ok", "aborted"]).to_numpy(dtype=bool)
    for name, counter, column in (
        ("prompt tokens", total, "prompt_tokens_engine"),
        ("cached tokens", counters.increase("cached_tokens"), "cached_tokens"),
    ):
        told = numbers(table, column)[answered]
        if counter is not None and len(told) and not np.isnan(told).any() and _apart(counter, float(told.sum())):
            faults.append(f"{name}: the counter says {counter:,.0f}, the answers say {told.sum():,.0f}")
    return faults


def identity_faults(recorded: ArmRound) -> list[str]:
    """Sums of the engine's own counters that are missed in a scrape while no request is under way."""
    rows = recorded.metrics
    rows = rows[(rows["name"] == IDENTITY_GAP) & (rows["value"].abs() > TOLERANCE)].sort_values("t_s")
    first: dict[str, str] = {}
    for labels, value, t_s in zip(rows["labels"], rows["value"], rows["t_s"], strict=True):
        told = json.loads(labels)
        if told.get("at") == "rest":
            what = f"the engine's own sum of {told['identity']} is off by {wording.share(abs(value))}"
            first.setdefault(told["identity"], f"{what} at {wording.value(t_s, 's')}")
    return list(first.values())


def _apart(one: float, other: float) -> bool:
    return abs(one - other) > TOLERANCE * max(one, other)


def clock_faults(recorded: ArmRound) -> list[str]:
    """Requests that were answered before they were sent, or whose tokens go back in time; clocks that were set, or
    that stood still while the machine slept."""
    table = recorded.requests
    sent, first, last = (numbers(table, name) for name in ("sent_s", "first_token_s", "last_token_s"))
    early = int(np.sum(first < sent - CLOCK_TOLERANCE_S))
    backwards = int(np.sum(last < first - CLOCK_TOLERANCE_S))
    faults = []
    if early:
        faults.append(f"{wording.count(early, 'answer')} came before the request was sent")
    if backwards:
        faults.append(f"{wording.count(backwards, 'answer')} ended before it began")
    faults += _jumps(recorded, "clock_wall_s", "the wall clock was set by {}")
    return faults + _jumps(recorded, "clock_suspended_s", "the machine slept for {}")


def _jumps(recorded: ArmRound, name: str, words: str) -> list[str]:
    """Where a clock's distance to the monotonic one changed from one sample of the host to the next."""
    if name not in recorded.host_samples:
        return []
    times, values = recorded.host_samples[name]
    steps = np.diff(values)
    return [
        f"{words.format(wording.value(float(steps[place]), 's'))} at {wording.value(float(times[place + 1]), 's')}"
        for place in np.flatnonzero(np.abs(steps) > CLOCK_STEP_S)
    ]
