"""Time to read a large exposition: `python -m tests.benchmarks.bench_exposition [MEGABYTES]`.

The page is what one server of many data-parallel ranks exposes: vLLM's families for as many ranks as make 5 MB, in
the shape of a captured page where the reference data is at hand (KVBENCH_SHARED), else made from the table.
The budget is 50 ms of processor time, the best of several runs, for what every scrape costs: the text to the
samples of all families with a canonical name, without buckets; beyond it, at 5 MB, the exit status is 1.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from kvbench.observe.canonical import MAPPINGS, canonical, parse_engine
from kvbench.observe.continuity import falls
from kvbench.observe.identities import identity_gaps

BUDGET_MS, BUDGET_MB = 50.0, 5.0
REPEATS = 15
EDGES = (*(0.001 * 2**n for n in range(22)), float("inf"))
CAPTURED = Path("facts/vllm-0.32.0/tiering-after-load.prom")
Page = tuple[list[tuple[str, bool]], str]
"""Lines of a page of one rank, with whether each comes once a rank; and how to name the page."""


def page() -> Page:
    """A captured page, or one made from the table."""
    root = os.environ.get("KVBENCH_SHARED", Path(__file__).resolve().parents[3] / "shared")
    captured = Path(root) / CAPTURED
    if captured.is_file():
        lines = captured.read_text(encoding="utf-8").split("\n")
        return [(line, 'engine="0"' in line) for line in lines if line], f"captured {CAPTURED.name}"
    return list(made()), "made from the table of names"


def made() -> Iterator[tuple[str, bool]]:
    """Every family of vLLM in the table, each with the series that the client library adds."""
    labels = 'engine="0",model_name="tiny"'
    for family, kind in {m.family: m.metric.kind for m in MAPPINGS if m.family.startswith("vllm:")}.items():
        name = family + ("_total" if kind == "counter" else "")
        yield f"# HELP {name} What {family} says.", False
        yield f"# TYPE {name} {kind}", False
        if kind == "histogram":
            for edge in EDGES:
                yield f'{family}_bucket{{{labels},le="{edge}"}} 7.0', True
            yield f"{family}_count{{{labels}}} 7.0", True
            yield f"{family}_sum{{{labels}}} 12.25", True
        else:
            yield f"{name}{{{labels}}} 48758784.0", True
        if kind != "gauge":
            yield f"# TYPE {family}_created gauge", False
            yield f"{family}_created{{{labels}}} 1.7959590232e+09", True


def of_ranks(lines: list[tuple[str, bool]], size: int) -> tuple[str, int]:
    """A page of at least `size` bytes, and the number of its ranks. Of each family one rank follows the other."""
    shared = sum(len(line) + 1 for line, each in lines if not each)
    ranks = -(-(size - shared) // sum(len(line) + 1 for line, each in lines if each))
    several: list[str] = []
    for each, block in groupby(lines, key=lambda line: line[1]):
        text = "\n".join(line for line, _ in block)
        several += [text.replace('engine="0"', f'engine="{rank}"') for rank in range(ranks if each else 1)]
    return "\n".join(several) + "\n", ranks


def timed(what: str, work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Print the median of several runs, by the clock and in processor time: on a busy host they are far apart. The
    best processor time is given back, in milliseconds: what shares the core slows the others down."""
    took, used = [], []
    for _ in range(repeats):
        began, cpu = time.perf_counter(), time.process_time()
        work()
        took.append(1000 * (time.perf_counter() - began))
        used.append(1000 * (time.process_time() - cpu))
    print(
        f"{what:52} {statistics.median(took):7.1f} ms (best {min(took):.1f}); "
        f"processor {statistics.median(used):7.1f} ms (best {min(used):.1f}); of {repeats}"
    )
    return min(used)


def main() -> None:
    """Build the page, read it, and say what each step takes; exit with 1 when reading takes more than may be."""
    size = int(1e6 * float(sys.argv[1] if len(sys.argv) > 1 else BUDGET_MB))
    lines, source = page()
    text, ranks = of_ranks(lines, size)
    read = parse_engine(text, buckets=False)
    wanted = sum(len(samples) for samples in read.families.values())
    size_mb, count = len(text.encode()) / 1e6, text.count("\n")
    print(f"{size_mb:.2f} MB, {count:,} lines, {ranks} ranks ({source}); {wanted:,} samples wanted")
    took_ms = timed("samples of every family in the table, no buckets", lambda: parse_engine(text, buckets=False))
    timed("the same with buckets", lambda: parse_engine(text))
    timed("canonical samples of it", lambda: canonical(read))
    timed("identities of it", lambda: list(identity_gaps(read)))
    timed("what fell since the scrape before", lambda: falls(read, read))
    body = text.encode()
    timed("all of these from bytes: one scrape", lambda: _everything(body))
    timed("the client library's parser, for comparison", lambda: list(text_string_to_metric_families(text)), 1)
    if took_ms > BUDGET_MS * max(size_mb / BUDGET_MB, 1.0):
        sys.exit(
            f"BEYOND THE BUDGET of {BUDGET_MS:g} ms for {BUDGET_MB:g} MB: {took_ms:.1f} ms for {size_mb:.1f} MB"
        )


def _everything(body: bytes) -> None:
    read = parse_engine(body.decode("utf-8", "replace"), buckets=False)
    canonical(read)
    falls(read, read)
    list(identity_gaps(read))


if __name__ == "__main__":
    main()
