"""Events come out whole wherever the bytes are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.load.sse import EventDecoder

NEWLINES = st.sampled_from([b"\n", b"\r\n", b"\r"])
LINE = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=12).map(str.encode)


def decode(*chunks: bytes) -> list[bytes]:
    decoder = EventDecoder()
    return [data for chunk in chunks for data in decoder.feed(chunk)]


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({place % (len(data) + 1) for place in cuts})
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]


@given(
    st.lists(st.tuples(st.lists(LINE, min_size=1, max_size=3), st.booleans(), NEWLINES), max_size=6),
    st.lists(st.integers(0, 10_000), max_size=12),
    st.booleans(),
)
def test_any_chunking_gives_the_same_events(
    events: list[tuple[list[bytes], bool, bytes]], cuts: list[int], marked: bool
) -> None:
    body = b"\xef\xbb\xbf" if marked else b""
    for lines, comment, newline in events:
        body += b": keep-alive" + newline + newline if comment else b""
        body += b"".join(b"data: " + line + newline for line in lines) + newline
    assert decode(*cut(body, cuts)) == [b"\n".join(lines) for lines, _, _ in events]


@pytest.mark.parametrize(
    ("body", "events"),
    [
        (b"data: a\n\n", [b"a"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a\n\n", [b" a"]),
        (b"data: a\r\n\r\n", [b"a"]),
        (b"data: a\r\r", [b"a"]),
        (b": comment\n\n", []),
        (b"event: x\nid: 7\ndata: a\nretry: 5\n\n", [b"a"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"data\n\n", [b""]),
        (b"\n\n\ndata: a\n\n\n\n", [b"a"]),
        (b"data: a\n", []),
        (b"data: a\n\ndata: b", [b"a"]),
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"database: a\n\n", []),
    ],
)
def test_the_standards_forms(body: bytes, events: list[bytes]) -> None:
    assert decode(body) == events
    assert decode(*(body[index : index + 1] for index in range(len(body)))) == events


@given(
    st.lists(
        st.lists(st.sampled_from([b"data: ", b"a", b"\n", b"\n\n", b"\r", b"data: a\n\n"]), max_size=4).map(
            b"".join
        ),
        max_size=5,
    )
)
def test_the_quick_way_says_the_same_or_nothing(chunks: list[bytes]) -> None:
    decoder = EventDecoder()
    data = decoder.one_each(chunks) if chunks else None
    events = [decode(chunk) for chunk in chunks]
    if data is not None:
        assert data == b",".join(event for [event] in events)
    elif chunks:
        whole = all(chunk.startswith(b"data: ") and chunk.find(b"\n\n") == len(chunk) - 2 for chunk in chunks)
        assert not whole or any(b"\r" in chunk or chunk.count(b"\n") != 2 for chunk in chunks)


def test_the_quick_way_is_not_taken_in_the_middle_of_an_event() -> None:
    decoder = EventDecoder()
    decoder.feed(b"data: begun\n")
    assert decoder.one_each([b"data: a\n\n"]) is None
    assert decoder.feed(b"data: a\n\n") == [b"begun\na"]
    assert decoder.one_each([b"data: a\n\n", b"data: b\n\n"]) == b"a,b"
