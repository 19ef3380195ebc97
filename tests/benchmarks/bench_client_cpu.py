"""CPU of the client for 1,000 streamed events, everything included, beside the C reader's in the same run.

    python -m tests.benchmarks.bench_client_cpu [--runs 5] [--seconds 10] [--streams 200 600]

A closed loop of answers of 128 tokens, one each 10 ms: 200 streams are 19,000 events/s, 600 are 58,000. `all`
counts from time zero to the exit of the process: sending, reading, parsing, recording, Locust, Parquet; `loop`
without what comes after the last answer. Wanted: at most 5 times the C reader's at 200 streams, 4 times at 600.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks import neutral

TOKENS = 128
EACH_S = 0.05 + 0.01 * (TOKENS - 1)
WANTED = {200: 5.0, 600: 4.0}


def measure(place: Path, streams: int, seconds: float) -> tuple[float, float, float, float]:
    """ms per 1,000 events: C, everything of ours, our loop alone; and our events/s."""
    with neutral.server(place) as port:
        c = neutral.read_in_c(place, port, streams=streams, tokens=TOKENS, for_s=seconds)
    planned = neutral.closed_loop(streams, tokens=TOKENS, for_s=seconds, each_s=EACH_S)
    with neutral.server(place) as port:
        played = neutral.play(planned, port, place)
    events = played.figures["events"] or 0.0
    loop = (played.figures["client_cpu_s"] or 0.0) * 1e6 / events
    # The last answers end one length after the time is up.
    return c["cpu_ms_per_1000"], played.cpu_s * 1e6 / events, loop, events / (seconds + EACH_S / 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--streams", type=int, nargs="+", default=[200, 600])
    arguments = parser.parse_args()
    print(neutral.limits(), flush=True)
    with neutral.workplace() as place:
        for streams in arguments.streams:
            runs = [measure(place, streams, arguments.seconds) for _ in range(arguments.runs)]
            c, all_, loop, rate = (statistics.median(column) for column in zip(*runs, strict=True))
            ratio = statistics.median(ours / theirs for theirs, ours, _, _ in runs)
            print(
                f"{streams} streams, {rate:,.0f} events/s, medians of {len(runs)}: C {c:.1f}, all {all_:.1f}, "
                f"loop {loop:.1f} ms per 1,000 events; all / C {ratio:.2f}"
                + (f" (at most {WANTED[streams]:g} wanted)" if streams in WANTED else "")
                + "; runs "
                + " ".join(f"{theirs:.1f}/{ours:.1f}" for theirs, ours, _, _ in runs),
                flush=True,
            )


if __name__ == "__main__":
    main()
