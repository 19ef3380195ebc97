"""How deep in an LRU stack each run lies, when its request comes and when it is touched. Distances in blocks.

Where ids stand for everything before them, one figure gives the others. Of a block, let A be the blocks before it
in its prompt and B all that were used since the last request q that had it. At arrival |A ∪ B| blocks are more
recent. Blocks behind it in its prompt, and those behind it in q, were used by nobody in between (whoever uses them
uses it as well), so that its distance is |A ∪ B| and as many as stand behind it: in this request when requests are
touched last block first, in q when they are touched front to back. Blocks of a prompt that one and the same request
used last lie beside each other in the stack, so that only the first of them is looked up.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kvbench.plan.runs import Runs
from kvbench.plan.stack import NEVER, arrival_depths, reversed_within, stack_distances, sum_greater
from kvbench.workload.traces.trace import Whole

__all__ = ["Depths", "depths_of"]


@dataclass(frozen=True)
class Depths:
    """Of every reference to a run; `NEVER` where no earlier request had it. R values each."""

    arrival: Whole
    """Of the run's first block when its request comes; each block behind it lies one deeper."""
    touched: Whole
    """Distance of each of its blocks at its touch, requests being touched last block first."""
    flat: Whole
    """The same when every reference is a touch of its own, front to back."""
    sizes: Whole
    """Blocks of the run."""

    @cached_property
    def _touches(self) -> tuple[Whole, Whole]:
        """(Distances at touches, sorted; blocks before each of them)."""
        order = np.argsort(self.touched)
        return self.touched[order], np.concatenate(([0], np.cumsum(self.sizes[order])))

    def missing(self, capacity: int) -> int:
        """Touches that an LRU of so many blocks takes in because it does not hold the block."""
        distances, before = self._touches
        return int(before[-1] - before[np.searchsorted(distances, capacity, side="left")])


def depths_of(runs: Runs) -> Depths:
    """For the stream of these runs alone."""
    if not runs.chained:
        order = reversed_within(runs.requests)
        touched = np.empty(len(order), np.int64)
        touched[order] = stack_distances(runs.runs[order])
        arrival = arrival_depths(runs.runs, runs.requests)
        return Depths(arrival, touched, stack_distances(runs.runs), runs.sizes)
    last = runs.last_request
    again = last >= 0
    upto = np.concatenate(([0], np.cumsum(runs.sizes)))
    blocks = np.diff(upto[runs.offsets])
    arrival = np.full(len(last), NEVER, np.int64)
    heads, group = _groups(runs, last)
    depth = _head_depths(runs, last, heads, group, blocks)
    arrival[again] = depth[group] + (runs.positions[again] - runs.positions[heads][group])
    touched, flat = arrival.copy(), arrival.copy()
    behind = runs.positions[again] + 1
    touched[again] += blocks[runs.requests[again]] - behind
    flat[again] += blocks[last[again]] - behind
    return Depths(arrival, touched, flat, runs.sizes)


def _groups(runs: Runs, last: Whole) -> tuple[Whole, Whole]:
    """(First reference of each group, the group of every reference that was there before).

    A group is what follows each other in one request and was last used by one other request.
    """
    again = np.flatnonzero(last >= 0)
    begins = np.ones(len(again), bool)
    begins[1:] = (runs.requests[again][1:] != runs.requests[again][:-1]) | (last[again][1:] != last[again][:-1])
    return again[begins], np.cumsum(begins) - 1


def _head_depths(runs: Runs, last: Whole, heads: Whole, group: Whole, blocks: Whole) -> Whole:
    """Arrival depth of the first block of each group.

    All blocks touched since its last touch, less those of groups that were touched twice since: such a group lies
    wholly on one side of that touch.
    """
    start = np.concatenate(([0], np.cumsum(blocks)))
    """Touches before each request."""
    requests, before = runs.requests[heads], last[heads]
    since = start[before] + blocks[before] - 1 - runs.positions[heads]
    """The touch of each head in the request that had it last."""
    again = last >= 0
    weights = np.bincount(group, weights=runs.sizes[again], minlength=len(heads)).astype(np.int64)
    order = np.argsort(since, kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))  # as far as it matters which touch was later: fewer bits to look at
    ends = np.searchsorted(requests, requests, side="left")
    twice = sum_greater(rank, weights, ends, rank)
    depths: Whole = start[requests] - since - 1 - twice
    return depths
