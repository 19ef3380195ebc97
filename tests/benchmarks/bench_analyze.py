"""How fast traces are analysed: `python tests/benchmarks/bench_analyze.py [MILLIONS ...]`. One core; on stdout.

Generated Mooncake-like traces (blocks of 512 tokens, requests in batches of three seconds, conversations that grow,
a few system prompts, most contents new) of 1, 3 and 10 million block references. For each: the exact LRU curve from
the trace in memory, and the whole of `kvbench analyze --json` as a process of its own, with its peak memory; then
how its time grows from size to size, and how the memory of the curve grows when a trace is played three times over
(three times the references to the same blocks). Exits with 1 where a limit below is missed; seconds are CPU seconds
of one core. Limits at ten million references are judged only where a trace of that size is asked for.

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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

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
CURVE_A_SECOND = 3e6
"""References, at least."""
FULL_SIZE = 10e6
FULL_SIZE_S, FULL_SIZE_BYTES = 15.0, 2e9
"""What the whole command may take at that size."""
GROWTH = 1.15
"""The time beyond that of an empty trace may grow by so much more than n log n from one size to the next: what two
measurements of one command differ by."""
SAME_BLOCKS, SAME_REFERENCES = 3, 3_000_000
"""How often so many references are played; fewer are read in one go, and the reader's own memory would count."""
BYTES_A_REFERENCE = 16.0
"""What a further reference to a block that was there before may add to the peak of the curve: two numbers, for the
share that it has in its request and its prefixes."""
REPEATS = 3
"""Of the whole command; the fastest counts, since whatever else the machine does takes processor time from it."""
PEER = "kvcache-simulator"
PEER_MODEL = "llama-3.1-8b"


def requests(references: int, seed: int = 1) -> Iterator[dict[str, Any]]:
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


def write_trace(path: Path, references: int, times: int = 1) -> None:
    """As one JSON record a line; everything so many times, one after the other."""
    end_ms = 0
    with path.open("w") as file:
        for again in range(times):
            for record in requests(references):
                end_ms = max(end_ms, record["timestamp"]) if again == 0 else end_ms
                shifted = {**record, "timestamp": record["timestamp"] + again * (end_ms + 3000)}
                file.write(json.dumps(shifted) + "\n")


@dataclass(frozen=True)
class Curve:
    references: int
    seconds: float
    served: float
    """Share that an unlimited cache serves."""
    peak_bytes: int
    """Of the process that read the trace and made the curve."""


def curve_of(path: Path) -> Curve:
    """The exact curve, made in this process."""
    trace = read_trace(path)
    began = time.process_time()
    vllm = runs_of(trace).under("vllm")
    curve = hit_curve(vllm, depths_of(vllm), int(trace.input_tokens.sum()))
    took_s = time.process_time() - began
    return Curve(trace.references, took_s, curve.best, _peak_bytes())


def _peak_bytes() -> int:
    """Of this process alone: what `getrusage` says counts the process that started it as well."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) * 1024


def whole_seconds(path: Path) -> tuple[float, int]:
    """(CPU seconds of the whole command, bytes at its peak), the least and the most of all repeats."""
    each = [once_seconds(path) for _ in range(REPEATS)]
    return min(seconds for seconds, _ in each), max(peak for _, peak in each)


def once_seconds(path: Path) -> tuple[float, int]:
    """Of one run of the command."""
    command = [sys.executable, "-m", "kvbench", "analyze", str(path), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"analyze ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


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


@dataclass(frozen=True)
class Size:
    """One trace, measured."""

    curve: Curve
    whole_s: float
    whole_bytes: int


def misses(sizes: Sequence[Size], empty_s: float, bytes_a_reference: float) -> Iterator[str]:
    """Every limit that does not hold."""
    for size in sizes:
        count, rate = size.curve.references, size.curve.references / size.curve.seconds
        if rate < CURVE_A_SECOND:
            yield f"the curve of {count:,} references: {rate:,.0f} a second, not {CURVE_A_SECOND:,.0f}"
        if count >= FULL_SIZE and size.whole_s >= FULL_SIZE_S:
            yield f"analyze of {count:,} references: {size.whole_s:.1f} s, not below {FULL_SIZE_S:g}"
        if count >= FULL_SIZE and size.whole_bytes >= FULL_SIZE_BYTES:
            yield f"analyze of {count:,} references: {size.whole_bytes / 1e9:.2f} GB, not below 2"
    for small, large in pairwise(sizes):
        grown, most = growth(small, large, empty_s)
        if grown > GROWTH * most:
            yield f"from {small.curve.references:,} references to {large.curve.references:,}: {grown:.2f} times"
    if bytes_a_reference > BYTES_A_REFERENCE:
        yield f"{bytes_a_reference:.0f} bytes for each further reference to the same blocks"


def growth(small: Size, large: Size, empty_s: float) -> tuple[float, float]:
    """(Times the seconds beyond those of an empty trace, times n log n)."""
    (few, few_s), (many, many_s) = ((size.curve.references, size.whole_s - empty_s) for size in (small, large))
    return many_s / few_s, many * math.log(many) / (few * math.log(few))


def same_blocks(path: Path) -> float:
    """Bytes at the peak of the curve for each further reference to blocks that were there before."""
    peaks = []
    for times in (1, SAME_BLOCKS):
        apart(write_trace, path, SAME_REFERENCES, times)
        peaks.append(apart(curve_of, path))
    return (peaks[1].peak_bytes - peaks[0].peak_bytes) / (peaks[1].references - peaks[0].references)


def main() -> int:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    asked = [float(text) for text in sys.argv[1:]] or [1, 3, 10]
    sizes: list[Size] = []
    with tempfile.TemporaryDirectory(prefix="kvbench-bench-") as folder:
        path = Path(folder) / "trace.jsonl"
        write_trace(path, 100)
        empty_s, _ = whole_seconds(path)
        for millions in asked:
            apart(write_trace, path, int(millions * 1e6))
            size = Size(apart(curve_of, path), *whole_seconds(path))
            sizes.append(size)
            count, curve = size.curve.references, size.curve
            print(
                f"{count / 1e6:5.1f} million references ({path.stat().st_size / 1e6:.0f} MB): "
                f"exact LRU curve {curve.seconds:.2f} s, {count / curve.seconds / 1e6:.1f} million/s (reuse "
                f"{curve.served:.0%}); analyze --json {size.whole_s:.1f} s, {size.whole_bytes / 1e9:.2f} GB",
                flush=True,
            )
            if len(sizes) == 1:
                plain, plain_s = apart(plain_seconds, path)
                rate = plain / plain_s / 1e6
                print(f"  plain reference: {plain:,} references in {plain_s:.1f} s, {rate:.2f} million/s")
            print(f"  {peer_words(path)}", flush=True)
        further = same_blocks(path)
    print(f"an empty trace: {empty_s:.1f} s; without it, from size to size:")
    for small, large in pairwise(sizes):
        grown, most = growth(small, large, empty_s)
        more = large.curve.references / small.curve.references
        print(f"  {more:.1f} times the references: {grown:.2f} times the seconds (n log n: {most:.2f} times)")
    print(f"{SAME_BLOCKS} times the references to the same blocks: {further:.0f} bytes for each further one")
    found = list(misses(sizes, empty_s, further))
    for miss in found:
        print(f"MISSED: {miss}")
    if not any(size.curve.references >= FULL_SIZE for size in sizes):
        print("not judged: the whole command at ten million references")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
