"""The head of an answer is read the same wherever it was cut, and whether it was seen before or not."""

from __future__ import annotations

import pytest

from kvbench.load.framing import Chunked, Sized, UntilClose
from kvbench.load.head import Head, HeadError, HeadReader

CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def parse(*pieces: bytes) -> tuple[Head | None, bytes]:
    reader = HeadReader()
    rest = b""
    for piece in pieces:
        rest = reader.take(piece)
    return reader.head, rest


def test_a_head_cut_in_two_anywhere_is_the_same_head() -> None:
    whole, rest = parse(CHUNKED + b"5\r\n")
    assert whole == Head(200, "text/event-stream", True, False, True, None)
    assert rest == b"5\r\n"
    for place in range(1, len(CHUNKED)):
        assert parse(CHUNKED[:place], CHUNKED[place:] + b"5\r\n") == (whole, b"5\r\n")
    assert parse(CHUNKED[:-1]) == (None, b"")


def test_a_head_that_was_seen_before_is_read_as_the_first_time() -> None:
    for number in range(200):  # more than are remembered
        head = b"HTTP/1.1 200 OK\r\nX-Id: %d\r\nContent-Length: %d\r\n\r\n" % (number, number)
        first = parse(head + b"body")
        assert first == (Head(200, "", True, False, False, number), b"body")
        assert parse(head + b"other") == (first[0], b"other")
        assert parse(head) == (first[0], b"")


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        (b"Content-Length: 3", Sized),
        (b"Transfer-Encoding: chunked", Chunked),
        (b"Connection: close", UntilClose),
    ],
)
def test_the_head_tells_how_the_body_ends(fields: bytes, kind: type) -> None:
    for _ in range(2):
        head, _ = parse(b"HTTP/1.1 200 OK\r\n" + fields + b"\r\n\r\n")
        assert head is not None
        assert type(head.framing()) is kind
        assert head.keep_alive == (kind is not UntilClose)


@pytest.mark.parametrize("text", [b"SSH-2.0\r\n\r\n", b"HTTP/1.1 200 OK\r\nA: " + b"x" * 70_000])
def test_what_is_no_head_is_refused_every_time(text: bytes) -> None:
    for _ in range(2):
        with pytest.raises(HeadError):
            parse(text)
