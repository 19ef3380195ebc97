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
from kvbench.workload.traces.block_tree import BlockTree
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
    if trace.tree is not None:
        return _of_tree(trace, trace.tree)
    blocks, offsets = trace.blocks, trace.offsets
    counts = np.diff(offsets)
    chained, begins = _beginnings(trace, counts)
    starts = np.flatnonzero(begins[blocks]) if chained else np.arange(len(blocks))
    requests = np.searchsorted(offsets, starts, side="right") - 1
    number = np.cumsum(begins) - 1 if chained else np.arange(int(blocks.max(initial=-1)) + 1)
    runs = number[blocks[starts]]
    sizes = np.diff(np.append(starts, len(blocks)))
    count = int(number[-1]) + 1 if len(number) else 0
    return _runs(trace, runs, requests, sizes, starts - offsets[requests], chained=chained, count=count)


def _runs(
    trace: Trace, runs: Whole, requests: Whole, sizes: Whole, positions: Whole, *, chained: bool, count: int
) -> Runs:
    """With what follows from where each reference stands in its prompt."""
    size = trace.block_tokens or 1
    left = trace.input_tokens[requests] - positions * size
    return Runs(
        chained=chained,
        block_tokens=size,
        runs=runs,
        requests=requests,
        sizes=sizes,
        positions=positions,
        offsets=np.searchsorted(requests, np.arange(len(trace) + 1)),
        whole=left >= sizes * size,
        can_hit=left > sizes * size,
        tokens=np.clip(left, 0, sizes * size),
        order=np.argsort(runs, kind="stable"),
        count=count,
    )


def _of_tree(trace: Trace, tree: BlockTree) -> Runs:
    """Without a look at single references: the blocks of a run have consecutive numbers, since whoever first named
    the first of them first named the others with it.
    """
    counts = np.diff(trace.offsets)
    begins = _branches(trace, tree, counts)
    heads = np.flatnonzero(begins)
    number = np.cumsum(begins) - 1
    sizes = np.diff(np.append(heads, len(begins)))
    before = tree.before[heads]
    before = np.where(before >= 0, number[before], -1)
    """The run before each run."""
    ends = np.where(counts > 0, number[tree.last], -1) if len(number) else tree.last
    depths = np.append(_depths(before), 0)[ends]  # of -1: the 0 that stands last
    offsets = np.concatenate(([0], np.cumsum(depths)))
    runs = BlockTree(before, ends).lists(offsets)
    requests = np.repeat(np.arange(len(trace)), depths)
    upto = np.concatenate(([0], np.cumsum(sizes[runs])))
    positions = upto[:-1] - upto[offsets[requests]]
    return _runs(trace, runs, requests, sizes[runs], positions, chained=True, count=len(heads))


def _branches(trace: Trace, tree: BlockTree, counts: Whole) -> NDArray[np.bool_]:
    """Which blocks begin a run; see `_beginnings`."""
    size = trace.block_tokens or 1
    before, named = tree.before, counts > 0
    followers = np.bincount(before[before >= 0], minlength=len(before))
    followers[tree.last[named]] += 2
    begins: NDArray[np.bool_] = (before < 0) | (followers[before] != 1)
    for end in (trace.input_tokens // size, np.maximum(trace.input_tokens - 1, 0) // size):
        inside = end < counts
        begins[tree.above(tree.last[inside], counts[inside] - 1 - end[inside])] = True
    return begins


def _depths(before: Whole) -> Whole:
    """How many runs lead to each one, itself counted: ways of 1, 2, 4 ... steps towards the root, added up."""
    depths, ahead = np.ones(len(before), np.int64), before
    while np.any(ahead >= 0):
        going = ahead >= 0
        depths = depths + np.where(going, depths[ahead], 0)
        ahead = np.where(going, ahead[ahead], -1)
    return depths


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
    begins: NDArray[np.bool_] = (before < 0) | (followers[before] != 1)
    for end in (trace.input_tokens // size, np.maximum(trace.input_tokens - 1, 0) // size):
        inside = end < counts
        begins[blocks[offsets[:-1][inside] + end[inside]]] = True
    return True, begins
