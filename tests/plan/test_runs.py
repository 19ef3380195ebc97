"""Runs, who shares and what admission costs, against counting block by block."""

from __future__ import annotations

from pathlib import Path
from random import Random
from statistics import variance

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.errors import Where
from kvbench.plan.admission import admission
from kvbench.plan.bursts import burstiness
from kvbench.plan.ideal import ideal
from kvbench.plan.runs import runs_of
from kvbench.plan.sharing import never_used_again, saved_tokens, sharing
from kvbench.workload.traces.trace import Columns, Record, Trace

SIZE = 4

chains = st.lists(
    st.tuples(st.lists(st.integers(0, 2), max_size=6), st.integers(-2 * SIZE, SIZE), st.integers(0, 2)),
    min_size=1,
    max_size=14,
)
loose = st.lists(
    st.tuples(st.lists(st.integers(0, 5), max_size=6), st.integers(-2 * SIZE, SIZE), st.integers(0, 2)),
    min_size=1,
    max_size=10,
)


def made(rows: list[tuple[list[int], int, int]], *, chained: bool) -> Trace:
    """Prompts of these blocks, a little shorter or longer than their ids say, in up to three sessions."""
    columns = Columns(Path("t"))
    for at, (path, more, session) in enumerate(rows):
        ids = [str(path[: depth + 1]) if chained else str(path[depth]) for depth in range(len(path))]
        tokens = max(0, len(path) * SIZE + more)
        columns.add(Record(float(at), tokens, 1, ids, session=session), Where(Path("t")))
    return columns.trace("sessions", 1.0, SIZE)


def served(trace: Trace, threshold: int) -> tuple[int, int]:
    """(Tokens served, blocks written) by a cache without limit that stores a block at its `threshold`-th use."""
    uses: dict[int, int] = {}
    tokens = 0
    for index in range(len(trace)):
        length = int(trace.input_tokens[index])
        path = trace.ids(index).tolist()
        for place, block in enumerate(path):
            if uses.get(block, 0) < threshold or (place + 1) * SIZE > length - 1:
                break
            tokens += SIZE
        for block in set(path[: length // SIZE]):
            uses[block] = uses.get(block, 0) + 1
    return tokens, sum(count >= threshold for count in uses.values())


@settings(max_examples=50, deadline=None)
@given(rows=chains)
def test_runs_are_the_blocks_of_the_trace_in_order(rows: list) -> None:
    check_runs(made(rows, chained=True))


def check_runs(trace: Trace) -> None:
    runs = runs_of(trace)
    assert runs.chained
    of_run: dict[int, list[int]] = {}
    for reference, run in enumerate(runs.runs.tolist()):
        begin = trace.offsets[runs.requests[reference]] + runs.positions[reference]
        start, size = int(begin), int(runs.sizes[reference])
        blocks = trace.blocks[start : start + size].tolist()
        assert of_run.setdefault(run, blocks) == blocks, "a run is taken whole"
        length = int(trace.input_tokens[runs.requests[reference]])
        first = int(runs.positions[reference])
        ends = [(place + 1) * SIZE for place in range(first, first + size)]
        assert {end <= length for end in ends} == {bool(runs.whole[reference])} or not runs.whole[reference]
        assert bool(runs.can_hit[reference]) == all(end < length for end in ends)
    assert runs.sizes.sum() == len(trace.blocks)
    assert sorted(block for blocks in of_run.values() for block in blocks) == sorted(set(trace.blocks.tolist()))


@settings(max_examples=50, deadline=None)
@given(rows=chains)
def test_saved_tokens_are_the_ideal_hits_and_every_owner_is_counted_once(rows: list) -> None:
    check_saved(made(rows, chained=True))


def check_saved(trace: Trace) -> None:
    runs = runs_of(trace)
    saved = saved_tokens(runs)
    told = sharing(trace, runs, saved)
    assert told["saved_tokens"] == ideal(trace, runs.under("keep"), runs.under("vllm"))["vllm"]["hit_tokens"]
    assert sum(told["saved_by"].values()) == told["saved_tokens"]
    assert sum(entry["saved_tokens"] for entry in told["top_prefixes"]) <= told["saved_tokens"]


@settings(max_examples=50, deadline=None)
@given(rows=st.one_of(chains, loose), chained=st.booleans(), threshold=st.sampled_from([1, 2, 3]))
def test_admission_serves_and_writes_what_a_simulated_tier_does(rows: list, chained: bool, threshold: int) -> None:
    check_admission(made(rows, chained=chained), threshold)


def check_admission(trace: Trace, threshold: int) -> None:
    entry = next(e for e in admission(runs_of(trace), 1) if e["store_threshold"] == threshold)
    assert (entry["hit_tokens"], entry["written_blocks"]) == served(trace, threshold)


@pytest.mark.parametrize("batch", range(4))
def test_thousands_of_small_random_traces_agree_with_counting_block_by_block(batch: int) -> None:
    """Given 500 traces a batch, then every figure that is compared above is equal on each of them."""
    random = Random(batch)
    for _ in range(500):
        wide, longest = random.randint(0, 5), random.randint(0, 8)
        rows = [
            (
                [random.randint(0, wide) for _ in range(random.randint(0, longest))],
                random.randint(-2 * SIZE, SIZE),
                random.randint(0, 3),
            )
            for _ in range(random.randint(1, 20))
        ]
        tree = made(rows, chained=True)
        check_runs(tree)
        check_saved(tree)
        check_admission(random.choice((tree, made(rows, chained=False))), random.randint(1, 3))


def test_owners_of_reuse_are_told_apart() -> None:
    # given 60 sessions with one beginning, two of which share a document, and one with a second turn
    paths = [["s", f"own-{number}"] for number in range(60)]
    paths[3] = paths[2] = ["s", "doc"]
    rows = [(path, number) for number, path in enumerate(paths)]
    rows.append((["s", "own-7", "turn-2"], 7))
    columns = Columns(Path("t"))
    for at, (path, session) in enumerate(rows):
        ids = ["/".join(path[: depth + 1]) for depth in range(len(path))]
        columns.add(Record(float(at), len(path) * SIZE + 1, 1, ids, session=session), Where(Path("t")))
    trace = columns.trace("sessions", 1.0, SIZE)
    runs = runs_of(trace)
    told = sharing(trace, runs, saved_tokens(runs))
    # then the beginning is a system prompt, the document is one, and the second turn had its first one back
    assert told["saved_by"] == {"same_session": SIZE, "system_prompts": 60 * SIZE, "documents": SIZE}
    top = told["top_prefixes"][0]
    assert (top["from_token"], top["to_token"], top["requests"], top["sessions"]) == (0, SIZE, 61, 60)
    assert never_used_again(runs) == {"blocks": 58, "of_blocks": 61, "share": pytest.approx(58 / 61)}


def test_sessions_are_counted_and_not_the_requests_before_them() -> None:
    """Given twenty conversations one after the other, of which two begin alike, then a tenth of all begins so."""
    columns, where = Columns(Path("t")), Where(Path("t"))
    for talk in range(20):
        path: list[str] = ["shared" if talk in (3, 17) else f"own-{talk}"]
        for turn in range(10):
            path = [*path, f"{talk}-{turn}"]
            at, chat = 10 * talk + turn, f"{talk}/{turn}"
            ids = ["/".join(path[: depth + 1]) for depth in range(len(path))]
            parent = f"{talk}/{turn - 1}" if turn else None
            columns.add(Record(float(at), len(path) * SIZE + 1, 1, ids, chat=chat, parent=parent), where)
    trace = columns.trace("bailian", 1.0, SIZE)
    runs = runs_of(trace)
    told = sharing(trace, runs, saved_tokens(runs))["saved_by"]
    assert (told["system_prompts"], told["documents"]) == (SIZE, 0)


def arrivals(*times: float) -> Trace:
    columns = Columns(Path("t"))
    for at in times:
        columns.add(Record(at, 10, 1, [1]), Where(Path("t")))
    return columns.trace("mooncake", 1.0, SIZE)


def test_steady_arrivals_have_no_dispersion_and_bursts_have() -> None:
    steady = burstiness(arrivals(*(second + 0.5 for second in range(100))))
    assert steady["windows"][0]["dispersion"] == 0
    assert steady["gap_cv"] == pytest.approx(0, abs=1e-9)
    # given ten requests close together every ten seconds
    bursts = burstiness(arrivals(*(10 * burst + 0.01 * n for burst in range(20) for n in range(10))))
    assert bursts["windows"][0]["dispersion"] > 8
    assert bursts["windows"][0]["peak_requests"] == 10
    assert bursts["gap_cv"] > 2


def test_a_clock_coarser_than_the_arrivals_says_nothing_of_gaps() -> None:
    batched = burstiness(arrivals(*(3.0 * (n // 10) for n in range(800))))
    assert batched["gap_cv"] is None
    assert batched["time_step_s"] == 3.0
    assert [window["window_s"] for window in batched["windows"]] == [10, 60]


def test_a_single_far_time_takes_no_memory_and_windows_are_counted_with_the_empty_ones() -> None:
    """Given two bursts with ever more time between them, then every window between is counted, and none is kept."""
    near = burstiness(arrivals(*(0.1 * n for n in range(10)), 99.5))
    assert near["windows"][0]["mean_requests"] == 10 / 99
    counts = [10] + [0] * 98
    assert near["windows"][0]["dispersion"] == pytest.approx(variance(counts) / (10 / 99))
    assert near["windows"][0]["peak_over_mean_prompt_tokens"] == pytest.approx(99)
    far = burstiness(arrivals(0.0, 0.5, 1e15))
    assert far["windows"][0]["mean_requests"] == pytest.approx(2e-15)
