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
