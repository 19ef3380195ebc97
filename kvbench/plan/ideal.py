"""What a trace is, and what an unlimited cache would make of it: counts, ideal hits, reuse times.

Keys and definitions are those of the trace library's reference numbers: hits are leading blocks that an earlier
request had; a partial last block counts by the tail rule.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvbench.plan.references import References, leading, ratio
from kvbench.plan.runs import Runs
from kvbench.plan.spread import percentiles
from kvbench.workload.traces.trace import Floats, Trace, Whole

__all__ = ["basic", "ideal", "ideal_hits", "reuse_time_s", "since_last_use_s"]

TIME_DECIMALS = 6
"""Differences of times are rounded to a microsecond: below that they are rounding errors of the file's decimals."""


def basic(trace: Trace, runs: Runs) -> dict[str, float | int | bool | None]:
    """Counts. `runs` are all of the trace."""
    uses, sizes = np.bincount(runs.runs, minlength=runs.count), runs.run_sizes()
    used = uses > 0
    uses, sizes = uses[used], sizes[used]
    unique, once, total = int(sizes.sum()), int(sizes[uses == 1].sum()), runs.blocks
    return {
        "requests": len(trace),
        "total_refs": total,
        "unique_blocks": unique,
        "input_tokens": int(trace.input_tokens.sum()),
        "output_tokens": int(trace.output_tokens.sum()),
        "duration_s": trace.duration_s,
        "one_time_use_blocks": once,
        "one_time_use_share_of_unique": ratio(once, unique),
        "one_time_use_share_of_refs": ratio(once, total),
        "ideal_ref_hit_rate": None if not total else 1.0 - unique / total,
        "ids_prefix_chained": runs.chained,
        "requests_with_duplicate_ids": 0 if runs.chained else _with_duplicates(runs),
        "max_blocks_per_request": int(np.diff(trace.offsets).max(initial=0)),
        "top_1pct_blocks_share_of_refs": ratio(_most_used(uses, sizes, max(1, unique // 100)), total),
    }


def _most_used(uses: Whole, sizes: Whole, blocks: int) -> int:
    """References to so many blocks, the most used ones."""
    order = np.argsort(-uses, kind="stable")
    before = np.concatenate(([0], np.cumsum(sizes[order])[:-1])) if len(order) else order
    taken = np.clip(blocks - before, 0, sizes[order])
    return int((taken * uses[order]).sum())


def _with_duplicates(runs: Runs) -> int:
    order = np.lexsort((runs.runs, runs.requests))
    blocks, requests = runs.runs[order], runs.requests[order]
    twice = (blocks[1:] == blocks[:-1]) & (requests[1:] == requests[:-1])
    return len(np.unique(requests[1:][twice]))


def ideal_hits(refs: References) -> NDArray[np.bool_]:
    """Which references an unlimited cache serves."""
    if not len(refs.blocks):
        return np.zeros(0, bool)
    first = np.full(int(refs.blocks.max()) + 1, len(refs.times_s), np.int64)
    np.minimum.at(first, refs.blocks, refs.requests)
    return leading(refs, first[refs.blocks] < refs.requests)


def ideal(trace: Trace, keep: Runs, vllm: Runs) -> dict[str, dict[str, float | int | None]]:
    """An unlimited cache under each tail rule, from the references under two of them."""
    return {
        "keep": _ideal(trace, keep, keep.last_request >= 0),
        "drop": _ideal(trace, vllm, vllm.last_request >= 0),  # the same references, all of which can hit
        "vllm": _ideal(trace, vllm, (vllm.last_request >= 0) & vllm.can_hit),
    }


def _ideal(trace: Trace, runs: Runs, present: NDArray[np.bool_]) -> dict[str, float | int | None]:
    hits = runs.leading(present)
    count = len(trace)
    per_request = np.bincount(runs.requests[hits], weights=runs.sizes[hits], minlength=count).astype(np.int64)
    counts = np.bincount(runs.requests, weights=runs.sizes, minlength=count).astype(np.int64)
    named = counts > 0
    rates = per_request[named] / counts[named]
    hit_blocks, hit_tokens = int(runs.sizes[hits].sum()), int(runs.tokens[hits].sum())
    total_tokens = int(trace.input_tokens.sum())
    return {
        "hit_blocks": hit_blocks,
        "total_blocks": runs.blocks,
        "block_hit_rate": ratio(hit_blocks, runs.blocks),
        "hit_tokens": hit_tokens,
        "total_tokens": total_tokens,
        "token_hit_rate": ratio(hit_tokens, total_tokens),
        "mean_of_per_request_hit_rates": float(np.mean(rates)) if len(rates) else None,
        "requests_with_hit": int(np.sum(per_request > 0)),
        "requests_fully_hit": int(np.sum(named & (per_request == counts))),
    }


def since_last_use_s(trace: Trace, runs: Runs) -> Floats:
    """Seconds since an earlier request last used each run; infinite when none did."""
    last = runs.last_request
    since = trace.times_s[runs.requests] - trace.times_s[np.maximum(last, 0)]
    return np.where(last >= 0, np.round(since, TIME_DECIMALS), np.inf)


def reuse_time_s(trace: Trace, runs: Runs) -> dict[str, float | int]:
    """Seconds between requests that use the same block one after the other; once per request and block."""
    since = since_last_use_s(trace, runs)
    again = np.isfinite(since)
    if not runs.chained:  # a request may have a block twice
        pairs = runs.requests * (runs.count + 1) + runs.runs
        first = np.zeros(len(pairs), bool)
        first[np.unique(pairs, return_index=True)[1]] = True
        again &= first
    return percentiles(since[again], runs.sizes[again])
