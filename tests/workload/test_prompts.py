"""Tokens depend on identity and position alone, and no two blocks of different content are alike."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from kvbench.errors import InputError
from kvbench.workload.prompts import PromptWriter, prompt_digest
from kvbench.workload.schedule import PlannedRequest, Segment

ranges = st.sampled_from([(0, 15), (32, 255), (100, 999), (0, 9_999), (5_000, 10_400)])
names = st.integers(0, 2**63 - 1)


def request(*segments: Segment) -> PlannedRequest:
    return PlannedRequest(
        id=0,
        phase="p",
        measured=True,
        class_="c",
        session=None,
        turn=0,
        intended_s=0.0,
        think_s=0.0,
        continues=None,
        segments=segments,
        output_tokens=1,
        prefix=None,
        repeat_of=None,
    )


def test_prompts_are_pinned_for_ever() -> None:
    ids = PromptWriter((32, 255)).segment_ids(Segment(123_456_789, 8))
    assert ids.tolist() == [154, 152, 97, 144, 222, 123, 166, 205]
    wide = PromptWriter((0, 151_642)).segment_ids(Segment(2**63 - 1, 1001))
    assert prompt_digest(wide) == "5f4a216ba78e93b861aea5dffe06117f"


@settings(max_examples=50, deadline=None)
@given(names, ranges, st.integers(1, 500), st.integers(1, 500))
def test_a_shorter_segment_is_the_beginning_of_a_longer_one(name, id_range, one, other) -> None:
    writer = PromptWriter(id_range)
    long = writer.segment_ids(Segment(name, max(one, other))).copy()
    short = PromptWriter(id_range).segment_ids(Segment(name, min(one, other)))
    assert len(short) == min(one, other)
    assert np.array_equal(long[: len(short)], short)
    assert long.min() >= id_range[0]
    assert long.max() <= id_range[1]


@pytest.mark.parametrize("id_range", [(32, 255), (0, 15), (100, 128_000)])
def test_all_blocks_of_all_contents_differ(id_range) -> None:
    writer = PromptWriter(id_range)
    blocks = {
        block.tobytes()
        for name in range(300)
        for block in writer.segment_ids(Segment(name, 16 * 64)).reshape(-1, 16)
    }
    assert len(blocks) == 300 * 64


def test_no_word_is_repeated_and_every_id_is_used_alike() -> None:
    ids = PromptWriter((32, 255)).segment_ids(Segment(99, 100_000))
    assert stats.chisquare(np.bincount(ids - 32, minlength=224)).pvalue > 1e-4
    pairs = np.bincount((ids[:-1] - 32) // 16 * 14 + (ids[1:] - 32) // 16, minlength=14 * 14)
    assert stats.chisquare(pairs).pvalue > 1e-4
    assert np.mean(ids[1:] == ids[:-1]) < 0.01


@settings(max_examples=50, deadline=None)
@given(ranges, st.lists(st.integers(0, 11_000), max_size=40), st.lists(st.tuples(names, st.integers(1, 70))))
def test_the_json_is_the_whole_prompt(id_range, carried, segments) -> None:
    writer = PromptWriter(id_range)
    planned = request(*(Segment(name, tokens) for name, tokens in segments))
    ids = writer.prompt_ids(planned, carried)
    assert ids.tolist()[: len(carried)] == carried
    assert len(ids) == len(carried) + planned.own_prompt_tokens
    assert json.loads(writer.prompt_json(planned, carried)) == ids.tolist()
    assert json.loads(writer.prompt_json(planned, np.asarray(carried, np.int32))) == ids.tolist()


def test_digests_tell_prompts_apart() -> None:
    assert prompt_digest([1, 2, 3]) == prompt_digest(np.array([1, 2, 3], np.int64))
    assert len({prompt_digest(ids) for ids in ([], [0], [0, 0], [1], [256])}) == 5
    assert prompt_digest([1, 2, 3]) == "b30a3c159d7e8193559a42a84f1fcae1"


@pytest.mark.parametrize("id_range", [(0, 14), (-1, 100), (100, 50)])
def test_ranges_that_cannot_tell_blocks_apart_are_refused(id_range) -> None:
    with pytest.raises(InputError, match="too few ids"):
        PromptWriter(id_range)
