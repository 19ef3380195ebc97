"""Every format of trace gives the same columns; what is wrong in a file is told with its line."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvbench.errors import InputError
from kvbench.workload.traces.bad_lines import BadLines
from kvbench.workload.traces.block_size import infer_block_tokens
from kvbench.workload.traces.reading import read_trace
from kvbench.workload.traces.trace import Trace, Whole


def line(at: float = 0, tokens: int = 128, ids: list | None = None, **more: object) -> dict:
    return {
        "timestamp": at,
        "input_length": tokens,
        "output_length": 3,
        "hash_ids": [1, 2] if ids is None else ids,
        **more,
    }


def written(folder: Path, *records: dict, name: str = "trace.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def ids_of(trace: Trace) -> list[list[int]]:
    return [trace.ids(index).tolist() for index in range(len(trace))]


def test_mooncake_has_milliseconds_and_no_sessions(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, line(500), line(3500, ids=[1, 7])))
    assert (trace.format, trace.block_tokens) == ("mooncake", 64)
    assert trace.times_s.tolist() == [0.0, 3.0]
    assert ids_of(trace) == [[0, 1], [0, 2]]
    assert trace.sessions.tolist() == trace.previous.tolist() == [-1, -1]


def test_sessions_know_their_previous_turn_and_pause(tmp_path: Path) -> None:
    turns = [
        line(0, session_id="a", think_time_s=0.0, model="m"),
        line(1000, session_id="b"),
        line(2000, session_id="a", think_time_s=1.5),
        line(3000, session_id="a"),
    ]
    trace = read_trace(written(tmp_path, *turns))
    assert trace.format == "sessions"
    assert trace.sessions.tolist() == [0, 1, 0, 0]
    assert trace.previous.tolist() == [-1, -1, 0, 2]
    assert trace.think_s[2] == 1.5
    assert math.isnan(trace.think_s[3])
    assert trace.labels == ("m", None, None, None)


def test_bailian_has_seconds_and_chains_of_chats(tmp_path: Path) -> None:
    def chat(number: int, parent: int, at: float) -> dict:
        return line(at, 32, chat_id=number, parent_chat_id=parent, type="text", turn=1)

    chats = [chat(4, -1, 0.0), chat(5, 99, 1.0), chat(6, 4, 2.5), chat(7, 6, 3.0), chat(8, 4, 4.0)]
    trace = read_trace(written(tmp_path, *chats))
    assert (trace.format, trace.block_tokens) == ("bailian", 16)
    assert trace.times_s.tolist() == [0.0, 1.0, 2.5, 3.0, 4.0]
    assert trace.previous.tolist() == [-1, -1, 0, 2, 0], "a parent outside the trace makes a first request"
    assert trace.sessions.tolist() == [0, 1, 0, 0, 0]
    assert trace.labels[0] == "text"


def test_weka_puts_sub_agents_into_sessions_of_their_own(tmp_path: Path) -> None:
    def request(at: float, kind: str = "n", **more: object) -> dict:
        return {"t": at, "type": kind, "model": "m", "in": 130, "out": 2, "hash_ids": [1, 2], **more}

    agent = {
        "t": 10.0,
        "type": "subagent",
        "agent_id": "agent_001",
        "requests": [request(0.0), request(4.0, think_time=2.0)],
    }
    document = {
        "id": "t1",
        "block_size": 64,
        "hash_id_scope": "local",
        "requests": [request(0.0), agent, request(12.0, "s", ttft=1.0)],
    }
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document))
    pretty = tmp_path / "pretty.json"
    pretty.write_text(json.dumps(document, indent=1))
    for file in (path, pretty):
        trace = read_trace(file)
        assert (trace.format, trace.block_tokens) == ("weka", 64)
        assert trace.times_s.tolist() == [0.0, 10.0, 12.0, 14.0]
        assert trace.sessions.tolist() == [0, 1, 0, 1]
        assert trace.previous.tolist() == [-1, -1, 0, 1]
        assert trace.think_s[3] == 2.0


def test_azure_has_arrivals_and_lengths_only(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_bytes(
        b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        b"2023-11-16 18:17:03.9799600,4808,10\r\n2023-11-16 18:17:04.0319601,3180,8\r\n"
    )
    trace = read_trace(path)
    assert trace.format == "azure"
    assert not trace.has_identity
    assert trace.input_tokens.tolist() == [4808, 3180]
    assert trace.times_s.tolist() == pytest.approx([0.0, 0.0520001], abs=1e-9)


def test_lines_out_of_order_are_sorted_and_equal_times_keep_the_files_order(tmp_path: Path) -> None:
    lines = [line(2000, ids=["x", "y"]), line(1000, ids=["a", "b"]), line(1000, ids=["c", "d"])]
    trace = read_trace(written(tmp_path, *lines))
    assert trace.times_s.tolist() == [0.0, 0.0, 1.0]
    assert ids_of(trace) == [[2, 3], [4, 5], [0, 1]]


def test_ids_may_be_texts_lists_may_be_empty_and_name_an_id_twice(tmp_path: Path) -> None:
    lines = [line(0, ids=["1", 1]), line(1, 0, ids=[]), line(2, 256, ids=[5, 6, 5, 7])]
    trace = read_trace(written(tmp_path, *lines), block_tokens=64)
    assert ids_of(trace) == [[0, 1], [], [2, 3, 2, 4]]
    assert not trace.is_chained()


def test_gzip_is_recognised_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(gzip.compress(json.dumps(line()).encode() + b"\n"))
    assert len(read_trace(path)) == 1
    path.write_bytes(path.read_bytes()[:30])
    with pytest.raises(InputError, match="damaged or cut short"):
        read_trace(path)


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        ('{"timestamp": 1', "JSON"),
        ("[1, 2]", "JSON object"),
        (json.dumps(line() | {"input_length": -5}), "input_length"),
        (json.dumps(line() | {"input_length": 2.5}), "input_length"),
        (json.dumps(line() | {"output_length": True}), "output_length"),
        (json.dumps(line() | {"hash_ids": [1, None]}), "hash_ids"),
        (json.dumps(line() | {"hash_ids": 7}), "hash_ids"),
        (json.dumps(line() | {"timestamp": "soon"}), "timestamp"),
        (json.dumps(line()).replace('"timestamp": 0', '"timestamp": NaN'), "timestamp"),
        (json.dumps(line() | {"input_length": 10**15}), "cannot be"),
        (json.dumps({"timestamp": 1}), "input_length"),
        ("[" * 100_000, "JSON"),
        ("\udcff", "JSON"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, bad: str, what: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(json.dumps(line()) + "\n\n" + bad + "\n", errors="surrogateescape")
    with pytest.raises(InputError) as raised:
        read_trace(path)
    assert str(raised.value).startswith(f"{path}:3: ")
    assert what in str(raised.value)


def test_a_wrong_request_of_a_weka_file_is_told_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(
        '{"block_size": 64, "requests": [{"t": 0, "type": "subagent", "requests": [{"t": 0, "type": "x"}]}]}'
    )
    with pytest.raises(
        InputError, match=r"trace.json: requests\[0\].requests\[0\]: type: expected one of n, s, subagent"
    ):
        read_trace(path)


def test_wrong_requests_of_a_weka_file_are_left_out_up_to_the_limit(tmp_path: Path) -> None:
    right = {"t": 1, "type": "n", "in": 128, "out": 1, "hash_ids": [1, 2]}
    agent = {"t": 5, "type": "subagent", "requests": [right, right | {"in": -1}, right | {"hash_ids": "a"}]}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"block_size": 64, "requests": [right, {"t": "soon"}, agent, right]}))
    bad = BadLines(limit=3)
    assert read_trace(path, bad_lines=bad).times_s.tolist() == [0.0, 0.0, 5.0]
    told = bad.document()["first"]
    assert [entry["line"] for entry in told] == [None] * 3
    assert told[1]["what"].startswith("requests[2].requests[1]: in: expected a whole number")
    with pytest.raises(
        InputError, match=r"requests\[2\].requests\[2\]: more than 2 lines cannot be read; this one: h"
    ):
        read_trace(path, bad_lines=BadLines(limit=2))
    with pytest.raises(InputError, match=r"requests\[1\]: t: expected a number"):
        read_trace(path)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "empty"),
        ("hello\n", ":1: expected a JSON object"),
        ('{"hello": 1}\n', "known"),
        ("TIMESTAMP,ContextTokens\r\n", "header"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\r\nnow,1,2\r\n", ":2: expected a time"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03,1,x\r\n", ":2: expected a whole number"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\r\n", "no requests"),
    ],
)
def test_what_is_no_trace_is_told(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text, newline="")
    with pytest.raises(InputError, match=what):
        read_trace(path)


def test_a_missing_file_and_an_unknown_format_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_trace(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match="cannot be read: File name too long"):
        read_trace(tmp_path / ("x" * 5000))
    with pytest.raises(InputError, match="no trace format is called 'mooncak'"):
        read_trace(written(tmp_path, line()), format_="mooncak")


def test_a_block_size_that_cannot_be_told_is_asked_for(tmp_path: Path) -> None:
    path = written(tmp_path, line(0, 100, ids=[1]))
    with pytest.raises(InputError, match="--block-tokens"):
        read_trace(path)
    assert read_trace(path, block_tokens=64).block_tokens == 64


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**400), 10**400) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=5,
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.dictionaries(st.sampled_from(sorted(line(session_id=1, think_time_s=1))), JSON_VALUES, max_size=3)
)
def test_whatever_stands_in_a_field_is_read_or_refused_with_its_line(tmp_path: Path, changes: dict) -> None:
    path = written(tmp_path, line(session_id="a"), line(session_id="a") | changes)
    try:
        outcome = str(len(read_trace(path, block_tokens=64)))
    except InputError as error:
        outcome = str(error)
    assert outcome == "2" or outcome.startswith(f"{path}:2: ")


@settings(max_examples=60)
@given(
    size=st.sampled_from([1, 16, 24, 64, 100, 512]),
    lengths=st.lists(st.integers(40, 400), min_size=12, max_size=30),
    ceil=st.lists(st.booleans(), min_size=30, max_size=30),
)
def test_the_block_size_follows_from_lengths_whatever_the_tail_rule(
    size: int, lengths: list[int], ceil: list[bool]
) -> None:
    # given requests of 40 to 400 blocks and any rest, each listing its partial last block or not
    import numpy as np

    tokens: Whole = np.array([blocks * size + blocks % size for blocks in lengths])
    counts: Whole = np.array(
        [-(-n // size) if up else n // size for n, up in zip(tokens.tolist(), ceil, strict=False)]
    )
    # then nothing but the size fits all of them
    found = infer_block_tokens(tokens, counts)
    assert found == size or (size == 24 and found is None) or (size == 100 and found is None)


@pytest.mark.shared
def test_all_reference_traces_are_read_with_the_sizes_of_their_manifest(shared_dir: Path) -> None:
    manifest = json.loads((shared_dir / "traces" / "manifest.json").read_text())
    for name, about in manifest.items():
        trace = read_trace(shared_dir / "traces" / name)
        assert trace.block_tokens == about["block_size"], name
        if "requests" in about:
            assert len(trace) == about["requests"], name
        if trace.has_identity:
            assert trace.is_chained(), name
