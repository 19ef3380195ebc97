"""Memory and rows over a long run: 5 requests/s of 2,000 tokens, 10,000 events/s.

    python -m tests.benchmarks.bench_client_endurance --minutes 30

Wanted over 30 minutes: at most 300 MB of resident memory, flat, and every row and token there at the end. Three
minutes unless told.
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=3.0)
    arguments = parser.parse_args()
    seconds = arguments.minutes * 60
    print(neutral.limits(), flush=True)
    watch = Watch()
    with neutral.workplace() as place:
        planned = neutral.poisson(5.0, tokens=2000, for_s=seconds)
        watch.start()
        with neutral.server(place, itl_ms=10) as port:
            played = neutral.play(planned, port, place, drain_s=60.0)
        watch.over.set()
        requests = pq.read_table(played.directory / "requests.parquet")
        tokens = pq.read_table(played.directory / "tokens.parquet")
        lost = len(planned) - requests.num_rows
        short = 2000 * requests.num_rows - tokens.num_rows
        statuses = requests["status"].value_counts().to_pylist()
    at = np.array([size[0] for size in watch.sizes]) - played.zero_s
    mega = np.array([size[1] for size in watch.sizes]) / 1e6
    ramp_s = min(60.0, seconds / 3)  # until as many answers are under way as ever will be
    steady = (at > ramp_s) & (at < seconds)
    slope = float(np.polyfit(at[steady], mega[steady], 1)[0]) * 60 if steady.sum() > 2 else float("nan")
    print(
        f"{len(planned)} requests, {tokens.num_rows:,} tokens in {seconds:.0f} s; rows lost {lost}, tokens lost "
        f"{short}, {statuses}; memory at {ramp_s:.0f} s {np.interp(ramp_s, at, mega):.0f} MB, at the end "
        f"{np.interp(seconds, at, mega):.0f} MB, {slope:+.2f} MB a minute, peak with Parquet "
        f"{played.peak_bytes / 1e6:.0f} MB; CPU {played.cpu_s * 1e6 / tokens.num_rows:.1f} ms per 1,000 events"
    )


if __name__ == "__main__":
    main()
