"""Identities that a sound round satisfies: token sources add up, and nothing happens before its cause.

What the engine counted for a request that failed is between nothing and its whole prompt; one whose user left is
counted by both.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from kvbench.judge import wording
from kvbench.judge.columns import numbers
from kvbench.judge.evidence import ArmRound
from kvbench.judge.sources import BY_SOURCE
from kvbench.spec.engine_metrics import IDENTITY_GAP

__all__ = ["clock_faults", "identity_faults", "source_faults", "sources_checked"]

TOLERANCE = 0.005
"""Relative: what identities may be off. They are exact on an engine at rest (facts on vLLM's metrics); this leaves
room for tokens counted at admission on one side and after prefill on the other."""
TORN_IN_A_ROW = 3
"""Scrapes under load. One may fall between two counts of the same event: of 178 scrapes of the embedded engine
under load one did. Three in a row by chance come once in some 1,500 hours of load."""
CLOCK_STEP_S = 1.0
"""Time services slew a clock by at most 0.5 ms a second, and the two clocks of a sample are read within
milliseconds; engines take the wall clock for some of their own figures (vLLM: when a request arrived)."""
CLOCK_TOLERANCE_S = 1e-3
"""Times of one request come from one clock; kernel and user-space stamps agree within this."""


def source_faults(recorded: ArmRound) -> list[str]:
    """Where tokens by source do not add up, from the first scrape to the last."""
    return [fault for fault in _source_checks(recorded) if fault is not None]


def sources_checked(recorded: ArmRound) -> bool:
    """Whether the metrics of a round told anything that could be held against something else. Two counters that
    both stay at zero tell nothing."""
    return not _identity_rows(recorded).empty or bool(_source_checks(recorded))


def _source_checks(recorded: ArmRound) -> list[str | None]:
    """One entry for each sum that could be checked: None where it is kept."""
    table, counters = recorded.requests, recorded.counters
    span = counters.span(BY_SOURCE)
    if span is None or not len(table) or counters.lost():
        return []
    first_s, last_s = span
    began, ended = numbers(table, "sent_s"), numbers(table, "ended_s")
    if np.isnan(began).all() or np.nanmin(began) < first_s or np.nanmax(np.append(ended, -np.inf)) > last_s:
        return []
    checks: list[str | None] = []
    total, together = counters.increase("prompt_tokens"), counters.increase(BY_SOURCE)
    if total is not None and together is not None and (total or together):
        apart = _outside(together, total, total)
        checks.append(f"sources together {together:,.0f} tokens, prompts {total:,.0f}" if apart else None)
    answered = table["status"].isin(["ok", "aborted"]).to_numpy(dtype=bool)
    planned = numbers(table, "prompt_tokens_planned")[~answered & ~np.isnan(began)]
    failed = float(np.nan_to_num(planned.sum(), nan=np.inf))
    for name, counter, column in (
        ("prompt tokens", total, "prompt_tokens_engine"),
        ("cached tokens", counters.increase("cached_tokens"), "cached_tokens"),
    ):
        told = numbers(table, column)[answered]
        least = float(np.nansum(told))
        if counter is not None and not np.isnan(told).all() and (counter or least):
            unsaid = float(numbers(table, "prompt_tokens_planned")[answered][np.isnan(told)].sum())
            room = float(np.nan_to_num(failed + unsaid, nan=np.inf))
            apart = _outside(counter, least, least + room)
            who = "those that do not tell" if unsaid else "failed requests"
            more = f" and {who} at most {room:,.0f} more" if room else ""
            said = f"{name}: the counter says {counter:,.0f}, the answers say {least:,.0f}{more}"
            checks.append(said if apart else None)
    return checks


def identity_faults(recorded: ArmRound) -> list[str]:
    """Sums of the engine's own counters that are missed: in several scrapes in a row under load, or in one at rest
    that the next one does not refute.

    A page is put together family by family, the gauges of running requests first: it may say rest and yet hold
    counts from before and after a step. What such a page misses is there in the next.
    """
    rows = _identity_rows(recorded).sort_values("t_s", kind="stable")
    scrapes: dict[str, list[_Told]] = {}
    for labels, value, t_s in zip(rows["labels"], rows["value"], rows["t_s"], strict=True):
        told = json.loads(labels)
        scrapes.setdefault(told["identity"], []).append(_Told(told.get("at") == "rest", value, t_s))
    faults = {identity: _missed(each) for identity, each in scrapes.items()}
    return [
        f"the engine's own sum of {identity} is off by {wording.share(abs(first.value))} at "
        f"{wording.value(first.t_s, 's')}"
        for identity, first in faults.items()
        if first is not None
    ]


class _Told(NamedTuple):
    """What one scrape says of a sum."""

    at_rest: bool
    value: float
    t_s: float


def _missed(scrapes: Sequence[_Told]) -> _Told | None:
    """The first of those in a row that miss a sum for certain."""
    in_a_row: list[_Told] = []
    for told in scrapes:
        if abs(told.value) <= TOLERANCE:
            in_a_row = []
            continue
        confirms = any(before.at_rest for before in in_a_row)
        in_a_row.append(told)
        if confirms or len(in_a_row) >= TORN_IN_A_ROW:
            return in_a_row[0]
    return in_a_row[0] if any(told.at_rest for told in in_a_row) else None


def _identity_rows(recorded: ArmRound) -> pd.DataFrame:
    return recorded.metrics[recorded.metrics["name"] == IDENTITY_GAP]


def _outside(value: float, least: float, most: float) -> bool:
    return value < least - TOLERANCE * max(value, least) or value > most + TOLERANCE * max(value, most)


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
