"""Measures how fast memory is copied within the host. Bounded in memory and time; bytes per second."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from kvbench.doctor.host import CopySpeed

__all__ = ["COPY_BYTES", "measure_memory_copy"]

COPY_BYTES = 64 * 2**20
"""With its copy well beyond the caches that a core can fill."""

COPIES = 4
MOST_THREADS = 16
MEMORY_SHARE = 0.1
"""Of what is available; the pieces are made smaller where they would take more."""


def measure_memory_copy(available: int, *, size: int = COPY_BYTES) -> CopySpeed | str:
    """By one thread, then by one a core; a sentence where there is too little memory to try."""
    threads = min(MOST_THREADS, len(os.sched_getaffinity(0)))
    size = min(size, int(available * MEMORY_SHARE) // (2 * threads))
    if size < 2**20:
        return "too little memory is available to copy any"
    pairs = [(np.ones(size, np.uint8), np.zeros(size, np.uint8)) for _ in range(threads)]
    alone = _median_s(lambda: np.copyto(pairs[0][1], pairs[0][0]))
    with ThreadPoolExecutor(threads) as pool:
        together = _median_s(lambda: list(pool.map(lambda pair: np.copyto(pair[1], pair[0]), pairs)))
    return CopySpeed(size / alone, threads * size / together, threads, size)


def _median_s(copy: Callable[[], object]) -> float:
    took = []
    for _ in range(COPIES + 1):
        started = time.perf_counter()
        copy()
        took.append(time.perf_counter() - started)
    return statistics.median(took[1:])
