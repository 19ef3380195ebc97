"""The block size of a trace whose file does not name it, from the lengths of requests and of their id lists."""

from __future__ import annotations

import numpy as np

from kvbench.workload.traces.trace import Whole

__all__ = ["AGREEING", "agreeing_share", "infer_block_tokens"]

_LARGEST = 65_536
AGREEING = 0.95
"""Share of requests that must fit; public traces have a handful of records that fit no rule."""


def infer_block_tokens(input_tokens: Whole, counts: Whole) -> int | None:
    """The size at which lists have one id per block of the input, a partial last block named or not.

    `counts` are the lengths of the id lists. A power of two is preferred, since engines use nothing else; None when
    no size fits nearly all requests, or when several other sizes do.
    """
    named = counts > 0
    lengths, counts = input_tokens[named], counts[named]
    if not len(lengths):
        return None
    powers = [2**power for power in range(_LARGEST.bit_length()) if _fits(2**power, lengths, counts)]
    if powers:
        return powers[0] if len(powers) == 1 else None
    # Every request leaves L / (n + 1) < size < L / (n - 1); what all leave is searched one by one.
    low = int(np.max(lengths // (counts + 1))) + 1
    several = counts > 1
    high = int(np.min(-(-lengths[several] // (counts[several] - 1)))) if several.any() else low
    sizes = [size for size in range(low, min(high, low + 1000) + 1) if _fits(size, lengths, counts)]
    return sizes[0] if len(sizes) == 1 else None


def _fits(size: int, lengths: Whole, counts: Whole) -> bool:
    return agreeing_share(size, lengths, counts) >= AGREEING


def agreeing_share(size: int, input_tokens: Whole, counts: Whole) -> float:
    """Of requests with ids, how many have one per block of this size, a partial last block named or not."""
    named = counts > 0
    lengths, counts = input_tokens[named], counts[named]
    agreeing = (counts == lengths // size) | (counts == -(-lengths // size))
    return float(np.mean(agreeing)) if len(agreeing) else 1.0
