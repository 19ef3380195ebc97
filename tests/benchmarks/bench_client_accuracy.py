"""Times that the client reports against those at which the server sent, beside the C reader's in the same run.

    python -m tests.benchmarks.bench_client_accuracy [--runs 5] [--seconds 10]

Wanted: at 20,000 events/s an error of at most 0.05 ms (p50) and 0.3 ms (p99) beyond the C reader's, also while
another process takes half of the client's core; at 50,000 events/s p99 at most 10 ms; TTFT and ITL quantiles within
2 % or 0.5 ms of the truth at 10,000 events/s. Events read together with the next one lose their own time; their
share is told.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks import neutral

TOKENS = 128
EACH_S = 0.05 + 0.01 * (TOKENS - 1)
HALF = (
    "import time\nwhile True:\n end = time.perf_counter() + .005\n"
    " while time.perf_counter() < end: pass\n time.sleep(.005)"
)


@contextlib.contextmanager
def half_a_core_taken(*, really: bool) -> Iterator[None]:
    """Another process, of ordinary priority, on the client's CPU: busy 5 ms of every 10."""
    if not really:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", HALF])
    try:
        os.sched_setaffinity(process.pid, {neutral.CLIENT_CPU})
        yield
    finally:
        process.kill()
        process.wait()


def errors(place: Path, streams: int, seconds: float, *, disturbed: bool) -> dict[str, float]:
    with half_a_core_taken(really=disturbed):
        with neutral.server(place) as port:
            neutral.read_in_c(place, port, streams=streams, tokens=TOKENS, for_s=seconds)
        c = np.abs(neutral.reader_errors_ms(place, neutral.truth(place)))
        planned = neutral.closed_loop(streams, tokens=TOKENS, for_s=seconds, each_s=EACH_S)
        with neutral.server(place) as port:
            played = neutral.play(planned, port, place)
    ours = np.abs(neutral.compare(played, neutral.truth(place)).errors_ms)
    told = played.figures
    return {
        "c_p50": float(np.quantile(c, 0.5)),
        "c_p99": float(np.quantile(c, 0.99)),
        "p50": float(np.quantile(ours, 0.5)),
        "p99": float(np.quantile(ours, 0.99)),
        "max": float(ours.max()),
        "told_p99": (told["timestamp_error_p99_s"] or 0.0) * 1e3,
        "read_lag_p99": (told["read_lag_p99_s"] or 0.0) * 1e3,
        "merged_%": (told["merged_events_share"] or 0.0) * 100,
        "stepped_down_s": told["stepped_down_s"] or 0.0,
    }


def quantiles(place: Path, seconds: float) -> dict[str, float]:
    """Differences of reported quantiles to the true ones; Poisson arrivals, 10,000 events/s."""
    with neutral.server(place) as port:
        played = neutral.play(neutral.poisson(79.0, tokens=TOKENS, for_s=seconds), port, place)
    compared = neutral.compare(played, neutral.truth(place))
    differences: dict[str, float] = {"answers": float(compared.answers)}
    for name, told, true in (
        ("ttft", compared.ttft_ms, compared.true_ttft_ms),
        ("itl", compared.itl_ms, compared.true_itl_ms),
    ):
        for q in (0.5, 0.9, 0.99):
            truly = float(np.quantile(true, q))
            differences[f"{name}_p{q * 100:g}_true"] = truly
            differences[f"{name}_p{q * 100:g}_off"] = float(np.quantile(told, q)) - truly
    return differences


def medians(runs: list[dict[str, float]]) -> str:
    return ", ".join(f"{name} {statistics.median(run[name] for run in runs):.3f}" for name in runs[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0)
    arguments = parser.parse_args()
    seconds = arguments.seconds
    print(neutral.limits(), f"medians of {arguments.runs}, ms", sep="\n", flush=True)
    with neutral.workplace() as place:
        for title, streams, disturbed in (
            ("20,000 events/s", 206, False),
            ("20,000 events/s, half of the client's core taken", 206, True),
            ("50,000 events/s", 516, False),
        ):
            found = [errors(place, streams, seconds, disturbed=disturbed) for _ in range(arguments.runs)]
            print(f"{title}: {medians(found)}", flush=True)
        found = [quantiles(place, seconds) for _ in range(arguments.runs)]
        print(f"10,000 events/s, Poisson arrivals: {medians(found)}", flush=True)


if __name__ == "__main__":
    main()
