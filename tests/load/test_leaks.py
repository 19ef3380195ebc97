"""The client finds another tenant's canary in an answer, by ids or by words, and says when it could not look."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.load.leaks import NO_CANARY, CanaryFinder
from kvbench.load.stream import Completion, CompletionReader
from kvbench.workload.canaries import CANARY_TOKENS
from kvbench.workload.prompts import PromptWriter
from kvbench.workload.schedule import Segment
from tests.load.play import plan_for

CANARIES = (11, 22, 33)
OWN, OTHER = 0, 2


def finder(**changes: Any) -> CanaryFinder:
    return CanaryFinder(CANARIES, plan_for("http://127.0.0.1:1", Path("/nowhere"), **changes))


def canary(tenant: int, id_range: tuple[int, int] = (32, 255)) -> list[int]:
    return PromptWriter(id_range).segment_ids(Segment(CANARIES[tenant], CANARY_TOKENS)).tolist()


def answer(ids: list[int], *, text: str = "", with_ids: bool = True) -> Completion:
    choice = {"text": text, "finish_reason": "length", **({"token_ids": ids} if with_ids else {})}
    usage = {"prompt_tokens": 1, "completion_tokens": len(ids)}
    events = [{"choices": [choice]}, {"choices": [], "usage": usage}]
    chunks = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events] + [b"data: [DONE]\n\n"]
    reader = CompletionReader(chunks, range(len(chunks)))
    while not reader.step():
        pass
    return reader.completion()


@settings(max_examples=40, deadline=None)
@given(
    before=st.lists(st.integers(32, 255), max_size=20),
    after=st.lists(st.integers(32, 255), max_size=20),
    start=st.integers(0, 3),
)
def test_a_part_of_another_tenants_canary_is_found_wherever_it_stands(
    before: list[int], after: list[int], start: int
) -> None:
    look = finder()
    part = canary(OTHER)[start : start + look.window]
    assert look.foreign(OWN, answer([*before, *part, *after])) == OTHER
    assert look.foreign(OTHER, answer([*before, *part, *after])) == NO_CANARY, "to its own tenant it is no leak"
    assert look.foreign(OWN, answer([*before, *part[:-1]])) in (NO_CANARY, None), "too little to be sure of"


def test_any_other_answer_has_none() -> None:
    assert finder().foreign(OWN, answer(list(range(40, 80)))) == NO_CANARY


def test_what_cannot_be_looked_through_is_not_called_clean() -> None:
    look = finder()
    assert look.foreign(OWN, answer(canary(OTHER)[: look.window - 1])) is None
    assert look.foreign(OWN, answer(list(range(40, 80)), text="words", with_ids=False)) is None
    assert look.foreign(None, answer(canary(OTHER))) is None, "a request of nobody's"


def test_without_canaries_nothing_is_looked_for() -> None:
    nothing = CanaryFinder((), plan_for("http://127.0.0.1:1", Path("/nowhere")))
    assert nothing.foreign(OWN, answer(canary(OTHER))) is None


@pytest.mark.parametrize(("id_range", "window"), [((0, 15), 12), ((32, 255), 9), ((0, 49_151), 8)])
def test_the_fewer_ids_there_are_the_longer_a_part_counts(id_range: tuple[int, int], window: int) -> None:
    look = finder(token_id_range=id_range)
    assert look.window == window
    assert look.foreign(OWN, answer([*canary(OTHER, id_range), 1])) == OTHER


def test_where_prompts_are_sent_as_words_the_text_tells() -> None:
    words = tuple(f" w{number}" for number in range(300))
    look = finder(words=words)
    told = "".join(words[token] for token in canary(OTHER))
    assert look.foreign(OWN, answer([5] * 20, text=f"well,{told} and so on")) == OTHER
    assert look.foreign(OWN, answer([5] * 20, text="nothing of the kind")) == NO_CANARY
    assert look.foreign(OTHER, answer([5] * 20, text=told)) == NO_CANARY
