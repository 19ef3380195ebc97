"""Block lists are kept as a tree where ids are chained: the same lists, and the same runs without them."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from random import Random
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.errors import Where
from kvbench.plan.analysis import Question, analyse
from kvbench.plan.runs import Runs, runs_of
from kvbench.plan.spread import Rows, log2_histogram, percentiles
from kvbench.workload.traces import block_tree
from kvbench.workload.traces.numbering import Numbering
from kvbench.workload.traces.trace import Columns, Record, Trace

SIZE = 4


def random_lists(random: Random, *, chained: bool, large: bool) -> list[tuple[float, list[int]]]:
    """Times and ids of requests that share beginnings; ids are small numbers or any of 62 bits."""
    paths: list[list[int]] = []
    found: list[tuple[float, list[int]]] = []
    for _ in range(random.randint(0, 16)):
        path = [random.randint(0, 3) for _ in range(random.randint(0, 6))]
        if paths and random.random() < 0.6:
            earlier = random.choice(paths)
            path = earlier[: random.randint(0, len(earlier))] + path
        paths.append(path)
        keys = [tuple(path[: end + 1]) for end in range(len(path))] if chained else path
        ids = [
            hash(key) >> 2 if large else sum((b + 1) * 5**n for n, b in enumerate(np.atleast_1d(key)))
            for key in keys
        ]
        found.append((float(random.randint(0, 20)), [int(id_) for id_ in ids]))
    return found


def collected(rows: list[tuple[float, list[int]]], random: Random) -> Trace:
    columns = Columns(Path("t"))
    for at, ids in rows:
        tokens = max(0, len(ids) * SIZE + random.randint(-2 * SIZE, 2 * SIZE))
        columns.add(Record(at, tokens, 1, ids), Where(Path("t")))
    return columns.trace("mooncake", 1.0, SIZE)


@pytest.mark.parametrize("folded", [1, 5, 1 << 21])
@pytest.mark.parametrize("batch", range(4))
def test_a_tree_gives_the_lists_of_the_file_and_the_runs_that_lists_give(batch: int, folded: int) -> None:
    random = Random(batch)
    trees = 0
    for _ in range(100):
        chained = random.random() < 0.7
        rows = random_lists(random, chained=chained, large=random.random() < 0.5)
        with mock.patch.object(block_tree, "_FOLDED", folded):
            trace = collected(rows, random)
        numbers: dict[int, int] = {}
        for _, ids in rows:
            for id_ in ids:
                numbers.setdefault(id_, len(numbers))
        in_time = sorted(rows, key=lambda row: row[0])
        assert [trace.ids(i).tolist() for i in range(len(trace))] == [
            [numbers[x] for x in ids] for _, ids in in_time
        ]
        listed = replace(trace, tree=None, listed=trace.blocks)
        assert trace.is_chained() == listed.is_chained() == (trace.tree is not None)
        assert trace.is_chained() or not chained
        assert_equal(runs_of(trace), runs_of(listed))
        trees += trace.tree is not None
        assert trace.head(3).blocks.tolist() == trace.blocks[: trace.head(3).offsets[-1]].tolist()
    assert 50 < trees < 95


def assert_equal(found: Runs, true: Runs) -> None:
    for each in fields(Runs):
        assert np.array_equal(getattr(found, each.name), getattr(true, each.name)), each.name


def test_an_analysis_of_chained_ids_never_looks_at_single_references() -> None:
    trace = collected(random_lists(Random(1), chained=True, large=True), Random(1))
    document = analyse(trace, Question())
    assert document["basic"]["total_refs"] > document["basic"]["unique_blocks"]
    assert "blocks" not in vars(trace), "the lists were made"


@settings(max_examples=200, deadline=None)
@given(
    parts=st.lists(
        st.lists(
            st.one_of(st.integers(0, 40), st.integers(-(2**62), 2**63 - 1), st.integers(0, 10**6)), max_size=12
        ),
        max_size=6,
    )
)
def test_ids_are_numbered_in_the_order_of_their_first_appearance(parts: list[list[int]]) -> None:
    numbering, numbers = Numbering(), {}
    for part in parts:
        for id_ in part:
            numbers.setdefault(id_, len(numbers))
        assert numbering.numbers(np.array(part, np.int64)).tolist() == [numbers[id_] for id_ in part]
    assert numbering.count == len(numbers)


@settings(max_examples=200, deadline=None)
@given(rows=st.lists(st.tuples(st.integers(0, 50), st.integers(1, 6)), max_size=9), never=st.integers(0, 3))
def test_rows_are_spread_as_their_numbers_are(rows: list[tuple[int, int]], never: int) -> None:
    first, sizes = (np.array([row[place] for row in rows], np.int64) for place in (0, 1))
    each = np.array([start + n for start, size in rows for n in range(size)], np.int64)
    found = Rows.of(first, sizes)
    assert found.percentiles() == pytest.approx(percentiles(each))
    assert found.log2_histogram(never=never) == log2_histogram(each, never=never)
