"""Blocks that always come together, taken together: the nodes of the tree of all prompts of a trace. In blocks.

Where ids stand for everything before them, a prompt of a thousand blocks is a handful of runs, and what is counted
per run is counted for each of its blocks. A run is taken whole by every request that takes any of it; no run spans
the edge between blocks that count, or can hit, under one tail rule and blocks that do not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kvbench.plan.references import Tail
from kvbench.workload.traces.trace import Trace, Whole

__all__ = ["Runs", "runs_of"]


@dataclass(frozen=True)
class Runs:
    """`R` references to runs by `n` requests, front to back, request after request."""

    chained: bool
    """False: ids do not stand for what comes before them, so that every block is a run of its own."""
    block_tokens: int
    runs: Whole
    """Which run, numbered from 0; R values."""
    requests: Whole
    """R values, ascending."""
    starts: Whole
    """Which of the trace's block references begins it; R values."""
    sizes: Whole
    """Blocks in it; R values, equal for equal runs."""
    positions: Whole
    """Blocks of the same request before it; R values."""
    offsets: Whole
    """Request i has the references `offsets[i]` to `offsets[i + 1]`; n + 1 values."""
    whole: NDArray[np.bool_]
    """Whether its blocks lie wholly inside the prompt; R values."""
    can_hit: NDArray[np.bool_]
    """Whether an engine may serve them from a cache: they are whole, and the last token is after them."""
    tokens: Whole
    """Tokens of the request that it stands for; R values."""
    order: Whole
    """References by run and, for equal runs, by request; R values."""
    count: int
    """Different runs."""

    def under(self, tail: Tail) -> Runs:
        """The references that count under a tail rule, and which of them can hit."""
        if tail == "keep":
            return replace(self, can_hit=np.ones(len(self.runs), bool))
        kept = self.whole
        before = np.concatenate(([0], np.cumsum(kept)))
        order = self.order[kept[self.order]]
        return replace(
            self,
            runs=self.runs[kept],
            requests=self.requests[kept],
            starts=self.starts[kept],
            sizes=self.sizes[kept],
            positions=self.positions[kept],
            offsets=before[self.offsets],
            whole=self.whole[kept],
            can_hit=self.can_hit[kept] if tail == "vllm" else np.ones(int(before[-1]), bool),
            tokens=self.tokens[kept],
            order=before[order],
        )

    @property
    def blocks(self) -> int:
        """References to single blocks."""
        return int(self.sizes.sum())

    def per_run(self, values: Whole) -> Whole:
        """Sums over all references of each run; `count` values."""
        summed = np.bincount(self.runs, weights=values.astype(np.float64), minlength=self.count)
        return np.rint(summed).astype(np.int64)

    def run_sizes(self) -> Whole:
        """Blocks of each run; `count` values."""
        sizes = np.zeros(self.count, np.int64)
        sizes[self.runs] = self.sizes
        return sizes

    def leading(self, present: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which references hit: present, and so are all before them in their request."""
        missing = np.cumsum(~present)
        before = np.concatenate(([0], missing))[self.offsets[:-1]]
        hits: NDArray[np.bool_] = missing == before[self.requests]
        return hits

    @cached_property
    def earlier(self) -> Whole:
        """How many earlier requests had the run, all of it inside their prompt; R values."""
        order, group, heads = self._by_run_and_request()
        if not len(order):
            return order
        whole = np.maximum.reduceat(self.whole[order].astype(np.int64), heads)
        before = np.cumsum(whole) - whole
        first = self._first_of_run(order[heads])
        counted = before - before[np.maximum.accumulate(np.where(first, np.arange(len(heads)), 0))]
        earlier = np.empty(len(order), np.int64)
        earlier[order] = counted[group]
        return earlier

    @cached_property
    def last_request(self) -> Whole:
        """The latest earlier request with the same run, or -1; R values."""
        order, group, heads = self._by_run_and_request()
        if not len(order):
            return order
        requests = self.requests[order[heads]]
        before = np.where(self._first_of_run(order[heads]), -1, np.concatenate(([-1], requests[:-1])))
        previous = np.empty(len(order), np.int64)
        previous[order] = before[group]
        return previous

    def _by_run_and_request(self) -> tuple[Whole, Whole, Whole]:
        """(References by run and then request, the group of each, where groups begin).

        A request that has a run twice, which only ids without chains can say, is one group.
        """
        order = self.order
        runs, requests = self.runs[order], self.requests[order]
        begins = np.ones(len(order), bool)
        begins[1:] = (runs[1:] != runs[:-1]) | (requests[1:] != requests[:-1])
        return order, np.cumsum(begins) - 1, np.flatnonzero(begins)

    def _first_of_run(self, heads: Whole) -> NDArray[np.bool_]:
        """Which of these references, sorted by run, are the first of theirs."""
        runs = self.runs[heads]
        first = np.ones(len(runs), bool)
        first[1:] = runs[1:] != runs[:-1]
        return first


def runs_of(trace: Trace) -> Runs:
    """The runs of a trace with block identity."""
    size = trace.block_tokens or 1
    blocks, offsets = trace.blocks, trace.offsets
    counts = np.diff(offsets)
    chained, begins = _beginnings(trace, counts)
    starts = np.flatnonzero(begins[blocks]) if chained else np.arange(len(blocks))
    requests = np.searchsorted(offsets, starts, side="right") - 1
    positions = starts - offsets[requests]
    sizes = np.diff(np.append(starts, len(blocks)))
    number = np.cumsum(begins) - 1 if chained else np.arange(int(blocks.max(initial=-1)) + 1)
    left = trace.input_tokens[requests] - positions * size
    runs = number[blocks[starts]]
    return Runs(
        chained=chained,
        block_tokens=size,
        runs=runs,
        requests=requests,
        starts=starts,
        sizes=sizes,
        positions=positions,
        offsets=np.searchsorted(starts, offsets),
        whole=left >= sizes * size,
        can_hit=left > sizes * size,
        tokens=np.clip(left, 0, sizes * size),
        order=np.argsort(runs, kind="stable"),
        count=int(number[-1]) + 1 if len(number) else 0,
    )


def _beginnings(trace: Trace, counts: Whole) -> tuple[bool, NDArray[np.bool_]]:
    """Whether ids are chained, and which of them begin a run: those that some request has without the id before.

    A block follows another in one run when nothing else ever follows that one, no request ends there, and neither
    the whole blocks of a prompt nor those that can hit end there.
    """
    size = trace.block_tokens or 1
    blocks, offsets = trace.blocks, trace.offsets
    unique = int(blocks.max(initial=-1)) + 1
    named = counts > 0
    previous = np.empty(len(blocks), np.int64)
    previous[1:] = blocks[:-1]
    previous[offsets[:-1][named]] = -1
    before = np.full(unique, -1, np.int64)
    before[blocks] = previous
    if not np.array_equal(before[blocks], previous):
        return False, np.ones(unique, bool)
    followers = np.bincount(before[before >= 0], minlength=unique)
    followers[blocks[offsets[1:][named] - 1]] += 2  # whatever follows the end of a prompt begins a run
    begins = (before < 0) | (followers[before] != 1)
    for end in (trace.input_tokens // size, np.maximum(trace.input_tokens - 1, 0) // size):
        inside = end < counts
        begins[blocks[offsets[:-1][inside] + end[inside]]] = True
    return True, begins
