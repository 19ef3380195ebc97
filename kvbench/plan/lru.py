"""One LRU cache of C blocks, for every C at once, and caches that forget by age. Blocks, tokens, seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from kvbench.plan.ideal import last_use_s
from kvbench.plan.references import References, leading, ratio, references, running_maximum
from kvbench.plan.spread import log2_histogram, percentiles
from kvbench.plan.stack import NEVER, arrival_depths, stack_distances
from kvbench.workload.traces.trace import Trace, Whole

__all__ = [
    "TTLS_S",
    "arrival_depth",
    "flat_stack_distance",
    "hit_sizes",
    "lru_request_stream",
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


def flat_stack_distance(refs: References, capacities: Sequence[int]) -> dict[str, object]:
    """Every reference a touch of its own, front to back. An LRU of C hits exactly below distance C."""
    distances = stack_distances(refs.blocks)
    again = np.sort(distances[distances < NEVER])
    hits = np.searchsorted(again, capacities, side="left")
    return {
        "log2_histogram": log2_histogram(again, never=len(distances) - len(again)),
        "percentiles": percentiles(again),
        "lru": [
            {"capacity_blocks": capacity, "hits": int(count), "hit_rate": ratio(int(count), len(distances))}
            for capacity, count in zip(capacities, hits, strict=True)
        ],
    }


def arrival_depth(depths: Whole) -> dict[str, object]:
    """How deep in the stack a block lies when its request comes; `depths` are those of `arrival_depths`."""
    again = depths[depths < NEVER]
    return {
        "log2_histogram": log2_histogram(again, never=len(depths) - len(again)),
        "percentiles": percentiles(again),
    }


def hit_sizes(refs: References, depths: Whole | None = None) -> Whole:
    """An LRU must hold more blocks than this for a reference to hit, and with it all before it in its request."""
    needed = np.where(refs.can_hit, arrival_depths(refs) if depths is None else depths, NEVER)
    return running_maximum(refs, needed)


def lru_request_stream(trace: Trace, capacities: Sequence[int], depths: Whole | None = None) -> dict[str, object]:
    """The serving semantics: leading blocks hit, then the whole request is touched, last block first.

    `depths` are those of the tail rule `keep`, where they are known.
    """
    keep = references(trace, "keep")
    sizes = hit_sizes(keep, depths)
    vllm = references(trace, "vllm")
    return {
        "keep_all": _points(keep, sizes, capacities, 0),
        "keep_last_half": _points(keep, sizes, capacities, len(trace) // 2),
        "vllm_all": _points(vllm, hit_sizes(vllm), capacities, 0),
    }


def _points(refs: References, sizes: Whole, capacities: Sequence[int], first_request: int) -> Mapping[str, object]:
    start = int(refs.offsets[first_request])
    sizes, tokens = sizes[start:], refs.tokens[start:]
    order = np.argsort(sizes, kind="stable")
    tokens_up_to = np.concatenate(([0], np.cumsum(tokens[order])))
    hits = np.searchsorted(sizes[order], capacities, side="left")
    total_tokens = int(refs.input_tokens[first_request:].sum())
    points = [
        {
            "capacity_blocks": capacity,
            "hit_blocks": int(count),
            "block_hit_rate": ratio(int(count), len(sizes)),
            "hit_tokens": int(tokens_up_to[count]),
            "token_hit_rate": ratio(int(tokens_up_to[count]), total_tokens),
        }
        for capacity, count in zip(capacities, hits, strict=True)
    ]
    return {"total_blocks": len(sizes), "total_tokens": total_tokens, "points": points}


def ttl(refs: References, ttls_s: Sequence[float] = TTLS_S) -> list[Figures]:
    """Without a limit of size, a block is there if it was used at most this long ago."""
    since = last_use_s(refs)
    total_tokens = refs.total_tokens
    found: list[Figures] = []
    for limit_s in ttls_s:
        hits = leading(refs, since <= limit_s)
        found.append(
            {
                "ttl_s": limit_s,
                "block_hit_rate": ratio(int(hits.sum()), len(hits)),
                "token_hit_rate": ratio(int(refs.tokens[hits].sum()), total_tokens),
            }
        )
    return found
