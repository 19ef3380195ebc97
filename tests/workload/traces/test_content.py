"""Equal ids become equal tokens and different ones differ, at every scale; lengths keep their proportions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.errors import InputError
from kvbench.workload.prompts import PromptWriter
from kvbench.workload.schedule import Segment
from kvbench.workload.traces.content import contents, scaled
from kvbench.workload.traces.trace import Columns, Record, Trace

WRITER = PromptWriter((32, 32_000))
SIZE = 32


def trace_of(*requests: tuple[int, list[int]], size: int = SIZE) -> Trace:
    """Requests as (prompt tokens, ids)."""
    from kvbench.errors import Where

    columns = Columns(Path("t"))
    for at, (tokens, ids) in enumerate(requests):
        columns.add(Record(float(at), tokens, 1, ids), Where(Path("t")))
    return columns.trace("mooncake", 1e-3, size)


def prompts_of(trace: Trace, scale: float = 1.0, tail: str = "keep") -> list[tuple[Segment, ...]]:
    return list(contents(scaled(trace, scale), identity=lambda i: 1000 + i, own=lambda i: 9000 + i, tail=tail))


def tokens_of(prompt: tuple[Segment, ...]) -> list[int]:
    return [id_ for segment in prompt for id_ in WRITER.segment_ids(segment).tolist()]


@st.composite
def trees(draw: st.DrawFn) -> Trace:
    """Prompts that share beginnings: an id stands for its whole path. A partial last block has one, or none."""
    paths = draw(st.lists(st.lists(st.integers(0, 2), min_size=0, max_size=6), min_size=1, max_size=10))
    numbers: dict[tuple[int, ...], int] = {}
    requests = []
    for path in paths:
        ids = [numbers.setdefault(tuple(path[: depth + 1]), len(numbers)) for depth in range(len(path))]
        rest = draw(st.integers(0, SIZE - 1))
        if rest and draw(st.booleans()):
            ids.append(numbers.setdefault((*path, 100 + rest), len(numbers)))
        requests.append((len(path) * SIZE + rest, ids))
    return trace_of(*requests)


@settings(max_examples=60, deadline=None)
@given(trace=trees(), scale=st.sampled_from([1.0, 0.5, 0.1, 0.04, 1.5]))
def test_prompts_are_equal_exactly_as_far_as_their_ids_are(trace: Trace, scale: float) -> None:
    played = scaled(trace, scale)
    prompts = [tokens_of(prompt) for prompt in prompts_of(trace, scale)]
    size = played.played_block_tokens
    assert size == max(1, round(scale * SIZE))
    for i in range(len(trace)):
        for j in range(i):
            mine, other = trace.ids(i).tolist(), trace.ids(j).tolist()
            whole = min(int(trace.input_tokens[i]), int(trace.input_tokens[j])) // SIZE
            shared = next(
                (n for n, (a, b) in enumerate(zip(mine, other, strict=False)) if a != b), min(len(mine), len(other))
            )
            shared = min(shared, whole)
            assert prompts[i][: shared * size] == prompts[j][: shared * size]
            if size >= 3 and shared < whole:
                assert (
                    prompts[i][shared * size : (shared + 1) * size]
                    != prompts[j][shared * size : (shared + 1) * size]
                )


@settings(max_examples=40, deadline=None)
@given(trace=trees())
def test_unscaled_prompts_have_the_lengths_of_the_trace(trace: Trace) -> None:
    lengths = [len(tokens_of(prompt)) for prompt in prompts_of(trace)]
    assert lengths == [max(1, tokens) for tokens in trace.input_tokens.tolist()]
    whole = [len(tokens_of(prompt)) for prompt in prompts_of(trace, tail="drop")]
    assert whole == [max(1, tokens - tokens % SIZE) for tokens in trace.input_tokens.tolist()]


def test_ids_that_always_follow_each_other_are_one_segment() -> None:
    trace = trace_of((4 * SIZE, [0, 1, 2, 3]), (3 * SIZE, [0, 1, 2]), (4 * SIZE, [0, 1, 4, 5]))
    assert [len(prompt) for prompt in prompts_of(trace)] == [2, 2, 2]


def test_a_rest_that_no_id_names_is_the_requests_own() -> None:
    trace = trace_of((SIZE + 5, [0]), (SIZE + 5, [0]))
    first, second = prompts_of(trace)
    assert first[0] == second[0] == Segment(1000, SIZE)
    assert first[1] != second[1]


def test_a_named_rest_is_shared_and_stays_a_rest_when_scaled() -> None:
    trace = trace_of((SIZE + 31, [0, 1]), (SIZE + 31, [0, 1]))
    first, second = prompts_of(trace, 0.25)
    assert first == second
    assert sum(segment.tokens for segment in first) == 8 + 7, "31 of 32 tokens are nearly a block, but not one"


def test_ids_beyond_a_prompt_and_blocks_without_ids_do_not_change_its_length() -> None:
    trace = trace_of((SIZE, [0, 1, 2]), (3 * SIZE + 1, [0]), (2 * SIZE, [0, 7]))
    assert [len(tokens_of(prompt)) for prompt in prompts_of(trace)] == [SIZE, 3 * SIZE + 1, 2 * SIZE]


def test_below_one_token_a_block_neighbours_are_taken_together() -> None:
    ids = list(range(8))
    trace = trace_of((8 * SIZE, ids), (8 * SIZE, [*ids[:6], 20, 21]))
    first, second = (tokens_of(prompt) for prompt in prompts_of(trace, 0.5 / SIZE))
    assert len(first) == len(second) == 4
    assert first[:3] == second[:3]
    assert scaled(trace, 0.5 / SIZE).trace.block_tokens == 2 * SIZE


def test_without_chains_every_id_is_a_segment_and_cannot_be_taken_together() -> None:
    trace = trace_of((2 * SIZE, [0, 1]), (2 * SIZE, [2, 1]), (3 * SIZE, [1, 1, 0]))
    first, second, third = prompts_of(trace)
    assert first[1] == second[1] == third[0] == third[1]
    with pytest.raises(InputError, match=r"scale of at least 0\.0312"):
        prompts_of(trace, 0.5 / SIZE)


def test_numbers_of_blocks_do_not_depend_on_the_machine() -> None:
    trace = trace_of((SIZE, [5]), (SIZE, [3]))
    assert trace.blocks.dtype == np.int64
    assert trace.blocks.tolist() == [0, 1]
