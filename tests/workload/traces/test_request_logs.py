"""Request logs, lengths-only tables, recorded runs, compressed files, and lines that cannot be read."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvbench.errors import InputError
from kvbench.plan.analysis import Question, analyse
from kvbench.workload.traces.bad_lines import BadLines
from kvbench.workload.traces.reading import read_trace
from kvbench.workload.traces.trace import Trace


def written(folder: Path, *records: object, name: str = "log.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def ids_of(trace: Trace) -> list[list[int]]:
    return [trace.ids(index).tolist() for index in range(len(trace))]


def test_equal_beginnings_of_token_ids_are_equal_blocks(tmp_path: Path) -> None:
    first = {"timestamp": 100.0, "prompt_token_ids": list(range(40)), "output_tokens": 7, "session_id": "a"}
    again = {"timestamp": 101.5, "prompt_token_ids": [*range(32), 9, 9], "session_id": "a"}
    other = {"timestamp": 102.0, "prompt_token_ids": [5, *range(1, 40)]}
    trace = read_trace(written(tmp_path, first, again, other))
    assert (trace.format, trace.block_tokens) == ("requests", 16)
    assert trace.times_s.tolist() == [0.0, 1.5, 2.0]
    assert trace.input_tokens.tolist() == [40, 34, 40]
    assert ids_of(trace) == [[0, 1, 2], [0, 1, 3], [4, 5, 6]], "a block stands for all before it as well"
    assert trace.output_tokens.tolist() == [7, 1, 1]
    assert trace.previous.tolist() == [-1, 0, -1]
    assert trace.is_chained()


def test_messages_share_as_far_as_they_are_equal(tmp_path: Path) -> None:
    system = {"role": "system", "content": "You are a careful assistant. " * 20}
    turns = [
        {"role": "user", "content": "Tell me about tides."},
        {"role": "assistant", "content": "They come and go. " * 10},
        {"role": "user", "content": "Why?"},
    ]
    body = {"model": "m", "messages": [system, turns[0]], "max_tokens": 50}
    follow_up = {"model": "m", "messages": [system, *turns], "max_tokens": 50}
    answer = {"usage": {"prompt_tokens": 150, "completion_tokens": 44}}
    records = [
        {"created": "2026-01-31T12:00:00Z", "body": body, "response": {"body": answer}},
        {"created": "2026-01-31T12:00:30Z", "request": follow_up},
        {"created": "2026-01-31T12:01:00Z", "messages": [{"role": "user", "content": "Something else entirely."}]},
    ]
    trace = read_trace(written(tmp_path, *records))
    assert trace.times_s.tolist() == [0.0, 30.0, 60.0]
    assert trace.output_tokens.tolist() == [44, 50, 1]
    assert trace.input_tokens[0] == 150, "as the engine counted"
    assert trace.labels[0] == "m"
    first, second, third = ids_of(trace)
    shared = sum(a == b for a, b in zip(first, second, strict=False))
    assert shared >= 9, "580 characters of system prompt are nine blocks of 64"
    assert not set(third) & set(first)


def counted(at: int, text: str, tokens: int, **more: object) -> dict[str, object]:
    return {"timestamp": at, "prompt": text, "usage": {"prompt_tokens": tokens}, **more}


@pytest.mark.parametrize("a_token", [2.5, 4.0, 5.3, 9.0])
def test_where_tokens_are_told_different_questions_are_different_blocks(tmp_path: Path, a_token: float) -> None:
    """Given a text of any number of bytes a token, then its blocks reach to its end."""
    shared = "An instruction that all requests begin with. " * 41
    questions = [f"{number} is what this question is about, and nothing else. " * 8 for number in "12345"]
    texts = [shared + question for question in questions]
    trace = read_trace(written(tmp_path, *(counted(at, t, round(len(t) / a_token)) for at, t in enumerate(texts))))
    first, *others = ids_of(trace)
    whole = trace.input_tokens // 16
    assert whole[0] > len(shared) / a_token / 16 + 1
    for other in others:
        equal = sum(a == b for a, b in zip(first, other, strict=True))
        assert equal == int(len(shared) / a_token / 16), "as far as the texts are equal, in whole blocks"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(st.tuples(st.text("ab|", max_size=60), st.integers(1, 40)), min_size=2, max_size=6),
    told=st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_blocks_of_texts_cover_all_of_them(tmp_path: Path, texts: list, told: list[bool]) -> None:
    """Whatever is told of lengths: texts have the same last block only if one is the other."""
    records = [
        counted(at, "x" + text, tokens) if says else {"timestamp": at, "prompt": "x" + text}
        for at, ((text, tokens), says) in enumerate(zip(texts, told, strict=False))
    ]
    trace = read_trace(written(tmp_path, *records), block_tokens=4)
    for i, (mine, _) in enumerate(texts):
        for j, (other, _) in enumerate(texts):
            left, right = trace.ids(i).tolist(), trace.ids(j).tolist()
            if mine != other and len(left) == len(right):
                assert left[-1] != right[-1], (mine, other)


def test_one_width_of_tokens_serves_the_whole_file(tmp_path: Path) -> None:
    """Given turns of one conversation whose texts have more or fewer bytes a token than the others."""
    text, turns, tokens = "", [], 0
    for turn in range(12):
        more = f"Turn {turn} says this and then something more of it. " * (3 + turn % 3)
        text, tokens = text + more, tokens + round(len(more) / (3.9 if turn % 2 else 4.4))
        turns.append((text, tokens))
    trace = read_trace(written(tmp_path, *(counted(at, *turn) for at, turn in enumerate(turns))))
    lists = ids_of(trace)
    for earlier, later in pairwise(lists):
        assert sum(a == b for a, b in zip(earlier, later, strict=False)) >= len(earlier) - 2
    assert trace.is_chained()


def test_records_that_tell_no_tokens_are_counted_like_those_that_do(tmp_path: Path) -> None:
    records = [counted(0, "e" * 1000, 200), {"timestamp": 1, "prompt": "f" * 500}]
    assert read_trace(written(tmp_path, *records)).input_tokens.tolist() == [200, 100]
    assert read_trace(written(tmp_path, records[1])).input_tokens.tolist() == [125]


def test_tools_stand_before_the_messages(tmp_path: Path) -> None:
    body = {"messages": [{"role": "user", "content": "What is the weather?"}]}
    tools = [{"type": "function", "function": {"name": "weather", "description": "tells it " * 50}}]
    records = [{"timestamp": at, "body": body | {"tools": tools}} for at in range(2)] + [{"timestamp": 2, **body}]
    first, second, without = ids_of(read_trace(written(tmp_path, *records)))
    assert first == second
    assert len(first) > 7
    assert not set(first) & set(without)


@pytest.mark.parametrize("unit", [1, 1_000, 1_000_000, 1_000_000_000])
def test_times_since_1970_are_told_in_any_unit(tmp_path: Path, unit: int) -> None:
    start = 1_769_860_800
    records = [{"timestamp": (start + at) * unit, "prompt": "x" * 64} for at in (0, 30, 7200)]
    assert read_trace(written(tmp_path, *records)).times_s.tolist() == [0.0, 30.0, 7200.0]


def test_an_answer_without_a_token_has_none(tmp_path: Path) -> None:
    record = counted(0, "x" * 64, 16, max_tokens=500)
    record["usage"] = {"prompt_tokens": 16, "completion_tokens": 0}
    assert read_trace(written(tmp_path, record)).output_tokens.tolist() == [0]


def test_the_letters_of_a_picture_are_no_tokens(tmp_path: Path) -> None:
    """Given questions about pictures of 400 kB, then they tell prompts apart and are no 100,000 tokens."""

    def asked(at: int, letters: str) -> dict[str, object]:
        url = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + letters}}
        parts = [{"type": "text", "text": "What is in this picture? " * 10}, url]
        return {"timestamp": at, "messages": [{"role": "user", "content": parts}]}

    one, same, other = (asked(at, letter * 400_000) for at, letter in enumerate("AAB"))
    trace = read_trace(written(tmp_path, one, same, other))
    assert trace.input_tokens.max() < 200
    first, second, third = ids_of(trace)
    assert first == second
    assert first[:3] == third[:3]
    assert first[-1] != third[-1]
    told = [{**record, "usage": {"prompt_tokens": 9000}} for record in (one, other)]
    assert read_trace(written(tmp_path, *told)).input_tokens.tolist() == [9000, 9000], "as the engine counted"
    text = {"timestamp": 0, "messages": [{"role": "user", "content": [{"type": "text", "text": "word " * 4000}]}]}
    assert read_trace(written(tmp_path, text)).input_tokens[0] > 5000, "a long text is one all the same"


@pytest.mark.parametrize(("beside", "name"), [("messages", "system"), ("input", "instructions")])
def test_a_system_prompt_beside_the_messages_stands_before_them(tmp_path: Path, beside: str, name: str) -> None:
    def asked(at: int, question: str, **more: str) -> dict[str, object]:
        return {"timestamp": at, "body": {beside: [{"role": "user", "content": question}], **more}}

    long = {name: "You answer with great care. " * 40}
    records = [asked(0, "How high?", **long), asked(1, "Why blue?", **long), asked(2, "How high?")]
    first, second, without = ids_of(read_trace(written(tmp_path, *records)))
    assert sum(a == b for a, b in zip(first, second, strict=True)) == len(long[name]) // 64
    assert not set(first) & set(without)


def test_texts_are_never_kept_nor_shown(tmp_path: Path) -> None:
    secret = "the launch code is 0000 " * 30
    records = [{"timestamp": at, "prompt": secret + str(at)} for at in range(3)]
    document = analyse(read_trace(written(tmp_path, *records)), Question(hierarchies=()))
    assert document["sharing"]["saved_tokens"] > 0
    assert "launch" not in json.dumps(document)


def test_a_block_size_can_be_chosen(tmp_path: Path) -> None:
    records = [{"timestamp": at, "prompt": [at, *range(255)]} for at in range(2)]
    trace = read_trace(written(tmp_path, *records), format_="vllm", block_tokens=128)
    assert (trace.block_tokens, len(trace.blocks)) == (128, 4)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(prompts=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=40), min_size=1, max_size=6))
def test_blocks_of_contents_are_equal_exactly_as_far_as_contents_are(tmp_path: Path, prompts: list) -> None:
    records = [{"timestamp": at, "token_ids": prompt} for at, prompt in enumerate(prompts)]
    trace = read_trace(written(tmp_path, *records), block_tokens=4)
    for i, mine in enumerate(prompts):
        for j, other in enumerate(prompts):
            shared = next((n for n, (a, b) in enumerate(zip(mine, other, strict=False)) if a != b), None)
            equal = min(len(mine), len(other)) // 4 if shared is None else shared // 4
            left, right = trace.ids(i).tolist(), trace.ids(j).tolist()
            assert left[:equal] == right[:equal]
            if shared is not None:
                assert not set(left[equal:]) & set(right[equal:])


@pytest.mark.parametrize(
    ("record", "what"),
    [
        ({"prompt": "no time"}, "has no time"),
        ({"timestamp": "soon", "prompt": "x"}, "expected a time"),
        ({"timestamp": 10**400, "prompt": "x"}, "the time is not a finite number"),
        ({"timestamp": -(10**400), "prompt": "x"}, "the time is not a finite number"),
        ({"timestamp": float("nan"), "prompt": "x"}, "the time is not a finite number"),
        ({"timestamp": 1, "token_ids": [1, "2"]}, "token ids"),
        ({"timestamp": 1, "token_ids": [2**70]}, "so large"),
        ({"timestamp": 1, "messages": [3]}, "messages as objects"),
        ({"timestamp": 1, "prompt": "", "usage": {"prompt_tokens": 700}}, "kept no text"),
        ({"timestamp": 1, "prompt": "x", "usage": {"prompt_tokens": 10**15}}, "tokens cannot be"),
        (
            {"timestamp": 1, "prompt": "Once " * 20, "usage": {"prompt_tokens": 5000}},
            "the log kept 100 bytes of it",
        ),
        ({"timestamp": 1, "messages": {"role": "user"}}, "expected messages"),
    ],
)
def test_what_is_wrong_in_a_log_is_told_with_its_line(tmp_path: Path, record: dict, what: str) -> None:
    path = written(tmp_path, {"timestamp": 0, "prompt": "fine"}, record)
    with pytest.raises(InputError) as raised:
        read_trace(path, format_="openai")
    assert str(raised.value).startswith(f"{path}:2: ")
    assert what in str(raised.value)


def test_burstgpt_has_arrivals_lengths_and_models(tmp_path: Path) -> None:
    path = tmp_path / "burst.csv"
    path.write_text(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,230,1317,API log\n"
    )
    trace = read_trace(path)
    assert (trace.format, trace.has_identity) == ("burstgpt", False)
    assert trace.times_s.tolist() == [0.0, 40.0]
    assert trace.input_tokens.tolist() == [472, 1087]
    assert trace.labels == ("ChatGPT", "GPT-4")


def mooncake(at: int, ids: list[object] | None = None, **more: object) -> dict[str, object]:
    chosen = [1, 2] if ids is None else ids
    return {"timestamp": at, "input_length": 64 * len(chosen), "output_length": 3, "hash_ids": chosen, **more}


def test_zstandard_and_gzip_are_recognised_by_content(tmp_path: Path) -> None:
    plain = "".join(json.dumps(mooncake(at, [at, 7])) + "\n" for at in range(3000)).encode()
    packed = tmp_path / "trace.bin"
    packed.write_bytes(pa.compress(plain, codec="zstd", asbytes=True))
    assert len(read_trace(packed)) == 3000
    packed.write_bytes(packed.read_bytes()[:200])
    with pytest.raises(InputError, match="damaged or cut short"):
        read_trace(packed)
    packed.write_bytes(gzip.compress(plain))
    assert len(read_trace(packed)) == 3000


def test_bad_lines_are_left_out_and_told_up_to_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    lines = [json.dumps(mooncake(at)) for at in range(5)]
    path.write_text("\n".join(["not json", *lines[:2], '{"timestamp": 2}', *lines[2:]]) + "\n")
    bad = BadLines(limit=2)
    assert len(read_trace(path, bad_lines=bad)) == 5
    assert bad.document()["count"] == 2
    assert [entry["line"] for entry in bad.document()["first"]] == [1, 4]
    with pytest.raises(InputError, match="more than 1 lines cannot be read") as raised:
        read_trace(path, bad_lines=BadLines(limit=1))
    assert f"{path}:4" in str(raised.value)
    with pytest.raises(InputError, match=":1: expected a JSON object"):
        read_trace(path)
    path.write_text("nothing\nof\nuse\n")
    with pytest.raises(InputError, match=":1: "):
        read_trace(path, bad_lines=BadLines(limit=100))


@pytest.mark.parametrize("many", [3, 200])
def test_a_time_of_another_kind_is_a_bad_line(tmp_path: Path, many: int) -> None:
    """Given one time since 1970 among times since the start, read one by one and at once."""
    records = [mooncake(1000 * at) for at in range(many)]
    records[2]["timestamp"] = 1_769_860_800_000
    path = written(tmp_path, *records)
    bad = BadLines(limit=1)
    assert read_trace(path, bad_lines=bad).duration_s == many - 1 - (many == 3)
    assert bad.first[0][0] == 3
    assert "more than a year from the first" in bad.first[0][1]
    with pytest.raises(InputError, match=r":3: its time, 1769860800000, is more than a year"):
        read_trace(path)


BURST = ("Timestamp,Model,Request tokens,Response tokens", *(f"{at},ChatGPT,{100 + at},7" for at in range(1, 300)))


@pytest.mark.parametrize(
    ("spoiled", "what"),
    [
        (b'50,"ChatGPT,150,7', "not a row of a CSV file"),
        (b"50,Chat\xffGPT,150,7", "not UTF-8"),
        (b"50,ChatGPT", "expected 4 columns"),
        (b"50,Chat\rGPT,150,7", "not a row"),
        (b"50," + b"x" * 200_000 + b",150,7", "not a row"),
        (b"nan,ChatGPT,150,7", "not a finite number"),
    ],
)
def test_a_bad_row_of_a_table_spoils_no_other(tmp_path: Path, spoiled: bytes, what: str) -> None:
    rows = [row.encode() for row in BURST]
    rows[50] = spoiled
    path = tmp_path / "burst.csv"
    path.write_bytes(b"\r\n".join(rows))
    bad = BadLines(limit=1)
    trace = read_trace(path, bad_lines=bad)
    assert trace.input_tokens.tolist() == [100 + at for at in range(1, 300) if at != 50]
    assert (bad.count, bad.first[0][0]) == (1, 51)
    assert what in bad.first[0][1]
    with pytest.raises(InputError, match=f":51: .*{what}"):
        read_trace(path)


def test_what_stands_before_the_header_of_a_table_is_a_bad_line(tmp_path: Path) -> None:
    path = tmp_path / "burst.csv"
    path.write_text("\n".join(("# exported on Monday", *BURST)))
    bad = BadLines(limit=1)
    assert len(read_trace(path, bad_lines=bad)) == 299
    assert bad.first[0][0] == 1
    path.write_text("\n".join(BURST[1:40]))
    with pytest.raises(InputError, match=":1: expected the header"):
        read_trace(path, format_="burstgpt")


STRANGE = st.sampled_from(
    [
        ("timestamp", "soon"), ("timestamp", None), ("timestamp", 1e300), ("timestamp", 2.5),
        ("input_length", -1), ("input_length", 12.0), ("input_length", 2**70), ("output_length", True),
        ("hash_ids", ["a", "b"]), ("hash_ids", [1, "1"]), ("hash_ids", [2**64, 1]), ("hash_ids", []),
        ("hash_ids", [1, None]), ("hash_ids", [-(2**62), 5]), ("hash_ids", 3), ("hash_ids", [1.5]),
        ("session_id", 4), ("session_id", "s"), ("session_id", [1]), ("session_id", None),
        ("think_time_s", 1.5), ("think_time_s", -1), ("think_time_s", "long"),
        ("type", "text"), ("type", 5), ("model", "m"), ("extra", {"a": [1, {}]}),
    ]
)  # fmt: skip


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.dictionaries(st.integers(0, 99), STRANGE, max_size=3),
    format_=st.sampled_from(["mooncake", "sessions", "bailian"]),
)
def test_many_lines_at_once_are_read_as_one_after_the_other(tmp_path: Path, changes: dict, format_: str) -> None:
    records = [
        mooncake(at, [at % 7, at % 5 + 10], session_id=f"s{at % 3}", chat_id=at, parent_chat_id=max(at - 3, -1))
        for at in range(100)
    ]
    for line, (key, value) in changes.items():
        records[line] = records[line] | {key: value}
    path = written(tmp_path, *records)

    def told() -> tuple[object, ...]:
        bad = BadLines(limit=100)
        trace = read_trace(path, format_=format_, block_tokens=64, bad_lines=bad)
        columns = (trace.times_s, trace.input_tokens, trace.output_tokens, trace.previous, trace.sessions)
        lists = [column.tolist() for column in columns]
        return bad.document(), lists, ids_of(trace), trace.labels, [str(think) for think in trace.think_s]

    at_once = told()
    with mock.patch("kvbench.workload.traces.jsonl.add_at_once", return_value=False):
        assert at_once == told()


def test_lines_as_they_should_be_are_parsed_at_once(tmp_path: Path) -> None:
    path = written(tmp_path, *(mooncake(at, [at % 9, at]) for at in range(200)))
    with mock.patch("kvbench.workload.traces.jsonl.parse_json", side_effect=AssertionError("one by one")):
        assert len(read_trace(path, format_="mooncake")) == 200
