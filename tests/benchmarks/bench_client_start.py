"""From the start of the driver's process to its first request, and 128k-token prompts at 20 a second.

    python -m tests.benchmarks.bench_client_start [--runs 5]

Wanted: under 2 s for a schedule of 10,000 requests of 8k tokens; 128k-token prompts at 20/s without being late.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks import neutral


def start_s(place: Path) -> tuple[float, float]:
    """Seconds to the first request, and of CPU."""
    planned = neutral.schedule([index / 10 for index in range(10_000)], tokens=8, prompt=8192, for_s=1000.0)
    with neutral.server(place) as port:
        played = neutral.play(planned, port, place, stop_after_s=1.0)
    return played.start_s, played.start_cpu_s


def long_prompts(place: Path) -> dict[str, float]:
    planned = neutral.schedule([index / 20 for index in range(200)], tokens=16, prompt=131_072, for_s=10.0)
    with neutral.server(place) as port:
        played = neutral.play(planned, port, place)
    figures = played.figures
    return {name: (figures[f"send_lag_{name}_s"] or 0.0) * 1e3 for name in ("p50", "p99", "max")} | {
        "CPU ms a request": played.cpu_s * 1e3 / 200,
        "peak MB": played.peak_bytes / 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    print(neutral.limits(), flush=True)
    with neutral.workplace() as place:
        starts = [start_s(place) for _ in range(arguments.runs)]
        wall, cpu = (statistics.median(column) for column in zip(*starts, strict=True))
        print(f"10,000 requests of 8k tokens: {wall:.2f} s to the first request, {cpu:.2f} s of CPU", flush=True)
        runs = [long_prompts(place) for _ in range(arguments.runs)]
        shown = ", ".join(f"{name} {statistics.median(run[name] for run in runs):.2f}" for name in runs[0])
        print(f"128k-token prompts at 20/s, send lag in ms: {shown}", flush=True)


if __name__ == "__main__":
    main()
