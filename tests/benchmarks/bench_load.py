"""What the load driver costs and how exact its times are, against a C server that records its own truth.

    python -m tests.benchmarks.bench_load [--streams 200] [--seconds 10] [--rate R]

Needs gcc and the server's source (`peers/src/mockserver.c` under KVBENCH_SHARED, by default beside the repository).
Server on the first CPU, driver on the second where there are two. Prints one JSON object. Without --rate a closed
loop of --streams keeps as many answers of 128 tokens under way, one token each 10 ms; with it, Poisson arrivals.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kvbench.load.plan import LoadPlan
from kvbench.load.run import LoadResult, run_load
from kvbench.workload.schedule import PhaseSpan, PlannedRequest, Schedule, Segment
from kvbench.workload.storage import write_schedule

TTFT_MS, ITL_MS = 50.0, 10.0


def build_server(directory: Path) -> Path:
    shared = Path(os.environ.get("KVBENCH_SHARED", Path(__file__).resolve().parents[3] / "shared"))
    source = shared / "peers" / "src" / "mockserver.c"
    compiler = shutil.which("gcc")
    if compiler is None or not source.is_file():
        sys.exit(f"needs gcc and {source}")
    binary = directory / "mockserver"
    subprocess.run([compiler, "-O2", "-o", binary, source], check=True, capture_output=True)
    return binary


def plan_schedule(arguments: argparse.Namespace) -> Schedule:
    rng = random.Random(1)
    if arguments.rate:
        times, at_s = [], rng.expovariate(arguments.rate)
        while at_s < arguments.seconds:
            times.append(at_s)
            at_s += rng.expovariate(arguments.rate)
    else:
        each_s = (TTFT_MS + ITL_MS * arguments.tokens) / 1e3
        times = [None] * (arguments.streams * (int(arguments.seconds / each_s) + 2))
    requests = tuple(
        PlannedRequest(
            id=index,
            phase="steady",
            measured=True,
            class_="bench",
            session=None,
            turn=0,
            intended_s=at_s,
            think_s=0.0,
            continues=None,
            segments=(Segment(index + 1, arguments.prompt),),
            output_tokens=arguments.tokens,
            prefix=None,
            repeat_of=None,
        )
        for index, at_s in enumerate(times)
    )
    phases = (PhaseSpan("steady", 0.0, arguments.seconds, True),)
    concurrency = None if arguments.rate else arguments.streams
    return Schedule("bench", 1, 1, phases, (), requests, concurrency, 120.0)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def run(arguments: argparse.Namespace, directory: Path) -> tuple[LoadResult, float]:
    cpus = sorted(os.sched_getaffinity(0))
    port = free_port()
    timing = ["--ttft-ms", str(TTFT_MS), "--itl-ms", str(ITL_MS)]
    truth = ["--log", directory / "requests.csv", "--tokens", directory / "tokens.bin"]
    server = subprocess.Popen(
        [build_server(directory), "--port", str(port), *timing, *truth],
        stderr=subprocess.DEVNULL,
    )
    try:
        os.sched_setaffinity(server.pid, {cpus[0]})
        os.sched_setaffinity(0, {cpus[-1]})  # the driver inherits it
        write_schedule(plan_schedule(arguments), directory / "schedule.parquet")
        time.sleep(0.2)
        plan = LoadPlan(
            schedule=directory / "schedule.parquet",
            out=directory,
            arm="bench",
            round=1,
            base_url=f"http://127.0.0.1:{port}",
            model="tiny",
            token_id_range=(32, 255),
        )
        before = os.times()
        result = run_load(plan, on_event=lambda _: None, should_stop=lambda: False)
        after = os.times()
    finally:
        os.sched_setaffinity(0, set(cpus))
        server.send_signal(signal.SIGTERM)
        server.wait(30)
    cpu_s = after.children_user - before.children_user + after.children_system - before.children_system
    return result, cpu_s


def compare(directory: Path, zero_s: float) -> dict[str, float]:
    """Reported token times against the server's own, ms."""
    truth = np.genfromtxt(directory / "requests.csv", delimiter=",", names=True, dtype=None, encoding="ascii")
    sent_ns = np.fromfile(directory / "tokens.bin", np.int64)
    starts = dict(zip(truth["xid"], np.cumsum(truth["sent"]) - truth["sent"], strict=True))
    requests = pq.read_table(directory / "requests.parquet")
    ok = requests.filter(pc.equal(requests["status"], "ok"))
    tokens = pq.read_table(directory / "tokens.parquet").to_pandas().groupby("id")["t_s"]
    errors, gaps, true_gaps, ttfts, true_ttfts = [], [], [], [], []
    for row in ok.select(["id", "output_tokens_asked", "sent_s"]).to_pylist():
        start, sent_s = starts[f"kvbench-1-{row['id']}"], row["sent_s"]
        true_s = sent_ns[start : start + row["output_tokens_asked"]] / 1e9 - zero_s
        told_s = tokens.get_group(row["id"]).to_numpy()
        errors.append(told_s - true_s)
        gaps.append(np.diff(told_s))
        true_gaps.append(np.diff(true_s))
        ttfts.append(told_s[0] - sent_s)
        true_ttfts.append(true_s[0] - sent_s)
    figures = {}
    for name, told, true in (
        ("ttft", np.array(ttfts), np.array(true_ttfts)),
        ("itl", np.concatenate(gaps), np.concatenate(true_gaps)),
    ):
        for q in (0.5, 0.99):
            figures[f"{name}_p{q * 100:g}_ms"] = float(np.quantile(told, q)) * 1e3
            figures[f"{name}_p{q * 100:g}_true_ms"] = float(np.quantile(true, q)) * 1e3
    error_ms = np.concatenate(errors) * 1e3
    return figures | {
        "time_error_p50_ms": float(np.quantile(error_ms, 0.5)),
        "time_error_p99_ms": float(np.quantile(error_ms, 0.99)),
        "time_error_max_ms": float(error_ms.max()),
        "answers": float(len(errors)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompt", type=int, default=64)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvbench-bench-") as name:
        directory = Path(name)
        result, cpu_s = run(arguments, directory)
        figures = result.figures
        report = {
            "events_per_s": figures["events"] / arguments.seconds,
            "process_cpu_ms_per_1000_events": cpu_s * 1e6 / figures["events"],
            **compare(directory, result.started_monotonic or 0.0),
            **figures,
        }
    print(json.dumps({name: round(value, 6) for name, value in report.items()}, indent=1))


if __name__ == "__main__":
    main()
