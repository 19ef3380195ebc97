"""What the prompts of a trace are made of: equal ids become equal content, different ones differ. In tokens.

Ids that always follow each other are one segment, so that a prompt of ten thousand blocks is a handful of segments;
every id stands at one place of one segment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kvbench.workload.schedule import Segment
from kvbench.workload.traces.completion import coarser, completed
from kvbench.workload.traces.trace import Trace, Whole

__all__ = ["Scaled", "Tail", "contents", "scaled"]

Tail = Literal["keep", "drop"]
"""`keep`: a partial last block is played, as its id says where it has one. `drop`: prompts are whole blocks."""


@dataclass(frozen=True)
class Scaled:
    """A trace whose blocks are to be played with another number of tokens."""

    trace: Trace
    """With completed id lists; where blocks were taken together, with the coarser ones."""
    played_block_tokens: int

    def rest_tokens(self, rest: int) -> int:
        """What is left after the last whole block, scaled; it never fills a block."""
        size = self.trace.block_tokens or 1
        return min(round(rest * self.played_block_tokens / size), max(self.played_block_tokens - 1, 0))


def scaled(trace: Trace, scale: float) -> Scaled:
    """Blocks of max(1, round(scale × block)) tokens; below one token a block, neighbours are taken together."""
    size = trace.block_tokens or 1
    factor = max(1, round(1.0 / (scale * size)))
    whole = coarser(completed(trace), factor)
    return Scaled(whole, max(1, round(scale * size * factor)))


def contents(
    played: Scaled, *, identity: Callable[[int], int], own: Callable[[int], int], tail: Tail
) -> Iterator[tuple[Segment, ...]]:
    """The segments of every request, in order; at least one token.

    `identity` names the content that begins with a block id, `own` that of the part of a request that no id names.
    """
    trace, size = played.trace, played.played_block_tokens
    runs = _runs(trace)
    names: dict[int, int] = {}
    for index in range(len(trace)):
        ids = trace.ids(index)
        whole, rest = divmod(int(trace.input_tokens[index]), trace.block_tokens or 1)
        rest_tokens = played.rest_tokens(rest) if tail == "keep" else 0
        named_rest = len(ids) > whole
        tokens = whole * size + (rest_tokens if named_rest else 0)
        segments = list(_segments(ids, runs, size, tokens, identity, names))
        if rest_tokens and not named_rest:
            segments.append(Segment(own(index), rest_tokens))
        yield tuple(segments) or (Segment(own(index), 1),)


def _segments(
    ids: Whole,
    begins: NDArray[np.bool_],
    size: int,
    tokens: int,
    identity: Callable[[int], int],
    names: dict[int, int],
) -> Iterator[Segment]:
    """`tokens` tokens of the blocks `ids`, each run of ids one segment."""
    starts = np.flatnonzero(begins[ids]).tolist() if len(ids) else []
    for start, end in zip(starts, [*starts, len(ids)][1:], strict=True):
        length = min(end * size, tokens) - start * size
        if length > 0:
            first = int(ids[start])
            name = names[first] if first in names else names.setdefault(first, identity(first))
            yield Segment(name, length)


def _runs(trace: Trace) -> NDArray[np.bool_]:
    """Which ids begin a segment: the first of a prompt, and whatever does not always follow the same id alone."""
    count = int(trace.blocks.max(initial=-1)) + 1
    if not trace.is_chained():
        return np.ones(count, bool)
    before = np.full(count, -1, np.int64)
    first = trace.offsets[:-1][np.diff(trace.offsets) > 0]
    previous = np.concatenate(([-1], trace.blocks[:-1])) if len(trace.blocks) else trace.blocks
    previous[first] = -1
    before[trace.blocks] = previous
    present = np.zeros(count, bool)
    present[trace.blocks] = True
    followers = np.bincount(before[present & (before >= 0)], minlength=count)
    begins: NDArray[np.bool_] = (before < 0) | (followers[before] != 1)
    return begins
