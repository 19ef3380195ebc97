"""Time and memory that judging a long watch takes: `python -m tests.benchmarks.bench_gate [REPLICAS] [HOURS]`.

The budget is 10 s and 500 MB for a day of scrapes every 15 s from 50 replicas: the rollback rule, a p99, an error
rate. One judgement at the end, the series in memory included.
"""

from __future__ import annotations

import resource
import sys
import time

from kvbench.canary.judge import judge_canary
from tests.canary.build import ERRORS, P99, SUSTAINED, Truth, group, observed, rules


def main() -> None:
    """Print one line."""
    replicas = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    seconds = 3600 * float(sys.argv[2]) if len(sys.argv) > 2 else 86_400.0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    half = [Truth(seed=i, per_s=2.0) for i in range(replicas)]
    candidate = group("canary", *half[: replicas // 2], seconds=seconds, step_s=15.0)
    baseline = group("stable", *half[replicas // 2 :], seconds=seconds, step_s=15.0)
    seen = observed(candidate, baseline, seconds=seconds, asked=rules(SUSTAINED, P99, ERRORS), warm_up=True)
    began = time.process_time()
    verdict = judge_canary(seen)
    took = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"{replicas} replicas, {seconds / 3600:g} h every 15 s: {verdict.verdict.value} in {took:.1f} s of CPU; "
        f"{peak / 1024:.0f} MB at most, {(peak - before) / 1024:.0f} MB of it for series and judging"
    )


if __name__ == "__main__":
    main()
