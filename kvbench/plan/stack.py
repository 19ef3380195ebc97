"""LRU stack distances (Mattson et al. 1970), for whole streams at once. Distances in blocks.

An LRU of C blocks holds a block exactly when fewer than C different others were touched since. The distinct others
between two touches p < s of a block are all positions between them but those touched again before s; counting these
is "how many earlier intervals began after p", answered for every interval at once by a wavelet matrix in numpy
(Claude and Navarro 2012): log2(m) passes over the stream instead of m steps through a Fenwick tree.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvbench.workload.traces.trace import Whole

__all__ = [
    "NEVER",
    "arrival_depths",
    "previous_place",
    "reversed_within",
    "stack_distances",
    "sum_greater",
]

NEVER = (1 << 40) - 1
"""The distance of a block that was not touched before: larger than any."""


def sum_greater(values: Whole, weights: Whole | None, ends: Whole, thresholds: Whole) -> Whole:
    """For every j, the weights (None: one each) of those of `values[: ends[j]]` that are greater than
    `thresholds[j]`. Values are not negative.
    """
    left = np.zeros(len(ends), np.int64)
    right = ends.astype(np.int64)
    found = np.zeros(len(ends), np.int64)
    top = int(max(values.max(initial=0), thresholds.max(initial=0)))
    narrow = np.int32 if max(top, len(values)) < 2**31 else np.int64  # half the memory to look up in
    values, thresholds = values.astype(narrow), thresholds.astype(narrow)
    for bit in reversed(range(top.bit_length())):
        ones = (values >> bit) & 1 == 1
        zeros_before: NDArray[np.integer[Any]] = np.zeros(len(values) + 1, narrow)
        np.cumsum(~ones, out=zeros_before[1:])
        zeros = int(zeros_before[-1])
        left_zeros, right_zeros = zeros_before[left], zeros_before[right]
        off = (thresholds >> bit) & 1 == 0
        if weights is None:
            found += np.where(off, (right - right_zeros) - (left - left_zeros), 0)
        else:
            heavy = np.zeros(len(values) + 1, np.int64)
            np.cumsum(np.where(ones, weights, 0), out=heavy[1:])
            found += np.where(off, heavy[right] - heavy[left], 0)
            weights = np.concatenate((weights[~ones], weights[ones]))
        left = np.where(off, left_zeros, zeros + left - left_zeros)
        right = np.where(off, right_zeros, zeros + right - right_zeros)
        values = np.concatenate((values[~ones], values[ones]))
    return found


def previous_place(stream: Whole) -> Whole:
    """Where each block stood before in the stream; -1 at its first place."""
    order = np.argsort(stream, kind="stable")
    again = stream[order][1:] == stream[order][:-1]
    previous = np.full(len(stream), -1, np.int64)
    previous[order[1:][again]] = order[:-1][again]
    return previous


def stack_distances(stream: Whole) -> Whole:
    """Distinct other blocks since the last touch, for every place of the stream; `NEVER` at first places."""
    previous = previous_place(stream)
    ends = np.flatnonzero(previous >= 0)
    starts = previous[ends]
    inside = sum_greater(starts, None, np.arange(len(ends)), starts)
    distances = np.full(len(stream), NEVER, np.int64)
    distances[ends] = ends - starts - 1 - inside
    return distances


def arrival_depths(blocks: Whole, requests: Whole) -> Whole:
    """How many other blocks were used more recently when the request came, for every reference; `NEVER`: unused.

    `blocks` and `requests` go request after request, front to back. After a request all its blocks are the most
    recent, its first block the most of all: touched last block first.
    """
    stream, owners, place = _touched(blocks, requests)
    before = np.searchsorted(owners, owners, side="left")
    """Where the request of each place begins in the stream."""
    previous = previous_place(stream)
    ends = np.flatnonzero(previous >= 0)
    starts = previous[ends]
    earlier = np.searchsorted(ends, before[ends])
    inside = sum_greater(starts, None, earlier, starts)
    depths = np.full(len(stream), NEVER, np.int64)
    depths[ends] = before[ends] - starts - 1 - inside
    return depths[place]


def _touched(blocks: Whole, requests: Whole) -> tuple[Whole, Whole, Whole]:
    """The blocks in the order of their last touch by each request, whose they are, and where each reference went.

    A block that a request names twice is there once, at the place of its first mention: it is touched last there.
    """
    if not len(blocks):
        return blocks, requests, blocks
    order = reversed_within(requests)
    pairs = requests * (int(blocks.max()) + 1) + blocks
    reverse = order[::-1]
    _, first_in_reverse, group = np.unique(pairs[reverse], return_index=True, return_inverse=True)
    # The last touch of a pair is its last place in `order`, which is its first in `reverse`.
    places = len(order) - 1 - first_in_reverse
    by_place = np.argsort(places, kind="stable")
    rank = np.empty(len(places), np.int64)
    rank[by_place] = np.arange(len(places))
    place = np.empty(len(order), np.int64)
    place[reverse] = rank[group.reshape(-1)]
    kept = order[places[by_place]]
    return blocks[kept], requests[kept], place


def reversed_within(requests: Whole) -> Whole:
    """References in the order in which they are touched: request after request, the last one first."""
    begins = np.searchsorted(requests, requests, side="left")
    ends = np.searchsorted(requests, requests, side="right")
    order = np.empty(len(requests), np.int64)
    order[begins + ends - 1 - np.arange(len(requests))] = np.arange(len(requests))
    return order
