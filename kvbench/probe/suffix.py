"""What a request takes that computes more than a few tokens behind a cached prefix. Seconds, tokens."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvbench.probe.sender import Sender

__all__ = ["SUFFIXES", "Behind", "record_suffixes"]

SUFFIXES = (64, 256)
"""A question behind a document, and a longer one. Attention goes back over the whole prefix for either."""
TIMES = 8
LIMIT_S = 15.0
"""After so long no further request is sent."""


@dataclass(frozen=True)
class Behind:
    """TTFT of so many computed tokens behind a prefix that lay on the device."""

    prefix_tokens: int
    suffix_tokens: int
    n: int
    ttft_s: float
    """The median."""


def record_suffixes(sender: Sender, lengths: Sequence[int], first_number: int) -> list[Behind]:
    """At the shortest length and at the one before the longest; suffixes are new every time."""
    prefixes = sorted({lengths[0], lengths[-2]}) if len(lengths) > 2 else list(lengths)
    found: dict[tuple[int, int], list[float]] = {}
    until = time.monotonic() + LIMIT_S
    for number, prefix in enumerate(prefixes, first_number):
        sender.probe(number, prefix)
        for again in range(TIMES):
            for place, suffix in enumerate(SUFFIXES):
                if time.monotonic() > until:
                    break
                answer = sender.probe(number, prefix, suffix, 2 + again * len(SUFFIXES) + place)
                if answer.cached_tokens in (None, prefix):
                    found.setdefault((prefix, suffix), []).append(answer.ttft_s)
    return [Behind(*key, len(values), float(np.median(values))) for key, values in found.items()]
