"""One LRU cache of C blocks, for every C at once, and caches that forget by age. Blocks, tokens, seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from kvbench.plan.depths import Depths
from kvbench.plan.ideal import since_last_use_s
from kvbench.plan.references import References, ratio, running_maximum
from kvbench.plan.runs import Runs
from kvbench.plan.sizing import HitCurve
from kvbench.plan.spread import Rows, log2_histogram, percentiles
from kvbench.plan.stack import NEVER, arrival_depths
from kvbench.workload.traces.trace import Trace, Whole

__all__ = [
    "TTLS_S",
    "arrival_depth",
    "flat_stack_distance",
    "hit_curve",
    "hit_sizes",
    "lru_request_stream",
    "needed_sizes",
    "ttl",
    "usual_capacities",
]

TTLS_S = (1, 5, 10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 86400)
_SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Of all blocks of a trace; where hit curves bend lies anywhere between."""
_SMALLEST_POWER = 4

Figures = dict[str, float | int | None]


def usual_capacities(unique_blocks: int) -> tuple[int, ...]:
    """The capacities that are looked at unless others are asked for: shares of all blocks, and powers of two."""
    powers = (2**power for power in range(_SMALLEST_POWER, unique_blocks.bit_length()))
    shares = (int(unique_blocks * share) for share in _SHARES)
    return tuple(sorted({size for size in (*powers, *shares) if size > 0}))


def flat_stack_distance(runs: Runs, depths: Depths, capacities: Sequence[int]) -> dict[str, object]:
    """Every reference a touch of its own, front to back. An LRU of C hits exactly below distance C."""
    again = depths.flat < NEVER
    distances, counts = depths.flat[again], runs.sizes[again]
    order = np.argsort(distances, kind="stable")
    upto = np.concatenate(([0], np.cumsum(counts[order])))
    hits = upto[np.searchsorted(distances[order], capacities, side="left")]
    return {
        "log2_histogram": log2_histogram(distances, never=runs.blocks - int(upto[-1]), counts=counts),
        "percentiles": percentiles(distances, counts),
        "lru": [
            {"capacity_blocks": capacity, "hits": int(count), "hit_rate": ratio(int(count), runs.blocks)}
            for capacity, count in zip(capacities, hits, strict=True)
        ],
    }


def arrival_depth(runs: Runs, depths: Depths) -> dict[str, object]:
    """How deep in the stack a block lies when its request comes."""
    again = depths.arrival < NEVER
    each = Rows.of(depths.arrival[again], runs.sizes[again])
    told = each.percentiles()
    return {"log2_histogram": each.log2_histogram(never=runs.blocks - int(told["n"])), "percentiles": told}


def _each_block(first: Whole, sizes: Whole) -> Whole:
    """Values that rise by one within each run."""
    ends = np.cumsum(sizes)
    return np.repeat(first - (ends - sizes), sizes) + np.arange(int(ends[-1]) if len(ends) else 0)


def hit_sizes(refs: References) -> Whole:
    """An LRU must hold more blocks than this for a reference to hit, and with it all before it in its request."""
    needed = np.where(refs.can_hit, arrival_depths(refs.blocks, refs.requests), NEVER)
    return running_maximum(refs.requests, needed)


def needed_sizes(runs: Runs, depths: Depths) -> Whole:
    """The same of the first block of each run; every block behind it needs one more."""
    return running_maximum(runs.requests, np.where(runs.can_hit, depths.arrival, NEVER))


def hit_curve(runs: Runs, depths: Depths, total_tokens: int) -> HitCurve:
    """What an LRU of every size serves. Of `runs` under the tail rule `vllm`: all that can hit are whole."""
    needed = needed_sizes(runs, depths)
    hitting = needed < NEVER
    return HitCurve.of(needed[hitting], runs.sizes[hitting], runs.block_tokens, total_tokens)


def lru_request_stream(
    trace: Trace, keep: Runs, keep_depths: Depths, vllm: Runs, vllm_depths: Depths, capacities: Sequence[int]
) -> dict[str, object]:
    """The serving semantics: leading blocks hit, then the whole request is touched, last block first."""
    half = len(trace) // 2
    return {
        "keep_all": _points(trace, keep, keep_depths, capacities, 0),
        "keep_last_half": _points(trace, keep, keep_depths, capacities, half),
        "vllm_all": _points(trace, vllm, vllm_depths, capacities, 0),
    }


def _points(
    trace: Trace, runs: Runs, depths: Depths, capacities: Sequence[int], first_request: int
) -> Mapping[str, object]:
    start = int(runs.offsets[first_request])
    needed, sizes = needed_sizes(runs, depths)[start:], runs.sizes[start:]
    whole, tokens = runs.whole[start:], runs.tokens[start:]
    hitting = needed < NEVER
    curve = HitCurve.of(needed[hitting], sizes[hitting], 1, 1)
    full = HitCurve.of(needed[hitting & whole], sizes[hitting & whole], runs.block_tokens, 1)
    rest = _partial_tokens(needed, sizes, tokens, hitting & ~whole, runs.block_tokens)
    total_blocks, total_tokens = int(sizes.sum()), int(trace.input_tokens[first_request:].sum())
    points = []
    for capacity in capacities:
        blocks = curve.tokens_at(capacity)
        served = full.tokens_at(capacity) + int(rest[1][np.searchsorted(rest[0], capacity, side="left")])
        points.append(
            {
                "capacity_blocks": capacity,
                "hit_blocks": blocks,
                "block_hit_rate": ratio(blocks, total_blocks),
                "hit_tokens": served,
                "token_hit_rate": ratio(served, total_tokens),
            }
        )
    return {"total_blocks": total_blocks, "total_tokens": total_tokens, "points": points}


def _partial_tokens(
    needed: Whole, sizes: Whole, tokens: Whole, chosen: NDArray[np.bool_], block_tokens: int
) -> tuple[Whole, Whole]:
    """Of runs that a prompt ends in: (sorted sizes that each block needs, tokens served before each of them)."""
    each = _each_block(needed[chosen], sizes[chosen])
    place = each - np.repeat(needed[chosen], sizes[chosen])
    served = np.clip(np.repeat(tokens[chosen], sizes[chosen]) - place * block_tokens, 0, block_tokens)
    order = np.argsort(each, kind="stable")
    return each[order], np.concatenate(([0], np.cumsum(served[order])))


def ttl(trace: Trace, runs: Runs, ttls_s: Sequence[float] = TTLS_S) -> list[Figures]:
    """Without a limit of size, a block is there if it was used at most this long ago."""
    since = since_last_use_s(trace, runs)
    total_tokens, total_blocks = int(trace.input_tokens.sum()), runs.blocks
    found: list[Figures] = []
    for limit_s in ttls_s:
        hits = runs.leading((since <= limit_s) & runs.can_hit)
        found.append(
            {
                "ttl_s": limit_s,
                "block_hit_rate": ratio(int(runs.sizes[hits].sum()), total_blocks),
                "token_hit_rate": ratio(int(runs.tokens[hits].sum()), total_tokens),
            }
        )
    return found
