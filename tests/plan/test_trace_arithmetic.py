"""The fast arithmetic gives what slow, obvious simulations give, and what was counted by hand."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.errors import Where
from kvbench.plan.depths import depths_of
from kvbench.plan.hierarchy import INCLUSIONS, hierarchy
from kvbench.plan.ideal import ideal, reuse_time_s
from kvbench.plan.lru import flat_stack_distance, lru_request_stream, ttl, usual_capacities
from kvbench.plan.runs import Runs, runs_of
from kvbench.plan.stack import NEVER, stack_distances, sum_greater
from kvbench.workload.traces.trace import Columns, Record, Trace, Whole
from tests.plan.slow_arc import SlowArc

SIZE = 4


def trace_of(*requests: tuple[float, int, list[int]]) -> Trace:
    """Requests as (seconds, prompt tokens, ids)."""
    columns = Columns(Path("t"))
    for at, tokens, ids in requests:
        columns.add(Record(at, tokens, 1, ids), Where(Path("t")))
    return columns.trace("mooncake", 1.0, SIZE)


HAND = [(0, "abc"), (10, "abd"), (30, "abc"), (31, "xyz"), (61, "ab"), (62, "abcq")]
TINY = trace_of(*((float(at), len(path) * SIZE, [ord(block) for block in path]) for at, path in HAND))

ids = st.lists(st.integers(0, 7), max_size=6)
requests = st.lists(
    st.tuples(st.integers(0, 50).map(float), ids, st.integers(0, SIZE - 1)), min_size=1, max_size=12
)


def made(rows: list[tuple[float, list[int], int]]) -> Trace:
    """Any ids in any order, some twice in a request; the last block may be partial."""
    return trace_of(*((at, max(0, len(path) * SIZE - less), path) for at, path, less in rows))


def chained(rows: list[tuple[float, list[int], int]]) -> Trace:
    """The same prompts, with ids that stand for everything before them."""
    return trace_of(
        *(
            (at, max(0, len(path) * SIZE - less), [hash(tuple(path[: n + 1])) for n in range(len(path))])
            for at, path, less in rows
        )
    )


kinds = st.sampled_from([made, chained])


def streams(trace: Trace, capacities: list[int]) -> dict:
    keep, vllm = runs_of(trace).under("keep"), runs_of(trace).under("vllm")
    return lru_request_stream(trace, keep, depths_of(keep), vllm, depths_of(vllm), capacities)


def ideals(trace: Trace) -> dict:
    return ideal(trace, runs_of(trace).under("keep"), runs_of(trace).under("vllm"))


def each_block(runs: Runs, depths: Whole, *, rising: bool) -> list[int]:
    """From runs to blocks."""
    return [
        depth + place * (rising and depth < NEVER)
        for depth, size in zip(depths.tolist(), runs.sizes.tolist(), strict=True)
        for place in range(size)
    ]


def paths(trace: Trace, tail: str) -> list[list[tuple[int, bool]]]:
    """Of each request the blocks that count, and whether each may hit."""
    found = []
    for index in range(len(trace)):
        tokens = int(trace.input_tokens[index])
        path = trace.ids(index).tolist()
        whole = path if tail == "keep" else path[: tokens // SIZE]
        most = len(whole) if tail != "vllm" else (tokens - 1) // SIZE
        found.append([(block, place < most) for place, block in enumerate(whole)])
    return found


def test_counted_by_hand() -> None:
    keep = ideals(TINY)["keep"]
    assert (keep["hit_blocks"], keep["total_blocks"]) == (10, 18)
    points = streams(TINY, range(1, 7))["keep_all"]["points"]
    assert [point["hit_blocks"] for point in points] == [3, 6, 6, 8, 9, 10]
    assert reuse_time_s(TINY, runs_of(TINY))["p50"] == 20.0


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.integers(0, 40), max_size=40),
    queries=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 60)), max_size=20),
)
def test_counting_the_greater_ones(values: list[int], queries: list[tuple[int, int]]) -> None:
    ends = [min(end, len(values)) for end, _ in queries]
    thresholds = [threshold for _, threshold in queries]
    counted = (np.array(values, np.int64), np.array(ends, np.int64), np.array(thresholds, np.int64))
    found = sum_greater(counted[0], None, *counted[1:])
    assert found.tolist() == [sum(v > t for v in values[:end]) for end, t in zip(ends, thresholds, strict=True)]
    weighed = sum_greater(counted[0], 3 * counted[0] + 1, *counted[1:])
    slow = [sum(3 * v + 1 for v in values[:end] if v > t) for end, t in zip(ends, thresholds, strict=True)]
    assert weighed.tolist() == slow


@settings(max_examples=80, deadline=None)
@given(stream=st.lists(st.integers(0, 9), max_size=60))
def test_stack_distances_are_distinct_others_since_the_last_touch(stream: list[int]) -> None:
    check_distances(stream)


def check_distances(stream: list[int]) -> None:
    slow = []
    for place, block in enumerate(stream):
        before = [p for p in range(place) if stream[p] == block]
        slow.append(len(set(stream[before[-1] + 1 : place])) if before else NEVER)
    assert stack_distances(np.array(stream, np.int64)).tolist() == slow


@settings(max_examples=80, deadline=None)
@given(make=kinds, rows=requests, capacity=st.integers(1, 10), tail=st.sampled_from(["keep", "vllm"]))
def test_every_lru_hits_what_a_simulated_one_hits(make: Callable, rows: list, capacity: int, tail: str) -> None:
    check_lru(make(rows), capacity, tail)


def check_lru(trace: Trace, capacity: int, tail: str) -> None:
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for path in paths(trace, tail):
        for block, allowed in path:
            if not allowed or block not in cache:
                break
            hits += 1
        for block, _ in reversed(path):
            cache[block] = None
            cache.move_to_end(block)
        while len(cache) > capacity:
            cache.popitem(last=False)
    name = "keep_all" if tail == "keep" else "vllm_all"
    assert streams(trace, [capacity])[name]["points"][0]["hit_blocks"] == hits


@settings(max_examples=60, deadline=None)
@given(make=kinds, rows=requests)
def test_the_depth_on_arrival_is_the_place_in_the_stack_before_the_request(make: Callable, rows: list) -> None:
    check_depths(make(rows))


def check_depths(trace: Trace) -> None:
    runs = runs_of(trace)
    stack: list[int] = []
    slow = []
    for path in paths(trace, "keep"):
        slow += [stack.index(block) if block in stack else NEVER for block, _ in path]
        for block, _ in reversed(path):
            if block in stack:
                stack.remove(block)
            stack.insert(0, block)
    assert each_block(runs, depths_of(runs).arrival, rising=True) == slow


@settings(max_examples=60, deadline=None)
@given(make=kinds, rows=requests, limit=st.integers(0, 40), tail=st.sampled_from(["keep", "drop", "vllm"]))
def test_a_ttl_serves_what_was_used_recently_enough(make: Callable, rows: list, limit: int, tail: str) -> None:
    check_ttl(make(rows), limit, tail)


def check_ttl(trace: Trace, limit: int, tail: str) -> None:
    used: dict[int, float] = {}
    hits = total = 0
    for index, path in enumerate(paths(trace, tail)):
        now = float(trace.times_s[index])
        total += len(path)
        for block, allowed in path:
            if not allowed or now - used.get(block, -1e9) > limit:
                break
            hits += 1
        used |= {block: now for block, _ in path}
    rate = ttl(trace, runs_of(trace).under(tail), [limit])[0]["block_hit_rate"]
    assert rate == (hits / total if total else None)


def simulated(
    trace: Trace, sizes: list[int], mode: str, tail: str, arc: int | None = None
) -> tuple[list[int], list[int]]:
    """Hits and writes of every tier, one block at a time; the tier `arc` takes a request's blocks together."""
    # lists have the most recent block last
    tiers: list = [SlowArc(size) if number == arc else [] for number, size in enumerate(sizes)]
    hits, writes = [0] * len(sizes), [0] * len(sizes)

    def put(number: int, block: int) -> int | None:
        """Put in or renew; returns the block that had to leave."""
        tier = tiers[number]
        writes[number] += block not in tier
        if block in tier:
            tier.remove(block)
        tier.append(block)
        return tier.pop(0) if len(tier) > sizes[number] else None

    for path in paths(trace, tail):
        by: list[int] = []
        for block, allowed in path:
            holding = next((number for number, tier in enumerate(tiers) if block in tier), None)
            if not allowed or holding is None:
                break
            by.append(holding)
            hits[holding] += 1
        if mode == "exclusive":
            for block, _ in reversed(path):
                for tier in tiers[1:]:
                    if block in tier:
                        tier.remove(block)
                victim: int | None = block
                for number in range(len(sizes)):
                    victim = put(number, victim)
                    if victim is None:
                        break
        else:
            together: list[int] = []
            for place in reversed(range(len(path))):
                served = by[place] if place < len(by) else len(sizes)
                lowest = len(sizes) - 1 if mode == "inclusive_touch_all" else min(served, len(sizes) - 1)
                for number in range(lowest + 1):
                    if number == arc:
                        together.insert(0, path[place][0])
                    else:
                        put(number, path[place][0])
            if arc is not None:
                tiers[arc].use(together)
                writes[arc] = tiers[arc].writes
    return hits, writes


@settings(max_examples=120, deadline=None)
@given(
    make=kinds,
    rows=requests,
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    mode=st.sampled_from(INCLUSIONS),
    tail=st.sampled_from(["keep", "drop", "vllm"]),
)
def test_tiers_do_what_simulated_ones_do(make: Callable, rows: list, sizes: list, mode: str, tail: str) -> None:
    check_tiers(make(rows), sizes, mode, tail)


def check_tiers(trace: Trace, sizes: list[int], mode: str, tail: str, arc: int | None = None) -> None:
    runs = runs_of(trace).under(tail)
    use = hierarchy(runs, depths_of(runs), sizes, mode, int(trace.input_tokens.sum()), arc=arc)
    assert (list(use.hit_blocks), list(use.writes)) == simulated(trace, sizes, mode, tail, arc)


@settings(max_examples=100, deadline=None)
@given(
    make=kinds,
    rows=st.lists(st.tuples(st.integers(0, 50).map(float), ids, st.integers(0, SIZE - 1)), min_size=6, max_size=30),
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=3),
    arc=st.integers(0, 2),
    mode=st.sampled_from(["inclusive_touch_all", "inclusive_filtered"]),
    tail=st.sampled_from(["keep", "drop", "vllm"]),
)
def test_a_tier_under_arc_does_what_a_simulated_one_does(
    make: Callable, rows: list, sizes: list, arc: int, mode: str, tail: str
) -> None:
    check_tiers(make(rows), sizes, mode, tail, min(arc, len(sizes) - 1))


def random_rows(random: Random) -> list[tuple[float, list[int], int]]:
    """Requests at any times that share beginnings, of few or many different blocks."""
    blocks, longest = random.randint(1, 12), random.randint(1, 8)
    found: list[tuple[float, list[int], int]] = []
    for _ in range(random.randint(1, 24)):
        path = [random.randint(0, blocks) for _ in range(random.randint(0, longest))]
        if found and random.random() < 0.5:
            earlier = random.choice(found)[1]
            path = earlier[: random.randint(0, len(earlier))] + path
        found.append((float(random.randint(0, 50)), path[:10], random.randint(0, SIZE - 1)))
    return found


@pytest.mark.parametrize("batch", range(4))
def test_thousands_of_small_random_traces_agree_with_the_slow_references(batch: int) -> None:
    """Given 500 traces a batch, then every figure that is compared above is equal on each of them."""
    random = Random(batch)
    for _ in range(500):
        trace = random.choice((made, chained))(random_rows(random))
        tail = random.choice(("keep", "drop", "vllm"))
        sizes = [random.randint(1, 12) for _ in range(random.randint(1, 3))]
        check_distances(trace.blocks.tolist())
        check_depths(trace)
        check_lru(trace, random.randint(1, 15), random.choice(("keep", "vllm")))
        check_ttl(trace, random.randint(0, 40), tail)
        check_tiers(trace, sizes, random.choice(INCLUSIONS), tail)
        check_tiers(trace, sizes, random.choice(INCLUSIONS[1:]), tail, random.randrange(len(sizes)))


def test_arc_keeps_what_is_used_again_when_much_passes_by() -> None:
    """Given a prompt that is sent twice and then again after many others, then ARC has it where LRU lost it."""
    requests = [
        (float(at), 4 * SIZE, list(range(4)) if at % 12 < 2 else [100 * at + block for block in range(4)])
        for at in range(240)
    ]
    trace = trace_of(*requests)
    runs = runs_of(trace).under("keep")
    lru, arc = (
        hierarchy(runs, depths_of(runs), [1, 16], "inclusive_touch_all", 240 * 4 * SIZE, arc=tier).hit_blocks[1]
        for tier in (None, 1)
    )
    assert arc > 1.8 * lru


def test_flat_distances_and_capacities_of_a_trace() -> None:
    runs = runs_of(TINY)
    flat = flat_stack_distance(runs, depths_of(runs), [1, 2, 6])
    assert [point["hits"] for point in flat["lru"]] == [0, 2, 10]
    assert usual_capacities(8) == (1, 2, 3, 4, 5, 6, 7, 8)


@pytest.mark.parametrize("rows", [[(0.0, [], 0)], [(0.0, [1], 3), (1.0, [], 0)]])
def test_requests_without_blocks_count_as_nothing(rows: list) -> None:
    trace = made(rows)
    for rule in ideals(trace).values():
        assert rule["hit_blocks"] == 0
        assert rule["requests_fully_hit"] == 0
    assert reuse_time_s(trace, runs_of(trace)) == {"n": 0}
