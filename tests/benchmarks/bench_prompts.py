"""How fast prompts are made and schedules are planned. Run: `python tests/benchmarks/bench_prompts.py`."""

from __future__ import annotations

import time
from collections.abc import Callable

from kvbench.plan.reuse import expected_sources
from kvbench.spec.workload import Workload
from kvbench.workload.build import build_schedule
from kvbench.workload.describe import describe
from kvbench.workload.prompts import PromptWriter, prompt_digest
from kvbench.workload.schedule import Segment

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


def best_of_five_s(work: Callable[[], object]) -> float:
    """The shortest of five runs in CPU seconds: what the machine does when nothing else is in the way."""
    times = []
    for _ in range(5):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def bench_prompts(token_id_range: tuple[int, int]) -> None:
    writer = PromptWriter(token_id_range)
    segments = [Segment(identity, 8192) for identity in range(100)]
    prompts = [writer.segment_ids(segment) for segment in segments]
    tokens = sum(map(len, prompts))
    json_bytes = sum(len(writer.ids_json(ids)) for ids in prompts)
    make_s = best_of_five_s(lambda: [writer.segment_ids(segment) for segment in segments])
    json_s = best_of_five_s(lambda: [writer.ids_json(ids) for ids in prompts])
    digest_s = best_of_five_s(lambda: [prompt_digest(ids) for ids in prompts])
    print(f"ids {token_id_range}: made {tokens / make_s / 1e6:.0f} M tokens/s (at least 20 wanted), ", end="")
    print(
        f"JSON {json_bytes / json_s / 1e6:.0f} MB/s (at least 100 wanted), digest {tokens / digest_s / 1e6:.0f} M/s"
    )


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


if __name__ == "__main__":
    for range_ in ((32, 255), (0, 31_999), (100, 128_000)):
        bench_prompts(range_)
    bench_planning()
