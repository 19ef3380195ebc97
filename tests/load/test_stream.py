"""What an answer says does not depend on where its bytes were cut, and events are never taken for tokens."""

from __future__ import annotations

import json
from array import array
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.load.agenda import Turn
from kvbench.load.exchange import Exchange
from kvbench.load.rows import Rows
from kvbench.load.stream import Completion, CompletionReader
from kvbench.record.tables import REQUESTS
from tests.load.play import plan_for, request
from tests.load.server import DONE, event, token_event, usage_event

CAPTURED = {
    # name: (tokens, prompt tokens, cached tokens, cause of failure)
    "chat-stream-contusage-0": (4, 1367, 1280, None),
    "chat-stream-contusage-1": (4, 1367, 1280, None),
    "chat-stream-usage-0": (4, 1367, 1280, None),
    "chat-stream-usage-1": (4, 1367, 1280, None),
    "chat-stream-hosthit": (4, 2017, 1920, None),
    "chat-stream-perreqmetrics": (4, 377, 0, None),
    "completion-stream-contusage-0": (4, 1350, 1280, None),
    "completion-stream-contusage-1": (4, 1350, 1280, None),
    "completion-stream-usage-0": (4, 1350, 1280, None),
    "completion-stream-usage-1": (4, 1350, 1280, None),
    "completions-stream-perreqmetrics": (4, 360, 0, None),
    "completion-stream-nousage-0": (None, None, None, None),
    "completion-stream-nousage-1": (None, None, None, None),
    "completion-stream-engine-killed-tail": (None, None, None, "server_error"),
    "chat-stream-engine-killed-tail": (None, None, None, "server_error"),
}


def read(*chunks: bytes, step: int = 64) -> Completion:
    """Each chunk is received one microsecond after the one before it."""
    reader = CompletionReader(chunks, array("q", range(1000, 1000 * len(chunks) + 1000, 1000)))
    while not reader.step(step):
        pass
    return reader.completion()


def gist(completion: Completion) -> tuple[object, ...]:
    return (
        len(completion.placed.times_ns),
        completion.placed.known,
        completion.placed.multi_token_events,
        completion.token_ids,
        completion.text,
        completion.finish_reason,
        completion.prompt_tokens,
        completion.cached_tokens,
        completion.events,
        completion.failure,
    )


@pytest.mark.shared
@pytest.mark.parametrize("name", CAPTURED)
def test_captured_answers_at_every_split_position(shared_dir: Path, name: str) -> None:
    body = (shared_dir / "facts" / "vllm-0.32.0" / f"{name}.sse").read_bytes()
    tokens, prompt_tokens, cached_tokens, cause = CAPTURED[name]
    whole = read(body)
    assert whole.placed.known == (tokens is not None)
    assert len(whole.placed.times_ns) == (tokens or 0)
    assert (whole.failure.cause if whole.failure else None) == cause
    assert (whole.prompt_tokens, whole.cached_tokens) == (prompt_tokens, cached_tokens)
    for place in range(1, len(body)):
        assert gist(read(body[:place], body[place:])) == gist(whole), place


@pytest.mark.shared
def test_a_captured_answer_cut_into_single_bytes(shared_dir: Path) -> None:
    body = (shared_dir / "facts" / "vllm-0.32.0" / "completion-stream-contusage-0.sse").read_bytes()
    pieces = [body[index : index + 1] for index in range(len(body))]
    assert gist(read(*pieces, step=7)) == gist(read(body))


@pytest.mark.shared
def test_two_tokens_in_one_captured_chunk_share_its_time(shared_dir: Path) -> None:
    body = (shared_dir / "facts" / "vllm-0.32.0" / "completion-stream-contusage-0.sse").read_bytes()
    pieces = [piece + b"\n\n" for piece in body.split(b"\n\n") if piece]
    completion = read(*pieces)  # running usage 1, 2, 4
    assert completion.placed.times_ns == [1000, 2000, 3000, 3000]
    assert completion.placed.multi_token_events == 1


@given(
    st.lists(st.lists(st.integers(0, 50_000), max_size=4), min_size=1, max_size=8),
    st.lists(st.integers(0, 10_000), max_size=16),
    st.integers(1, 9),
)
def test_any_chunking_of_any_events_gives_the_same_tokens(
    events: list[list[int]], cuts: list[int], step: int
) -> None:
    ids = [id_ for carried in events for id_ in carried]
    body = b"".join(token_event(carried) for carried in events)
    body += token_event([], "length") + usage_event(9, len(ids)) + DONE
    places = sorted({place % (len(body) + 1) for place in cuts})
    pieces = [body[start:end] for start, end in zip([0, *places], [*places, len(body)], strict=True)]
    completion = read(*pieces, step=step)
    assert completion.failure is None
    assert list(completion.token_ids or ()) == ids
    assert len(completion.placed.times_ns) == len(ids)
    assert completion.placed.times_ns == sorted(completion.placed.times_ns)


def test_a_chat_begins_with_who_speaks_which_is_no_token() -> None:
    """Given a chat of vLLM that tells ids, then its first event, with the prompt's ids, has no token."""
    role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
    said = [{"index": 0, "delta": {"content": text}, "finish_reason": None} for text in ("a", "", "b")]
    chunks = [event({"choices": [role], "prompt_token_ids": [1, 2, 3]})]
    chunks += [event({"choices": [choice | {"token_ids": [7 + i]}]}) for i, choice in enumerate(said)]
    chunks += [
        event({"choices": [said[1] | {"finish_reason": "length", "token_ids": [10]}]}),
        usage_event(3, 4),
        DONE,
    ]
    completion = read(*chunks)
    assert completion.failure is None
    assert (completion.token_ids, completion.text) == ((7, 8, 9, 10), "ab")
    assert completion.placed.times_ns == [2000, 3000, 4000, 5000]
    assert completion.prompt_tokens == 3


def test_a_token_has_the_time_of_the_chunk_that_completed_its_event() -> None:
    first, second = token_event([1]), token_event([2], "length")
    completion = read(first[:9], first[9:-1], first[-1:] + second[:5], second[5:], DONE)
    assert completion.placed.times_ns == [3000, 4000]


def test_events_of_one_read_share_its_time_and_the_doubt_is_the_gap_to_the_event_before() -> None:
    reader = CompletionReader(
        [token_event([1]), token_event([2]) + token_event([3]) + token_event([4]), token_event([5], "stop") + DONE],
        array("q", [100, 700, 800]),
    )
    assert reader.step()
    placed = reader.completion().placed
    assert placed.times_ns == [100, 700, 700, 700, 800]
    assert (placed.events, placed.doubts_ns) == (5, [600, 600])


def doubts(chunks: list[bytes], times_ns: list[int], sent_ns: int) -> list[int]:
    reader = CompletionReader(chunks, times_ns, sent_ns)
    assert reader.step()
    return reader.completion().placed.doubts_ns


def test_the_first_events_may_have_come_at_any_time_since_the_sending() -> None:
    """Nothing was read before them: in an answer that was read whole no time is certain but its end."""
    first, last = token_event([1]) + token_event([2]), token_event([3], "stop") + DONE
    assert doubts([first, last], [1000, 2000], sent_ns=400) == [600]
    assert doubts([first + last], [1000], sent_ns=400) == [600, 600]


def test_an_event_that_was_read_with_the_beginning_of_the_next_may_have_come_before_it() -> None:
    one, two, three = token_event([1]), token_event([2]), token_event([3], "stop")
    assert doubts([one, two, three[:9], three[9:], DONE], [100, 700, 700, 800, 900], sent_ns=50) == [600]
    assert doubts([one + two[:9], two[9:], three + DONE], [300, 500, 600], sent_ns=50) == [250]
    assert doubts([one, two[:9], two[9:], three + DONE], [100, 200, 300, 400], sent_ns=50) == []


def test_an_event_that_takes_several_reads_of_one_segment_is_in_no_doubt() -> None:
    """The first event of an engine that repeats the ids of a long prompt, read in two pieces."""
    one, two, three = token_event([1]), token_event([2]), token_event([3], "stop")
    assert doubts([one[:9], one[9:], two, three + DONE], [300, 300, 500, 600], sent_ns=50) == []


def test_the_closing_events_of_an_answer_are_no_reason_for_doubt() -> None:
    completion = read(token_event([1]), token_event([2], "length") + usage_event(5, 2) + DONE)
    assert completion.placed.doubts_ns == []


def test_done_in_the_middle_of_what_is_read_at_once_ends_the_answer() -> None:
    completion = read(token_event([1]), token_event([2], "length"), DONE, token_event([3]), usage_event(5, 9))
    assert completion.failure is None
    assert completion.token_ids == (1, 2)
    assert completion.placed.times_ns == [1000, 2000]


def test_half_of_a_surrogate_pair_does_not_make_an_event_malformed() -> None:
    half = b'data: {"choices": [{"text": "\\ud800", "token_ids": [1], "finish_reason": "stop"}]}\n\n'
    completion = read(half, DONE)
    assert completion.failure is None
    assert completion.token_ids == (1,)


def test_role_keep_alive_and_usage_events_are_no_tokens() -> None:
    role = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
    word = event({"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": None}]})
    last = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    completion = read(role, b": keep-alive\n\n", word, last, usage_event(7, 1), DONE)
    assert completion.placed.times_ns == [3000]
    assert completion.placed.multi_token_events == 0
    assert completion.text == "hi"


def test_a_final_usage_above_the_events_puts_the_rest_where_the_text_is() -> None:
    words = [
        event({"choices": [{"index": 0, "text": text, "finish_reason": None}]}) for text in ("a", "bcdefghij", "k")
    ]
    last = event({"choices": [{"index": 0, "text": "", "finish_reason": "length"}]})
    completion = read(*words, last, usage_event(7, 6), DONE)
    assert completion.placed.times_ns == [1000, 2000, 2000, 2000, 3000, 4000]
    assert completion.placed.multi_token_events == 1


def test_without_ids_and_usage_the_number_of_tokens_is_unknown_and_not_the_number_of_events() -> None:
    words = [event({"choices": [{"index": 0, "text": "a", "finish_reason": None}]})] * 3
    completion = read(*words, event({"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}), DONE)
    assert not completion.placed.known
    assert completion.placed.times_ns == []
    assert completion.placed.first_ns == 1000


@pytest.mark.parametrize(
    ("pieces", "cause"),
    [
        ([token_event([1], "length")], "stream_broken"),
        ([token_event([1]), DONE], "stream_broken"),
        ([token_event([1])], "stream_broken"),
        ([], "stream_broken"),
        ([token_event([1]), event({"error": {"message": "engine died"}}), DONE], "server_error"),
        ([token_event([1]), event({"error": "engine died"}), DONE], "server_error"),
        ([token_event([1], "abort"), DONE], "server_error"),
        ([token_event([1]), event(b"{not json"), DONE], "malformed_event"),
        ([token_event([1]), event(b"\xff\xfe"), DONE], "malformed_event"),
        ([event(b"[1, 2]"), DONE], "malformed_event"),
        ([event(b"1, 2"), DONE], "malformed_event"),
        ([event({"choices": 7}), DONE], "malformed_event"),
        ([event({"choices": [7]}), DONE], "malformed_event"),
        ([event({"choices": [{"text": 7}]}), DONE], "malformed_event"),
        ([event({"choices": {"a": 1}}), DONE], "malformed_event"),
    ],
)
def test_broken_streams_fail_with_their_cause(pieces: list[bytes], cause: str) -> None:
    failure = read(*pieces).failure
    assert failure is not None
    assert failure.cause == cause


def test_what_came_before_a_broken_event_is_kept() -> None:
    completion = read(token_event([1]), token_event([2]), event(b"oops"), token_event([3]))
    assert completion.token_ids == (1, 2)
    assert completion.failure is not None
    assert "oops" in completion.failure.detail


KEYS = st.sampled_from(["choices", "usage", "error", "text", "token_ids", "delta", "finish_reason"])
JSON = st.recursive(
    st.none() | st.integers() | st.sampled_from(["a", "\ud800", ""]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=3),
)


@given(JSON)
def test_no_json_brings_the_reader_down(value: object) -> None:
    completion = read(event(json.dumps(value).encode()), token_event([1], "length"), DONE)
    assert completion.failure is None or completion.failure.cause in ("malformed_event", "server_error")
    turn = Turn(request(0), 0.0, "schedule", ())
    row = Rows(plan_for("http://127.0.0.1:1", Path("/nowhere")), 0).answered(
        turn, Exchange(0, "x", b"", 0), completion, completion.failure
    )
    pa.RecordBatch.from_pylist([row], REQUESTS)
