"""How fast prompts are made and schedules are planned. Run: `python tests/benchmarks/bench_prompts.py`.

Exits with 1 unless at least 20 million tokens/s are made and 100 MB/s of JSON encoded on one core; medians of five.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from kvbench.plan.reuse import expected_sources
from kvbench.spec.workload import Workload
from kvbench.workload.build import build_schedule
from kvbench.workload.describe import describe
from kvbench.workload.prompts import PromptWriter, prompt_digest
from kvbench.workload.schedule import Segment
from tests.benchmarks.wanted import ASKED_RUNS, Wanted

MADE_M_PER_S, ENCODED_MB_PER_S = 20.0, 100.0
WORKLOAD = {
    "name": "bench",
    "arrivals": {"process": "poisson", "rate": "100/s"},
    "phases": [{"name": "steady", "for": "1000s"}],
    "classes": {
        "long": {
            "prefix": {"tokens": 8192, "pool": 240, "popularity": {"zipf": 0.6}},
            "suffix_tokens": 64,
            "output_tokens": 64,
        }
    },
}


def median_s(work: Callable[[], object]) -> float:
    """CPU seconds."""
    times = []
    for _ in range(ASKED_RUNS):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return statistics.median(times)


def bench_prompts(token_id_range: tuple[int, int]) -> dict[str, float]:
    writer = PromptWriter(token_id_range)
    segments = [Segment(identity, 8192) for identity in range(100)]
    prompts = [writer.segment_ids(segment) for segment in segments]
    tokens = sum(map(len, prompts))
    json_bytes = sum(len(writer.ids_json(ids)) for ids in prompts)
    return {
        "made": tokens / median_s(lambda: [writer.segment_ids(segment) for segment in segments]) / 1e6,
        "encoded": json_bytes / median_s(lambda: [writer.ids_json(ids) for ids in prompts]) / 1e6,
        "digested": tokens / median_s(lambda: [prompt_digest(ids) for ids in prompts]) / 1e6,
    }


def judge(wanted: Wanted, token_id_range: tuple[int, int], found: dict[str, float]) -> None:
    wanted.at_least(f"ids {token_id_range}: made", found["made"], MADE_M_PER_S, " M tokens/s")
    wanted.at_least(f"ids {token_id_range}: JSON", found["encoded"], ENCODED_MB_PER_S, " MB/s")


def bench_planning() -> None:
    start = time.process_time()
    spec = Workload.model_validate(WORKLOAD)
    schedule = build_schedule(spec, 0, block_tokens=16, capacities_tokens=None, max_model_len=None)
    built = time.process_time()
    describe(schedule, 16)
    described = time.process_time()
    expected_sources(schedule, block_tokens=16, device_blocks=25_000, host_blocks=50_000, disk=True)
    replayed = time.process_time()
    print(f"{len(schedule)} requests of 8k tokens: built in {built - start:.1f} s, ", end="")
    print(f"described in {described - built:.1f} s, replayed in {replayed - described:.1f} s")


def main() -> int:
    """0 when everything holds."""
    wanted = Wanted()
    for range_ in ((32, 255), (0, 31_999), (100, 128_000)):
        found = bench_prompts(range_)
        print(f"ids {range_}: digested {found['digested']:.0f} M tokens/s")
        judge(wanted, range_, found)
    bench_planning()
    return wanted.end()


if __name__ == "__main__":
    sys.exit(main())
