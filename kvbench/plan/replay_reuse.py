"""Whether a replay has the reuse of its trace, by the arithmetic of `analysis` at the trace's own block size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kvbench.errors import InputError, Where
from kvbench.plan.ideal import ideal_hits
from kvbench.plan.lru import hit_sizes
from kvbench.plan.references import References, references
from kvbench.workload.schedule import Segment
from kvbench.workload.traces.trace import Trace, Whole

__all__ = ["ReplayReuse", "check_reuse", "segment_references"]


@dataclass(frozen=True)
class ReplayReuse:
    """Whole blocks of the trace's own size; hits are leading ones."""

    block_tokens: int
    total_blocks: int
    ideal_hit_blocks: int
    lru_hit_blocks: dict[str, int]
    """By tier: a cache of that tier's capacity alone."""


def check_reuse(
    trace: Trace, prompts: Sequence[tuple[Segment, ...]], capacities_tokens: Mapping[str, int]
) -> ReplayReuse:
    """The reuse of the prompts, which is that of the trace; `trace` has completed id lists, `prompts` are unscaled.

    InputError when they differ: the replay would test something else than what was recorded.
    """
    size = trace.block_tokens or 1
    told = _reuse(references(trace, "drop"), size, capacities_tokens)
    made = _reuse(segment_references(trace, prompts), size, capacities_tokens)
    if told != made:
        raise InputError(
            f"the schedule of this trace would not have its reuse: {_shown(made)} instead of {_shown(told)}",
            where=Where(trace.path),
            do="this is a fault of kvbench or a damaged trace: please report it with the trace",
        )
    return made


def _shown(reuse: ReplayReuse) -> str:
    return f"{reuse.ideal_hit_blocks} of {reuse.total_blocks} blocks again (by tier: {reuse.lru_hit_blocks})"


def _reuse(refs: References, size: int, capacities_tokens: Mapping[str, int]) -> ReplayReuse:
    sizes = hit_sizes(refs) if capacities_tokens else np.empty(0, np.int64)
    return ReplayReuse(
        block_tokens=size,
        total_blocks=len(refs.blocks),
        ideal_hit_blocks=int(ideal_hits(refs).sum()),
        lru_hit_blocks={tier: int(np.sum(sizes < tokens // size)) for tier, tokens in capacities_tokens.items()},
    )


def segment_references(trace: Trace, prompts: Sequence[tuple[Segment, ...]]) -> References:
    """The whole blocks of prompts that were made of segments: a block is a segment's identity and a place in it."""
    size = trace.block_tokens or 1
    longest: dict[int, int] = {}
    for prompt in prompts:
        for segment in prompt:
            longest[segment.identity] = max(longest.get(segment.identity, 0), segment.tokens // size)
    ends = np.cumsum(list(longest.values()), dtype=np.int64)
    first = dict(zip(longest, [0, *ends[:-1].tolist()], strict=True)) if len(ends) else {}
    parts: list[Whole] = []
    counts: list[int] = []
    for prompt in prompts:
        whole = [(first[segment.identity], segment.tokens // size) for segment in prompt]
        parts += [np.arange(start, start + blocks) for start, blocks in whole]
        counts.append(sum(blocks for _, blocks in whole))
    offsets = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
    requests = np.repeat(np.arange(len(prompts)), counts)
    blocks = np.concatenate(parts) if parts else np.empty(0, np.int64)
    return References(
        blocks=blocks,
        requests=requests,
        positions=np.arange(len(blocks)) - offsets[:-1][requests],
        tokens=np.full(len(blocks), size, np.int64),
        can_hit=np.ones(len(blocks), bool),
        offsets=offsets,
        times_s=trace.times_s,
        input_tokens=trace.input_tokens,
    )
