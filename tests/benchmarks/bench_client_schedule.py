"""How well the client keeps a Poisson schedule: rate, send lag, and the arrivals as the server saw them.

    python -m tests.benchmarks.bench_client_schedule [--runs 5] [--seconds 12]

Wanted at 200 and 1,000 requests/s of 16 tokens: rate within 0.5 % of the schedule's own, send lag p99 at most 2 ms,
and a Kolmogorov-Smirnov test (5 %) that does not reject the exponential gaps that were asked for.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

import numpy as np
from scipy import stats

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks import neutral


def measure(place: Path, rate: float, seconds: float, seed: int) -> dict[str, float]:
    planned = neutral.poisson(rate, tokens=16, for_s=seconds, seed=seed)
    with neutral.server(place, ttft_ms=20, itl_ms=5) as port:
        played = neutral.play(planned, port, place)
    true = neutral.truth(place)
    arrived_s = np.sort(np.array([*true.arrived_ns.values()])) / 1e9
    asked_s = np.array([request.intended_s for request in planned.requests], np.float64)
    gaps, asked_gaps = np.diff(arrived_s), np.diff(asked_s)
    seen = np.array([true.arrived_ns[f"kvbench-1-{request.id}"] for request in planned.requests]) / 1e9
    late_ms = (seen - played.zero_s - asked_s) * 1e3
    figures = played.figures
    return {
        "requests": float(len(arrived_s)),
        "rate off by %": 100.0 * (asked_gaps.mean() / gaps.mean() - 1.0),
        "send lag p50 ms": (figures["send_lag_p50_s"] or 0.0) * 1e3,
        "send lag p99 ms": (figures["send_lag_p99_s"] or 0.0) * 1e3,
        "arrival behind schedule p99 ms": float(np.quantile(late_ms, 0.99)),
        "KS p-value as asked": float(stats.kstest(asked_gaps * rate, "expon").pvalue),
        "KS p-value as seen": float(stats.kstest(gaps * rate, "expon").pvalue),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=12.0)
    arguments = parser.parse_args()
    print(neutral.limits(), flush=True)
    with neutral.workplace() as place:
        for rate in (200.0, 1000.0):
            runs = [measure(place, rate, arguments.seconds, seed) for seed in range(1, arguments.runs + 1)]
            shown = ", ".join(f"{name} {statistics.median(run[name] for run in runs):.3f}" for name in runs[0])
            rejected = sum(run["KS p-value as seen"] < 0.05 for run in runs)
            asked = sum(run["KS p-value as asked"] < 0.05 for run in runs)
            print(f"{rate:g} requests/s, medians of {len(runs)}: {shown}", flush=True)
            print(
                f"  rejected at 5 %: {rejected} of {len(runs)} as seen, {asked} of {len(runs)} as asked", flush=True
            )


if __name__ == "__main__":
    main()
