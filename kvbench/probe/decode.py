"""How long a step of the engine takes while so many requests decode: the gaps between their tokens. Seconds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kvbench.probe.sender import Sender
from kvbench.probe.setting import Room

__all__ = ["Decode", "Pace", "paces_together", "record_decode"]

AT_ONCE = (1, 4)
"""Requests that decode together: a line through two numbers tells a step's own time from that of each request."""
TIMES = 4
OUTPUT_TOKENS = 48
"""Half a second on the embedded engine."""
LIMIT_S = 15.0
"""After so long it is not done again."""


@dataclass(frozen=True)
class Decode:
    """ITL while so many requests decode and nothing else is under way."""

    requests: int
    gaps: int
    itl_s: float
    """The median over answers of their mean gap: tokens that are read together do not make it smaller."""


class Pace(NamedTuple):
    """Of one answer while all are under way."""

    gaps: int
    mean_s: float


def record_decode(sender: Sender, room: Room, first_number: int) -> list[Decode]:
    """In turn, so that the machine's mood is the same for all; prompts are new ones of one block each."""
    output = min(OUTPUT_TOKENS, room.max_model_len - room.unit - 1)
    found: dict[int, list[Pace]] = {requests: [] for requests in AT_ONCE}
    number, until = first_number, time.monotonic() + LIMIT_S
    for again in range(TIMES):
        if again and time.monotonic() > until:
            break
        for requests in AT_ONCE:
            times = sender.decode(range(number, number + requests), room.unit, output)
            found[requests] += paces_together(times)
            number += requests
    return [
        Decode(requests, sum(pace.gaps for pace in paces), float(np.median([pace.mean_s for pace in paces])))
        for requests, paces in found.items()
        if paces
    ]


def paces_together(token_times_ns: Sequence[Sequence[int]]) -> list[Pace]:
    """Of every answer, from when all have a token until the first of them has its last."""
    if not all(len(times) > 1 for times in token_times_ns):
        return []
    begin, end = max(times[0] for times in token_times_ns), min(times[-1] for times in token_times_ns)
    inside = [[at for at in times if begin <= at <= end] for times in token_times_ns]
    return [
        Pace(len(times) - 1, (times[-1] - times[0]) / (len(times) - 1) / 1e9) for times in inside if len(times) > 1
    ]
