"""Reading many events at once is reading each: the same tokens, text, reason, usage and failure."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.load.alike import Alike
from tests.load.server import DONE, event
from tests.load.test_stream import gist, read

TEXTS = st.sampled_from(
    ["a", "", "ab c", '"', "\\", '","token_ids": [7]', '"text":', "\n\n", "é", "\ud800", "}]}\n"]
)
IDS = st.none() | st.lists(st.integers(0, 200_000), max_size=3)
ODD = st.sampled_from(
    [
        b": keep-alive\n\n",
        b'data: {"choices": []}\n\n',
        b'data: {"choices": [{"text": 7, "token_ids": [1]}]}\n\n',
        b'data: {"choices": [{"text": "a", "token_ids": ["1"]}]}\n\n',
        b"data: {oops\n\n",
        b'data: {"error": {"message": "boom"}}\n\n',
        b'data: {"choices": [{"delta": {"role": "assistant", "content": "a"}, "token_ids": [1]}]}\n\n',
        b'data: {"choices": [{"delta": {"reasoning": "a"}, "token_ids": [1]}]}\n\n',
        DONE,
    ]
)


def token(text: str, ids: list[int] | None, *, spaces: bool = True, chat: bool = False, **more: Any) -> bytes:
    """As vLLM writes it."""
    said = {"delta": {"content": text}} if chat else {"text": text}
    choice = {"index": 0, **said, "logprobs": None, "finish_reason": None, "token_ids": ids} | more
    value = {"id": "cmpl-1", "choices": [choice], "usage": None}
    return event(json.dumps(value, separators=(", ", ": ") if spaces else (",", ":")).encode())


def usage(tokens: int) -> bytes:
    return event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": tokens}})


@settings(max_examples=60)
@given(
    st.lists(st.tuples(TEXTS, IDS), min_size=20, max_size=60),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 80), ODD), max_size=2),
)
def test_many_at_once_and_one_by_one_say_the_same(
    tokens: list[tuple[str, list[int] | None]], ids: bool, spaces: bool, chat: bool, odd: list[tuple[int, bytes]]
) -> None:
    chunks = [token(text, (held or [1]) if ids else None, spaces=spaces, chat=chat) for text, held in tokens]
    for place, chunk in odd:
        chunks.insert(place % (len(chunks) + 1), chunk)
    chunks += [token("", [5] if ids else None, chat=chat, finish_reason="length"), usage(len(tokens)), DONE]
    at_once, single = read(*chunks, step=128), read(*chunks, step=1)
    assert gist(at_once) == gist(single)
    assert at_once.placed == single.placed


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("ids", [[41], [41, 42], None])
def test_usual_events_are_read_at_once(ids: list[int] | None, chat: bool) -> None:
    events = [token(text, ids, chat=chat) for text in ("a", "b", '"')]
    alike = Alike.of(events[0])
    assert alike is not None
    assert alike.columns(events) == (["a", "b", '"'], None if ids is None else [ids] * 3)


@pytest.mark.parametrize(
    "other",
    [
        token("c", [1], finish_reason="stop"),
        token("c", [1], logprobs={}),
        token("c", [1]) + token("d", [1]),
        token("c", [1])[:-1],
        token("c", None),
        token("c", [1]).replace(b'"c"', b'"c", "d"'),
        token("c", [1]).replace(b'"c"', b'"c"\n'),
        token("c", [1]).replace(b'"c"', b"7"),
        token("c", [1]).replace(b"[1]", b"1"),
        b"",
        DONE,
    ],
)
def test_one_that_is_otherwise_keeps_all_from_being_read_at_once(other: bytes) -> None:
    alike = Alike.of(token("a", [1]))
    assert alike is not None
    assert alike.columns([token("a", [1]), other, token("b", [2])]) is None


def test_halves_of_events_are_not_taken_for_events() -> None:
    alike = Alike.of(token("a", [1]))
    assert alike is not None
    whole = token("b", [2])
    assert alike.columns([token("a", [1]) + whole[:40], whole[40:]]) is None


@pytest.mark.parametrize(
    "unusual",
    [
        DONE,
        b": keep-alive\n\n",
        usage(3),
        token("a", [1], finish_reason="stop"),
        token("a", [1], delta={"content": "a"}),
        token("a", [1], chat=True, delta={"role": "assistant", "content": "a"}),
        token("a", [1], chat=True, delta={"content": "a", "reasoning": "b"}),
        token("a", [1], chat=True).replace(b'"delta"', b'"text": null, "delta"'),
        event({"choices": [{"text": "a"}, {"text": "b"}]}),
        event({"choices": [{"text": "a"}], "usage": {"completion_tokens": 1}}),
        event({"text": "a", "choices": [{"token_ids": [1]}]}),
        event({"choices": [{"token_ids": [1], "text": "a"}]}),
        token("a", [1]).replace(b"\n\n", b"\r\n\r\n"),
        token("a", [1]).replace(b"data: ", b"data:"),
        b"data: {oops\n\n",
    ],
)
def test_nothing_unusual_is_taken_for_the_rule(unusual: bytes) -> None:
    assert Alike.of(unusual) is None
