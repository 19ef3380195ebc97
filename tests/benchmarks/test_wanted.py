"""Every figure that is asked for is judged by its benchmark, and each can be missed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import pytest

from tests.benchmarks import (
    bench_client_accuracy,
    bench_client_cpu,
    bench_client_endurance,
    bench_client_peers,
    bench_client_schedule,
    bench_client_start,
    bench_doctor,
    bench_emulated,
    bench_prompts,
    neutral,
)
from tests.benchmarks.wanted import Wanted, median

Figures = dict[str, float]
Judge = Callable[[Wanted, Figures], None]


def five(judge: Callable[[Wanted, list[Figures]], None]) -> Judge:
    return lambda wanted, figures: judge(wanted, [figures] * 5)


OFF = {f"{name}_p{q}_off": 0.4 for name in ("ttft", "itl") for q in ("50", "90", "99")}
TRUE = {f"{name}_p{q}_true": 10.0 for name in ("ttft", "itl") for q in ("50", "90", "99")}
CASES: dict[str, tuple[Judge, Figures, Figures]] = {
    "accuracy at 20,000 events/s": (
        five(lambda w, runs: bench_client_accuracy.judge_errors(w, 20_000, runs)),
        {"beyond_p50": 0.05, "beyond_p99": 0.3},
        {"beyond_p50": 0.06, "beyond_p99": 0.31},
    ),
    "accuracy with half of the core taken": (
        five(lambda w, runs: bench_client_accuracy.judge_errors(w, 20_000, runs)),
        {"beyond_p50": 0.0, "beyond_p99": -1.0, "taken_from_c": 0.5, "taken_from_client": 0.5},
        {"beyond_p50": 0.06, "beyond_p99": 0.31, "taken_from_c": 0.4, "taken_from_client": 0.4},
    ),
    "accuracy at 50,000 events/s": (
        five(lambda w, runs: bench_client_accuracy.judge_errors(w, 50_000, runs)), {"p99": 9.0}, {"p99": 11.0},
    ),
    "quantiles": (
        five(bench_client_accuracy.judge_quantiles), OFF | TRUE, dict.fromkeys(OFF, -0.6),
    ),
    "CPU at 200 streams": (
        five(lambda w, runs: bench_client_cpu.judge(w, 200, runs)),
        {"all / c": 5.0, "taken": 0.98},
        {"all / c": 5.1, "taken": 0.96},
    ),
    "CPU at 600 streams": (
        five(lambda w, runs: bench_client_cpu.judge(w, 600, runs)),
        {"all / c": 4.0, "taken": 0.98},
        {"all / c": 4.1, "taken": 0.96},
    ),
    "peers": (
        five(lambda w, runs: bench_client_peers.judge(w, 600, runs)),
        {"all / c": 4.0, "all / peer": 0.5, "taken": 0.98},
        {"all / c": 4.1, "all / peer": 0.51, "taken": 0.96},
    ),
    "schedule": (
        five(lambda w, runs: bench_client_schedule.judge(w, 200.0, runs)),
        {"rate off by %": 0.4, "send lag p99 ms": 1.9, "KS p-value as seen": 0.5, "KS p-value of others": 1e-6},
        {"rate off by %": 0.6, "send lag p99 ms": 2.1, "KS p-value as seen": 0.04, "KS p-value of others": 0.06},
    ),
    "start": (
        lambda w, figures: bench_client_start.judge(w, [figures] * 5, [figures] * 5),
        {"first request": 1.9, "p99": 1.9},
        {"first request": 2.1, "p99": 2.1},
    ),
    "endurance": (
        bench_client_endurance.judge,
        {
            "rows lost": 0, "answers not ok": 0, "tokens lost": 0, "MB while playing": 290, "MB with Parquet": 299,
            "MB a minute": 0.5, "minutes": 30.0,
        },
        {
            "rows lost": 1, "answers not ok": 1, "tokens lost": 1, "MB while playing": 301, "MB with Parquet": 301,
            "MB a minute": 1.5, "minutes": 3.0,
        },
    ),
    "virtual time": (
        lambda w, figures: bench_emulated.judge(w, 128, "disk", figures),
        {"x real time": 201.0},
        {"x real time": 199.0},
    ),
    "prompts": (
        lambda w, figures: bench_prompts.judge(w, (32, 255), figures),
        {"made": 21.0, "encoded": 101.0},
        {"made": 19.0, "encoded": 99.0},
    ),
    "doctor": (
        bench_doctor.judge,
        {"cpu/host-and-disk": 19.0, "tensorrt-llm/host": 19.0},
        {"cpu/host-and-disk": 20.1, "tensorrt-llm/host": 20.1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_each_figure_beyond_its_limit_or_not_measured_is_exit_status_1(case: str) -> None:
    judge, good, bad = CASES[case]
    said: list[str] = []
    holding = Wanted(runs=5, say=said.append)
    judge(holding, good)
    assert holding.end() == 0
    assert said
    assert all(line.startswith("  holds ") for line in said[:-1])
    for name, value in bad.items():
        for missed in (value, float("nan")):
            wanted = Wanted(runs=5, say=said.append)
            judge(wanted, good | {name: missed})
            assert wanted.end() == 1, f"{name} {missed}"
            assert len(wanted.missed) == 1


def test_the_median_of_the_runs_counts_and_a_run_without_the_figure_spoils_it() -> None:
    assert median([{"a": 1.0}, {"a": 9.0}, {"a": 2.0}], "a") == 2.0
    assert np.isnan(median([{"a": 1.0}, {"a": float("nan")}, {"a": 2.0}], "a"))


def test_fewer_runs_than_asked_for_are_told() -> None:
    said: list[str] = []
    Wanted(runs=3, say=said.append)
    assert said == ["  medians of 3, where 5 are asked for"]


@pytest.mark.parametrize("count", [2400, 12_000])
def test_the_test_of_arrivals_takes_a_poisson_process_and_no_other_of_its_rate(count: int) -> None:
    """As many gaps as a run has at 200 and at 1,000 requests/s."""
    rate = count / 12
    poisson = np.random.default_rng(3).exponential(1 / rate, count)
    assert bench_client_schedule.exponential_p(poisson, rate) > bench_client_schedule.LEVEL
    for name, cv in bench_client_schedule.OTHERS_CV.items():
        gaps = bench_client_schedule.gaps_of(cv, rate, count, seed=3)
        assert gaps.mean() == pytest.approx(1 / rate, rel=0.1)
        assert bench_client_schedule.exponential_p(gaps, rate) < 1e-6, name
    # Nothing is fitted: the right process at another rate is rejected, too.
    assert bench_client_schedule.exponential_p(poisson * 1.1, rate) < bench_client_schedule.LEVEL


def test_the_other_process_really_takes_half_of_the_core_from_one_that_wants_all_of_it() -> None:
    """Given a client that never rests, scheduled as benchmarks schedule it where they may."""
    if "not permitted" in neutral.limits():
        pytest.skip("real-time scheduling is not permitted here")
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        os.sched_setaffinity(busy.pid, {neutral.CLIENT_CPU})
        with bench_client_accuracy.half_a_core_taken() as taker:
            time.sleep(0.2)
            neutral.prefer(busy.pid)
            taker.begin()
            time.sleep(0.6)
            share = taker.share
    finally:
        busy.kill()
        busy.wait()
    assert share == pytest.approx(0.5, abs=0.06)
