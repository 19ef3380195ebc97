"""What an answer says of its own size, from whole answers captured on a real server and from nonsense."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.load.usage import Usage, read_usage, usage_of_answer

CAPTURED = {
    "completion-0": Usage(1350, 4, 0),
    "completion-1": Usage(1350, 4, 1280),
    "chat-0": Usage(1367, 4, 0),
    "chat-1": Usage(1367, 4, 1280),
    "chat-hosthit": Usage(2017, 4, 1920),
}
"""Cold, then ten blocks of 128 tokens from the device; of one that left the device, fifteen from the host."""


@pytest.mark.shared
@pytest.mark.parametrize("name", CAPTURED)
def test_captured_answers(shared_dir: Path, name: str) -> None:
    answer = json.loads((shared_dir / "facts" / "vllm-0.32.0" / f"{name}.json").read_text())
    assert usage_of_answer(answer) == CAPTURED[name]


@pytest.mark.parametrize(
    "answer",
    [None, [], {}, {"usage": None}, {"usage": [1]}, {"usage": {"prompt_tokens": "7"}}, {"error": {"code": 400}}],
    ids=str,
)
def test_an_answer_without_usage_says_nothing(answer: object) -> None:
    assert usage_of_answer(answer) == Usage(None, None, None)


def test_each_count_is_known_or_not_by_itself() -> None:
    """Given a server that was not told to give details of the prompt, then only what is cached is unknown."""
    said = {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": None}
    assert read_usage(said) == Usage(7, 2, None)
    assert read_usage({"prompt_tokens": -1, "completion_tokens": 1 << 40}) == Usage(None, None, None)


KEYS = st.sampled_from(["usage", "prompt_tokens", "completion_tokens", "prompt_tokens_details", "cached_tokens"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_no_json_brings_it_down(answer: object) -> None:
    assert all(count is None or 0 <= count <= 1 << 24 for count in usage_of_answer(answer))
