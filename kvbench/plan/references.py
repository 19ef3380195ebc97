"""The references of a trace: one block in one request is one reference. Blocks and tokens; times in seconds.

Which references count, and which of them can hit, is the tail rule: `keep`, `drop` or `vllm`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kvbench.workload.traces.trace import Floats, Trace, Whole

__all__ = ["References", "Tail", "leading", "ratio", "references", "running_maximum"]

Tail = Literal["keep", "drop", "vllm"]
"""`keep`: every listed id counts. `drop`: a partial last block is left out. `vllm`: as `drop`, and at least the
last token of a prompt is computed, so that at most (L - 1) // block leading blocks can hit.
"""


@dataclass(frozen=True)
class References:
    """`m` references of `n` requests, front to back, request after request."""

    blocks: Whole
    """Which block, numbered from 0; m values."""
    requests: Whole
    """Whose reference it is; m values, ascending."""
    positions: Whole
    """How many references of the same request stand before it; m values."""
    tokens: Whole
    """How many tokens of its request it stands for; m values."""
    can_hit: NDArray[np.bool_]
    """m values."""
    offsets: Whole
    """Request i has the references `offsets[i]` to `offsets[i + 1]`; n + 1 values."""
    times_s: Floats
    input_tokens: Whole

    @property
    def total_tokens(self) -> int:
        """Input tokens of all requests, those outside any reference included."""
        return int(self.input_tokens.sum())

    @property
    def counts(self) -> Whole:
        """References of each request."""
        return np.diff(self.offsets)


def references(trace: Trace, tail: Tail = "keep") -> References:
    """The references of a trace with block identity. Block i stands for max(0, min(size, L - i * size)) tokens."""
    size = trace.block_tokens or 1
    counts = np.diff(trace.offsets)
    requests = np.repeat(np.arange(len(trace)), counts)
    positions = np.arange(len(trace.blocks)) - np.repeat(trace.offsets[:-1], counts)
    left = trace.input_tokens[requests] - positions * size
    tokens = np.clip(left, 0, size)
    kept = np.ones(len(tokens), bool) if tail == "keep" else tokens == size
    can_hit = left > size if tail == "vllm" else np.ones(len(tokens), bool)
    kept_counts = np.bincount(requests[kept], minlength=len(trace))
    return References(
        blocks=trace.blocks[kept],
        requests=requests[kept],
        positions=positions[kept],
        tokens=tokens[kept],
        can_hit=can_hit[kept],
        offsets=np.concatenate(([0], np.cumsum(kept_counts))),
        times_s=trace.times_s,
        input_tokens=trace.input_tokens,
    )


def leading(refs: References, present: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which references hit: present, allowed to, and so are all before them in their request."""
    missing = np.cumsum(~(present & refs.can_hit))
    before = np.concatenate(([0], missing))[refs.offsets[:-1]]
    hits: NDArray[np.bool_] = missing == before[refs.requests]
    return hits


def running_maximum(requests: Whole, values: Whole) -> Whole:
    """The largest value so far within each request; values from 0 to below 2**40, `requests` ascending."""
    return np.maximum.accumulate((requests << 40) | values) & ((1 << 40) - 1)


def ratio(part: int | float, whole: int | float) -> float | None:
    """A share; None of nothing."""
    return float(part) / float(whole) if whole else None
