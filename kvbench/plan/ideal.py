"""What a trace is, and what an unlimited cache would make of it: counts, ideal hits, reuse times.

Keys and definitions are those of the trace library's reference numbers: hits are leading blocks that an earlier
request had; a partial last block counts by the tail rule.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvbench.plan.references import References, leading, ratio, references
from kvbench.plan.spread import percentiles
from kvbench.workload.traces.trace import Floats, Trace, Whole

__all__ = ["basic", "ideal", "ideal_hits", "last_use_s", "reuse_time_s"]

TIME_DECIMALS = 6
"""Differences of times are rounded to a microsecond: below that they are rounding errors of the file's decimals."""


def basic(trace: Trace, refs: References) -> dict[str, float | int | bool | None]:
    """Counts. `refs` are those of the tail rule `keep`."""
    uses = np.bincount(refs.blocks) if len(refs.blocks) else np.empty(0, np.int64)
    unique, once = len(uses), int(np.sum(uses == 1))
    top = np.sort(uses)[::-1][: max(1, unique // 100)]
    return {
        "requests": len(trace),
        "total_refs": len(refs.blocks),
        "unique_blocks": unique,
        "input_tokens": int(trace.input_tokens.sum()),
        "output_tokens": int(trace.output_tokens.sum()),
        "duration_s": trace.duration_s,
        "one_time_use_blocks": once,
        "one_time_use_share_of_unique": ratio(once, unique),
        "one_time_use_share_of_refs": ratio(once, len(refs.blocks)),
        "ideal_ref_hit_rate": None if not len(refs.blocks) else 1.0 - unique / len(refs.blocks),
        "ids_prefix_chained": trace.is_chained(),
        "requests_with_duplicate_ids": _with_duplicates(refs),
        "max_blocks_per_request": int(refs.counts.max(initial=0)),
        "top_1pct_blocks_share_of_refs": ratio(int(top.sum()), len(refs.blocks)),
    }


def _with_duplicates(refs: References) -> int:
    order = np.lexsort((refs.blocks, refs.requests))
    blocks, requests = refs.blocks[order], refs.requests[order]
    twice = (blocks[1:] == blocks[:-1]) & (requests[1:] == requests[:-1])
    return len(np.unique(requests[1:][twice]))


def ideal_hits(refs: References) -> NDArray[np.bool_]:
    """Which references an unlimited cache serves."""
    if not len(refs.blocks):
        return np.zeros(0, bool)
    first = np.full(int(refs.blocks.max()) + 1, len(refs.times_s), np.int64)
    np.minimum.at(first, refs.blocks, refs.requests)
    return leading(refs, first[refs.blocks] < refs.requests)


def ideal(trace: Trace) -> dict[str, dict[str, float | int | None]]:
    """An unlimited cache under each tail rule."""
    return {tail: _ideal(references(trace, tail)) for tail in ("keep", "drop", "vllm")}


def _ideal(refs: References) -> dict[str, float | int | None]:
    hits = ideal_hits(refs)
    per_request = np.bincount(refs.requests[hits], minlength=len(refs.times_s))
    counts = refs.counts
    named = counts > 0
    rates = per_request[named] / counts[named]
    hit_blocks, hit_tokens = int(hits.sum()), int(refs.tokens[hits].sum())
    return {
        "hit_blocks": hit_blocks,
        "total_blocks": len(refs.blocks),
        "block_hit_rate": ratio(hit_blocks, len(refs.blocks)),
        "hit_tokens": hit_tokens,
        "total_tokens": refs.total_tokens,
        "token_hit_rate": ratio(hit_tokens, refs.total_tokens),
        "mean_of_per_request_hit_rates": float(np.mean(rates)) if len(rates) else None,
        "requests_with_hit": int(np.sum(per_request > 0)),
        "requests_fully_hit": int(np.sum(named & (per_request == counts))),
    }


def last_use_s(refs: References) -> Floats:
    """Seconds since an earlier request last used the block, for every reference; infinite when none did."""
    pairs, place = _pairs(refs)
    blocks, requests = refs.blocks[pairs], refs.requests[pairs]
    again = np.concatenate(([False], blocks[1:] == blocks[:-1])) if len(pairs) else np.zeros(0, bool)
    since = np.full(len(pairs), np.inf)
    later = np.flatnonzero(again)
    since[later] = refs.times_s[requests[later]] - refs.times_s[requests[later - 1]]
    return np.round(since, TIME_DECIMALS)[place]


def reuse_time_s(refs: References) -> dict[str, float | int]:
    """Seconds between requests that use the same block one after the other; once per request and block."""
    pairs, place = _pairs(refs)
    since = np.empty(len(pairs))
    since[place] = last_use_s(refs)
    return percentiles(since[np.isfinite(since)])


def _pairs(refs: References) -> tuple[Whole, Whole]:
    """One reference of every (block, request), by block and then request, and which of them each reference is."""
    if not len(refs.blocks):
        return refs.blocks, refs.blocks
    keys = refs.blocks * len(refs.times_s) + refs.requests
    _, first, place = np.unique(keys, return_index=True, return_inverse=True)
    return first, place.reshape(-1)
