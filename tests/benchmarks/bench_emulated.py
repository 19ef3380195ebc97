"""How fast virtual time goes: `python tests/benchmarks/bench_emulated.py`. One core; figures on stdout.

10 requests/s of 4,096-token prompts with 64 output tokens, costs a tenth of the embedded engine's (so that the load
is about half of what the emulated engine can carry); blocks of 128 and of 16 tokens, device alone and all tiers.
"""

from __future__ import annotations

import time

from kvbench.engine.emulated.virtual import simulate
from kvbench.spec.emulation import Costs, Emulation
from kvbench.spec.profile import Profile
from kvbench.spec.workload import Workload
from kvbench.workload.build import build_schedule

SECONDS = 120.0


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


def main() -> None:
    """Print one line a case."""
    for block_tokens in (128, 16):
        schedule = build_schedule(
            workload(), 1, block_tokens=block_tokens, capacities_tokens=None, max_model_len=8192
        )
        for tiers in ("device", "host", "disk"):
            arm = profile(block_tokens, tiers)
            began = time.process_time()
            played = simulate(schedule, arm)
            took = time.process_time() - began
            rows = played.requests.num_rows
            print(
                f"block {block_tokens:3} {tiers:6}: {rows} requests, {SECONDS:.0f} s in {took:.2f} s of CPU: "
                f"{SECONDS / took:.0f} x real time, {took / rows * 300:.2f} s for 300 requests"
            )


if __name__ == "__main__":
    main()
