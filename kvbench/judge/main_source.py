"""The one source that a request counts for where latencies are told by source. Tokens."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvbench.judge.columns import Floats
from kvbench.judge.sources import SOURCES

__all__ = ["MOSTLY", "main_source"]

MOSTLY = 0.5
"""Share of a prompt that must be cached for its request to count as served from a cache."""


def main_source(tokens: Floats, prompt: Floats) -> npt.NDArray[np.str_]:
    """Of each request: the tier that served most of it when half of its prompt was cached, else `computed`.

    `tokens` has a row a request and a column a source; both in tokens.
    """
    cached = tokens[:, : SOURCES.index("computed")]
    largest = np.array(SOURCES)[np.argmax(cached, axis=1)] if len(tokens) else np.empty(0, "<U8")
    return np.where(cached.sum(axis=1) >= MOSTLY * np.maximum(prompt, 1), largest, "computed")
