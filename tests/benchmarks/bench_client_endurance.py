"""Memory and rows over a long run: 5 requests/s of 2,000 tokens, 10,000 events/s.

    python -m tests.benchmarks.bench_client_endurance --minutes 30

Exits with 1 unless resident memory stays at or below 300 MB, Parquet included, and flat, every row and token is
there at the end, and it was played for the 30 minutes that are asked for; three are played unless told.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks import neutral
from tests.benchmarks.wanted import Wanted

TOKENS = 2000
ASKED_MINUTES = 30.0
MOST_MB = 300.0
FLAT_MB_A_MINUTE = 1.0
"""30 MB in half an hour: a tenth of what may be used."""


class Watch(threading.Thread):
    """Resident memory of this process's Python children, once a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.sizes: list[tuple[float, int]] = []
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(1.0):
            for child in psutil.Process().children():
                try:
                    if "kvbench.load.driver" in child.cmdline():
                        self.sizes.append((time.monotonic(), child.memory_info().rss))
                except psutil.Error:
                    continue

    def growth(self, zero_s: float, seconds: float) -> tuple[float, float]:
        """MB a minute once as many answers are under way as ever will be, and the most MB until then and after."""
        at_s = np.array([size[0] for size in self.sizes]) - zero_s
        mega = np.array([size[1] for size in self.sizes]) / 1e6
        steady = (at_s > min(60.0, seconds / 3)) & (at_s < seconds)
        if steady.sum() <= 2:
            return float("nan"), float("nan")
        return float(np.polyfit(at_s[steady], mega[steady], 1)[0]) * 60, float(mega[at_s < seconds].max())


def measure(place: Path, seconds: float) -> dict[str, float]:
    planned = neutral.poisson(5.0, tokens=TOKENS, for_s=seconds)
    watch = Watch()
    watch.start()
    with neutral.server(place, itl_ms=10) as port:
        played = neutral.play(planned, port, place, drain_s=60.0)
    watch.over.set()
    requests = pq.read_table(played.directory / "requests.parquet", columns=["status"])
    tokens = pq.read_metadata(played.directory / "tokens.parquet").num_rows
    slope, steady = watch.growth(played.zero_s, seconds)
    return {
        "minutes": seconds / 60,
        "requests": float(len(planned)),
        "tokens": float(tokens),
        "rows lost": float(len(planned) - requests.num_rows),
        "answers not ok": float(requests.num_rows - requests["status"].to_pylist().count("ok")),
        "tokens lost": float(TOKENS * len(planned) - tokens),
        "MB a minute": slope,
        "MB while playing": steady,
        "MB with Parquet": played.peak_bytes / 1e6,
        "CPU ms per 1,000 events": played.cpu_s * 1e6 / tokens,
    }


def judge(wanted: Wanted, found: dict[str, float]) -> None:
    for name in ("rows lost", "answers not ok", "tokens lost"):
        wanted.at_most(name, found[name], 0.0)
    for name in ("MB while playing", "MB with Parquet"):
        wanted.at_most(name, found[name], MOST_MB)
    wanted.at_most("MB a minute", found["MB a minute"], FLAT_MB_A_MINUTE)
    wanted.at_least("minutes", found["minutes"], ASKED_MINUTES)


def main() -> int:
    """0 when everything holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=3.0)
    arguments = parser.parse_args()
    print(neutral.limits(), flush=True)
    with neutral.workplace() as place:
        found = measure(place, arguments.minutes * 60)
    print(", ".join(f"{name} {value:,.1f}" for name, value in found.items()))
    wanted = Wanted()
    judge(wanted, found)
    return wanted.end()


if __name__ == "__main__":
    sys.exit(main())
