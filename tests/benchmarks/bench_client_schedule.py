"""How well the client keeps a Poisson schedule: rate, send lag, and the arrivals as the server saw them.

    python -m tests.benchmarks.bench_client_schedule [--runs 5] [--seconds 12]

Exits with 1 unless, at 200 and 1,000 requests/s of 16 tokens, the rate is within 0.5 % of the schedule's own, the
send lag's p99 at most 2 ms, and a Kolmogorov-Smirnov test (5 %) does not reject the exponential gaps that were
asked for; medians of five runs. The same test of as many arrivals of other processes at the same rate has to reject
them, in every run: else it would say nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks import neutral
from tests.benchmarks.wanted import Wanted, median, medians, shown

RATE_OFF_PERCENT = 0.5
SEND_LAG_MS = 2.0
LEVEL = 0.05
OTHERS_CV = {"constant": 0.0, "gamma, cv 0.8": 0.8, "gamma, cv 1.25": 1.25, "gamma, cv 2": 2.0}
"""Coefficient of variation of the gaps of processes that are no Poisson process (whose is 1)."""

Floats = NDArray[np.float64]


def exponential_p(gaps_s: Floats, rate: float) -> float:
    """Of the test whether these are gaps of a Poisson process of the asked rate; nothing is fitted."""
    return float(stats.kstest(gaps_s * rate, "expon").pvalue)


def gaps_of(cv: float, rate: float, count: int, seed: int) -> Floats:
    """Gaps with mean 1 / rate: constant, or gamma with this coefficient of variation."""
    if cv == 0:
        return np.full(count, 1 / rate)
    return np.random.default_rng(seed).gamma(1 / cv**2, cv**2 / rate, count)


def measure(place: Path, rate: float, seconds: float, seed: int) -> dict[str, float]:
    """Of one run; of the other processes the largest p-value."""
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
    others = (exponential_p(gaps_of(cv, rate, len(gaps), seed), rate) for cv in OTHERS_CV.values())
    return {
        "requests": float(len(arrived_s)),
        "rate off by %": abs(100.0 * (asked_gaps.mean() / gaps.mean() - 1.0)),
        "send lag p50 ms": (figures["send_lag_p50_s"] or 0.0) * 1e3,
        "send lag p99 ms": float("nan") if (p99_s := figures["send_lag_p99_s"]) is None else p99_s * 1e3,
        "arrival behind schedule p99 ms": float(np.quantile(late_ms, 0.99)),
        # What the test makes of lags: it rejects from a D of 1.36 / sqrt(gaps) on, 0.012 at 1,000/s for 12 s.
        "smallest 1 % of gaps, asked, us": float(np.quantile(asked_gaps, 0.01)) * 1e6,
        "smallest 1 % of gaps, seen, us": float(np.quantile(gaps, 0.01)) * 1e6,
        "KS D as seen": float(stats.kstest(gaps * rate, "expon").statistic),
        "KS p-value as asked": exponential_p(asked_gaps, rate),
        "KS p-value as seen": exponential_p(gaps, rate),
        "KS p-value of others": max(others),
    }


def judge(wanted: Wanted, rate: float, runs: Sequence[dict[str, float]]) -> None:
    what = f"{rate:g} requests/s"
    wanted.at_most(f"{what}: rate off", median(runs, "rate off by %"), RATE_OFF_PERCENT, " %")
    wanted.at_most(f"{what}: send lag p99", median(runs, "send lag p99 ms"), SEND_LAG_MS, " ms")
    wanted.at_least(f"{what}: KS p-value of the arrivals", median(runs, "KS p-value as seen"), LEVEL)
    largest = max(run["KS p-value of others"] for run in runs)
    wanted.at_most(f"{what}: KS p-value of {', '.join(OTHERS_CV)}, the largest of all runs", largest, LEVEL)


def main() -> int:
    """0 when everything holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=12.0)
    arguments = parser.parse_args()
    print(neutral.limits(), flush=True)
    wanted = Wanted(runs=arguments.runs)
    with neutral.workplace() as place:
        for rate in (200.0, 1000.0):
            runs = [measure(place, rate, arguments.seconds, seed) for seed in range(1, arguments.runs + 1)]
            print(f"{rate:g} requests/s, medians of {len(runs)}: {shown(medians(runs))}", flush=True)
            judge(wanted, rate, runs)
    return wanted.end()


if __name__ == "__main__":
    sys.exit(main())
