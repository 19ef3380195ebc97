"""How fast virtual time goes: `python tests/benchmarks/bench_emulated.py`. One core; exit status 1 below 200 times.

10 requests/s of 4,096-token prompts with 64 output tokens, costs a tenth of the embedded engine's (so that the load
is about half of what the emulated engine can carry); device alone and all tiers. Asked for with blocks of 128
tokens, the emulated engine's own; with blocks of 16 there is eight times as much to keep account of.
Playing is timed, medians of five; building the schedule and judging what was played are not in it.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from kvbench.engine.emulated.sizes import DEFAULTS
from kvbench.engine.emulated.virtual import simulate
from kvbench.spec.emulation import Costs, Emulation
from kvbench.spec.profile import Profile
from kvbench.spec.workload import Workload
from kvbench.workload.build import build_schedule
from kvbench.workload.schedule import Schedule
from tests.benchmarks.wanted import ASKED_RUNS, Wanted

SECONDS = 120.0
AT_LEAST = 200.0
"""Times real time."""
ASKED_BLOCK_TOKENS = DEFAULTS["block-size"]


def workload() -> Workload:
    long = {
        "weight": 1.0,
        "prefix": {"tokens": 4032, "pool": 40, "popularity": {"zipf": 0.6}},
        "suffix_tokens": 64,
        "output_tokens": 64,
    }
    return Workload.model_validate(
        {
            "name": "bench",
            "seed": 1,
            "arrivals": {"process": "poisson", "rate": 10.0},
            "phases": [{"name": "steady", "for": SECONDS}],
            "classes": {"long": long},
        }
    )


def profile(block_tokens: int, tiers: str) -> Profile:
    scale = block_tokens / 128
    costs = {
        key: value * (scale if key.endswith("_block") else 1) / 10 for key, value in Costs().model_dump().items()
    }
    costs["block_bytes"] = 2048 * block_tokens
    spec: dict = {"device": {"blocks": 65_536 // block_tokens}}
    if tiers != "device":
        spec["host"] = {"size": 2048 * 65_536}
    if tiers == "disk":
        spec["disk"] = {"path": "/nowhere"}
    args = {"block-size": block_tokens, "max-model-len": 8192}
    emulation = Emulation(costs=Costs.model_validate(costs)).model_dump()
    engine = {"kind": "emulated", "model": "tiny", "args": args, "emulation": emulation}
    return Profile.model_validate({"name": tiers, "engine": engine, "tiers": spec})


def medians_of(schedule: Schedule, arm: Profile) -> dict[str, float]:
    """CPU seconds of playing it, all threads together, and how many seconds of load each of them plays."""
    took_s = []
    for _ in range(ASKED_RUNS):
        began = time.process_time()
        played = simulate(schedule, arm)
        took_s.append(time.process_time() - began)
    median_s = statistics.median(took_s)
    return {"requests": played.requests.num_rows, "CPU s": median_s, "x real time": SECONDS / median_s}


def judge(wanted: Wanted, block_tokens: int, tiers: str, found: dict[str, float]) -> None:
    """Of the emulated engine's own block; eight times as many blocks are told and asked nothing of."""
    case = f"block {block_tokens}, {tiers}"
    if block_tokens == ASKED_BLOCK_TOKENS:
        wanted.at_least(case, found["x real time"], AT_LEAST, " x real time")
    else:
        print(f"          {case}: {found['x real time']:.4g} x real time (nothing asked for)")


def main() -> int:
    """0 when every case of which it is asked holds."""
    wanted = Wanted(runs=ASKED_RUNS)
    for block_tokens in (128, 16):
        schedule = build_schedule(
            workload(), 1, block_tokens=block_tokens, capacities_tokens=None, max_model_len=8192
        )
        for tiers in ("device", "host", "disk"):
            found = medians_of(schedule, profile(block_tokens, tiers))
            rows, took_s = found["requests"], found["CPU s"]
            print(
                f"block {block_tokens:3} {tiers:6}: {rows} requests, {SECONDS:.0f} s in {took_s:.2f} s of CPU, "
                f"{took_s / rows * 300:.2f} s for 300 requests"
            )
            judge(wanted, block_tokens, tiers, found)
    return wanted.end()


if __name__ == "__main__":
    sys.exit(main())
