"""How fast traces are analysed: `python tests/benchmarks/bench_analyze.py [MILLIONS ...]`. One core; on stdout.

Generated Mooncake-like traces (blocks of 512 tokens, requests in batches of three seconds, conversations that grow,
a few system prompts, most contents new) of 1, 3 and 10 million block references. For each: the exact LRU curve from
the trace in memory, and the whole of `kvbench analyze --json` as a process of its own, with its peak memory. In the
end the exponent with which the time grows.
"""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from kvbench.plan.depths import depths_of
from kvbench.plan.lru import hit_curve
from kvbench.plan.runs import runs_of
from kvbench.workload.traces.reading import read_trace

BLOCK = 512


def requests(references: int, seed: int = 1) -> Iterator[dict[str, object]]:
    """Prompts with at least so many blocks in total."""
    chance = random.Random(seed)
    prompts = [[number * 100 + block for block in range(chance.randint(1, 6))] for number in range(60)]
    conversations: list[list[int]] = []
    fresh, given, at_s = 10_000, 0, 0.0
    while given < references:
        at_s += chance.expovariate(7.0)
        if conversations and chance.random() < 0.45:
            place = min(len(conversations) - 1, int(chance.paretovariate(0.6)))
            path = conversations.pop(-1 - place)
        else:
            path = list(prompts[min(59, int(chance.paretovariate(1.0)) - 1)])
        more = max(1, min(200, round(chance.lognormvariate(2.3, 0.9))))
        path = [*path, *range(fresh, fresh + more)]
        fresh += more
        rest = chance.randrange(1, BLOCK)
        yield {
            "timestamp": int(at_s // 3) * 3000,
            "input_length": len(path) * BLOCK + rest,
            "output_length": chance.randrange(1, 600),
            "hash_ids": [*path, fresh],
        }
        fresh += 1
        given += len(path) + 1
        if len(path) < 250:
            conversations.append(path)
        del conversations[:-20_000]


def write_trace(path: Path, references: int) -> None:
    """As one JSON record a line."""
    with path.open("w") as file:
        for record in requests(references):
            file.write(json.dumps(record) + "\n")


def curve_seconds(path: Path) -> tuple[int, float, float]:
    """(References, seconds for the exact curve, share that an unlimited cache serves)."""
    trace = read_trace(path)
    began = time.process_time()
    vllm = runs_of(trace).under("vllm")
    curve = hit_curve(vllm, depths_of(vllm), int(trace.input_tokens.sum()))
    return len(trace.blocks), time.process_time() - began, curve.best


def whole_seconds(path: Path) -> tuple[float, float]:
    """(CPU seconds of the whole command, GiB at its peak)."""
    command = [sys.executable, "-m", "kvbench", "analyze", str(path), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"analyze ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**20


def main() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    sizes = [float(text) for text in sys.argv[1:]] or [1, 3, 10]
    seconds: list[tuple[int, float]] = []
    with tempfile.TemporaryDirectory(prefix="kvbench-bench-") as folder:
        for millions in sizes:
            path = Path(folder) / "trace.jsonl"
            write_trace(path, int(millions * 1e6))
            count, curve_s, best = curve_seconds(path)
            whole_s, peak = whole_seconds(path)
            seconds.append((count, whole_s))
            print(
                f"{count / 1e6:5.1f} million references ({path.stat().st_size / 1e6:.0f} MB): "
                f"exact LRU curve {curve_s:.2f} s, {count / curve_s / 1e6:.1f} million/s (reuse {best:.0%}); "
                f"analyze --json {whole_s:.1f} s, {peak:.2f} GiB",
                flush=True,
            )
    if len(seconds) > 1:
        (small, first), (large, last) = seconds[0], seconds[-1]
        power = math.log(last / first) / math.log(large / small)
        print(f"time grows as the references to the power of {power:.2f}")


if __name__ == "__main__":
    main()
