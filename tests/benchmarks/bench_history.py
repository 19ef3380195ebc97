"""How long a year of nights takes: `python -m tests.benchmarks.bench_history`."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

from kvbench.history.nights import judge_night
from kvbench.history.page import history_page
from kvbench.history.store import read
from kvbench.history.trend import comparisons
from tests.history.build import Recorded, record

NIGHTS = 365
T = TypeVar("T")


def timed(what: str, call: Callable[[], T]) -> T:
    began = time.perf_counter()
    found = call()
    print(f"{what:<40} {time.perf_counter() - began:8.3f} s")
    return found


def main() -> None:
    """Print the figures."""
    random = np.random.default_rng(1)
    with tempfile.TemporaryDirectory(prefix="kvbench-history-") as folder:
        results = Path(folder)
        runs = [
            Recorded(n, ratio=float(np.exp(random.normal(0, 0.03))) * (1.1 if n > 200 else 1))
            for n in range(NIGHTS)
        ]
        record(results, runs[:-1])
        timed("recording one run", lambda: record(results, runs[-1:]))
        rows = timed(f"reading {NIGHTS} runs", lambda: read(results))
        found = timed("trend and changes, all runs", lambda: comparisons(rows, None))
        night = timed("verdict against 14 nights", lambda: judge_night(rows, 14))
        timed("page with plots", lambda: history_page(found, night))


if __name__ == "__main__":
    main()
