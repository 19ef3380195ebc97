"""From the command line to the first request, and 128k-token prompts at 20 a second.

    python -m tests.benchmarks.bench_client_start [--runs 5]

Exits with 1 unless `kvbench run`, with a workload of 10,000 requests of 8k-token prompts, has its first request at
the server within 2 s: the interpreter, all imports, the spec, the schedule and the load driver's own start are in
it, the calibration of the host, which is kept, is not. And unless 128k-token prompts go out at 20/s without being
late: send lag p99 at most 2 ms. Medians of five runs.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from kvbench.load.calibrate import calibrated
from tests.benchmarks import neutral
from tests.benchmarks.wanted import Wanted, median, medians, shown

FIRST_REQUEST_S = 2.0
SEND_LAG_MS = 2.0
REQUESTS, PROMPT_TOKENS, RATE = 10_000, 8192, 10
GIVEN_UP_S = 60.0


def specs(directory: Path, port: int) -> tuple[Path, Path]:
    """A profile and a workload."""
    contents: dict[str, dict[str, Any]] = {
        "profile": {
            "name": "neutral",
            "engine": {"kind": "attached", "base_url": f"http://127.0.0.1:{port}", "model": "tiny"},
        },
        "workload": {
            "name": "start",
            "seed": 1,
            "arrivals": {"process": "constant", "rate": RATE},
            "phases": [{"name": "steady", "for": REQUESTS / RATE}],
            "classes": {"bench": {"suffix_tokens": PROMPT_TOKENS, "output_tokens": 8}},
        },
    }
    paths = {name: directory / f"{name}.yaml" for name in contents}
    for name, content in contents.items():
        paths[name].write_text(yaml.safe_dump(content), encoding="utf-8")
    return paths["profile"], paths["workload"]


def command_line(place: Path) -> dict[str, float]:
    """Seconds from the start of `kvbench run` to the load driver's, and to the first request at the server."""
    directory = Path(tempfile.mkdtemp(prefix="start-", dir=place))
    with neutral.server(place) as port:
        profile, workload = specs(directory, port)
        words = ["run", profile, "--workload", workload, "--out", directory / "results"]
        begun_s, begun_unix_s = time.monotonic(), time.time()
        process = subprocess.Popen(
            [sys.executable, "-m", "kvbench", *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        while process.poll() is None and not recorded(directory) and time.monotonic() < begun_s + GIVEN_UP_S:
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate()
    arrived_ns = [at_ns for name, at_ns in neutral.truth(place).arrived_ns.items() if name.startswith("kvbench-")]
    if not arrived_ns:
        sys.exit(f"no request came: {told.decode()[-2000:]}")
    (plan,) = directory.glob("results/*/arms/*/round-1*/load-plan.json")
    return {
        "load driver": plan.stat().st_mtime - begun_unix_s,
        "first request": min(arrived_ns) / 1e9 - begun_s,
    }


def recorded(directory: Path) -> bool:
    """Whether a request is over: its row is in the part file, behind the schema."""
    parts = directory.glob("results/*/arms/*/round-1/tokens.part.arrows")
    return any(part.stat().st_size > 1024 for part in parts)


def driver(place: Path) -> dict[str, float]:
    """The load driver's own part: seconds to its first request, and of CPU."""
    times_s = [index / RATE for index in range(REQUESTS)]
    planned = neutral.schedule(times_s, tokens=8, prompt=PROMPT_TOKENS, for_s=REQUESTS / RATE)
    with neutral.server(place) as port:
        played = neutral.play(planned, port, place, stop_after_s=1.0)
    return {"first request": played.start_s, "CPU": played.start_cpu_s}


def long_prompts(place: Path) -> dict[str, float]:
    planned = neutral.schedule([index / 20 for index in range(200)], tokens=16, prompt=131_072, for_s=10.0)
    with neutral.server(place) as port:
        played = neutral.play(planned, port, place)
    figures = played.figures
    return {name: (figures[f"send_lag_{name}_s"] or 0.0) * 1e3 for name in ("p50", "p99", "max")} | {
        "CPU ms a request": played.cpu_s * 1e3 / 200,
        "peak MB": played.peak_bytes / 1e6,
    }


def judge(wanted: Wanted, starts: Sequence[dict[str, float]], long: Sequence[dict[str, float]]) -> None:
    what = f"`kvbench run` of {REQUESTS:,} requests of {PROMPT_TOKENS} tokens: first request"
    wanted.at_most(what, median(starts, "first request"), FIRST_REQUEST_S, " s")
    wanted.at_most("128k-token prompts at 20/s: send lag p99", median(long, "p99"), SEND_LAG_MS, " ms")


def main() -> int:
    """0 when everything holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    print(neutral.limits(), flush=True)
    calibrated(print)
    wanted = Wanted(runs=arguments.runs)
    with neutral.workplace() as place:
        starts = [command_line(place) for _ in range(arguments.runs)]
        print(f"{REQUESTS:,} requests of 8k tokens, `kvbench run`, s: {shown(medians(starts))}", flush=True)
        own = [driver(place) for _ in range(arguments.runs)]
        print(f"the load driver alone, s: {shown(medians(own))}", flush=True)
        long = [long_prompts(place) for _ in range(arguments.runs)]
        print(f"128k-token prompts at 20/s, send lag in ms: {shown(medians(long))}", flush=True)
    judge(wanted, starts, long)
    return wanted.end()


if __name__ == "__main__":
    sys.exit(main())
