"""How fast traces are analysed: `python tests/benchmarks/bench_analyze.py [MILLIONS ...]`. One core; on stdout.

Generated Mooncake-like traces (blocks of 512 tokens, requests in batches of three seconds, conversations that grow,
a few system prompts, most contents new) of 1, 3 and 10 million block references. For each: the exact LRU curve from
the trace in memory, and the whole of `kvbench analyze --json` as a process of its own, with its peak memory. In the
end the exponent with which the time grows.

For the record, in the same run and on the same core: a plain reference (Mattson's stack over a balanced list of
last touches, whose distances must be equal) and, where its command `kvcache-simulator` is on the PATH, KVCache.AI's
simulator: its LRU, in C++, at up to 15 sizes. kvbench needs nothing of it; it comes with `pip install
kvcache-simulator==0.1.3` into an environment of its own.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
from sortedcontainers import SortedList

from kvbench.plan.depths import depths_of
from kvbench.plan.lru import hit_curve, lru_request_stream
from kvbench.plan.runs import runs_of
from kvbench.plan.stack import NEVER, stack_distances
from kvbench.workload.traces.reading import read_trace

Answer = TypeVar("Answer")

BLOCK = 512
PLAIN_REFERENCES = 300_000
"""Of the first trace, for the plain reference; it takes some microseconds for each."""
PEER = "kvcache-simulator"
PEER_MODEL = "llama-3.1-8b"


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


def plain_seconds(path: Path) -> tuple[int, float]:
    """(References, seconds) of the plain reference; ends the benchmark where a distance is not equal to ours."""
    blocks = read_trace(path).blocks[:PLAIN_REFERENCES]
    began = time.process_time()
    last: dict[int, int] = {}
    touches: SortedList[int] = SortedList()
    distances = []
    for now, block in enumerate(blocks.tolist()):
        before = last.get(block)
        distances.append(NEVER if before is None else len(touches) - touches.bisect_right(before))
        if before is not None:
            touches.remove(before)
        touches.add(now)
        last[block] = now
    took_s = time.process_time() - began
    if not np.array_equal(stack_distances(blocks), distances):
        raise SystemExit("the plain reference finds other stack distances")
    return len(blocks), took_s


def peer_words(path: Path) -> str:
    """What KVCache.AI's simulator takes for the same trace, and how its hit rate at one size compares."""
    command = shutil.which(PEER)
    if command is None:
        return f"peer: no simulator is installed ({PEER} is not on the PATH)"
    arguments = [
        "run",
        "--trace",
        str(path),
        "--model",
        PEER_MODEL,
        "--block-size",
        str(BLOCK),
        "--policies",
        "lru",
    ]
    output = path.with_suffix(".peer.json")
    process = subprocess.Popen(
        [command, *arguments, "--format", "json", "--no-progress", "--output", str(output)], stderr=subprocess.PIPE
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        return (
            f"peer: {PEER} ended with {process.returncode}: {(process.stderr.read() if process.stderr else b'')!r}"
        )
    points = json.loads(output.read_text())["points"]
    took = f"{usage.ru_utime + usage.ru_stime:.1f} s, {usage.ru_maxrss / 2**20:.2f} GiB"
    told = f"peer: {PEER} {took} for LRUs of {len(points)} sizes"
    if not points:
        return told
    capacity, rate = points[-1]["cacheBlocks"], points[-1]["results"]["lru"]["hitRate"]
    mine = apart(ours, path, capacity)
    return f"{told}; of the last half it serves {rate:.2%} from {capacity:,} blocks, kvbench says {mine:.2%}"


def ours(path: Path, capacity: int) -> float:
    """Token hit rate of the last half of the requests, partial last blocks counted, as the peer counts."""
    trace = read_trace(path)
    keep, vllm = runs_of(trace).under("keep"), runs_of(trace).under("vllm")
    found = lru_request_stream(trace, keep, depths_of(keep), vllm, depths_of(vllm), [capacity])
    return float(found["keep_last_half"]["points"][0]["token_hit_rate"])


def apart(function: Callable[..., Answer], *arguments: object) -> Answer:
    """Called in a process of its own: a child's peak memory counts that of the process which started it."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def main() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    sizes = [float(text) for text in sys.argv[1:]] or [1, 3, 10]
    seconds: list[tuple[int, float]] = []
    with tempfile.TemporaryDirectory(prefix="kvbench-bench-") as folder:
        for millions in sizes:
            path = Path(folder) / "trace.jsonl"
            write_trace(path, int(millions * 1e6))
            count, curve_s, best = apart(curve_seconds, path)
            whole_s, peak = whole_seconds(path)
            seconds.append((count, whole_s))
            print(
                f"{count / 1e6:5.1f} million references ({path.stat().st_size / 1e6:.0f} MB): "
                f"exact LRU curve {curve_s:.2f} s, {count / curve_s / 1e6:.1f} million/s (reuse {best:.0%}); "
                f"analyze --json {whole_s:.1f} s, {peak:.2f} GiB",
                flush=True,
            )
            if len(seconds) == 1:
                plain, plain_s = apart(plain_seconds, path)
                rate = plain / plain_s / 1e6
                print(f"  plain reference: {plain:,} references in {plain_s:.1f} s, {rate:.2f} million/s")
            print(f"  {peer_words(path)}", flush=True)
    if len(seconds) > 1:
        (small, first), (large, last) = seconds[0], seconds[-1]
        power = math.log(last / first) / math.log(large / small)
        print(f"time grows as the references to the power of {power:.2f}")


if __name__ == "__main__":
    main()
