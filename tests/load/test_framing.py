"""Bodies end where HTTP says, wherever their bytes were cut, and nothing else is taken for their end."""

from __future__ import annotations

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.load.framing import READS_AT_ONCE, Chunked, Framing, FramingError, Sized, UntilClose

EVENT = b'data: {"text": "a"}\n\n'


def feed(framing: Framing, reads: list[bytes]) -> int | None:
    """As a connection does; the number of the read with which the body was over."""
    for index, data in enumerate(reads):
        if framing.worth_a_walk(data):
            framing.walk(reads[: index + 1])
        if framing.over:
            return index
    return None


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({place % (len(data) + 1) for place in cuts} - {0, len(data)})
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]


def chunked(*chunks: bytes, extension: bytes = b"", trailers: bytes = b"", upper: bool = False) -> bytes:
    size = b"%X" if upper else b"%x"
    body = b"".join(size % len(chunk) + extension + b"\r\n" + chunk + b"\r\n" for chunk in chunks)
    return body + b"0" + extension + b"\r\n" + trailers + b"\r\n"


CONTENTS = st.lists(
    st.sampled_from(
        [EVENT, b"\r\n\r\n", b"0\r\n\r\n", b"\r\n0\r\n\r\n", b"data: 0\r\n\r\n", b"5\r\n", b"\n", b"x" * 300]
    ),
    max_size=8,
)


@given(
    CONTENTS,
    st.sampled_from([b"", b";name=value", b' ; a="b"', b"  "]),
    st.sampled_from([b"", b"X-Trailer: 1\r\n", b"A: b\r\nC: d\r\n"]),
    st.booleans(),
    st.lists(st.integers(0, 10_000), max_size=20),
)
def test_a_chunked_body_is_over_with_its_last_byte_and_not_before(
    contents: list[bytes], extension: bytes, trailers: bytes, upper: bool, cuts: list[int]
) -> None:
    body = chunked(*contents, extension=extension, trailers=trailers, upper=upper)
    reads = cut(body, cuts)
    framing = Chunked()
    assert feed(framing, reads) == len(reads) - 1
    assert b"".join(framing.pieces) == b"".join(contents)
    assert not framing.surplus
    assert framing.read_of == sorted(framing.read_of)


@pytest.mark.parametrize("gzipped", [False, True])
def test_every_split_position_of_a_chunked_body(gzipped: bool) -> None:
    contents = [EVENT, b"data: 0\r\n\r\n", EVENT]
    whole = b"".join(contents)
    if gzipped:
        packed = gzip.compress(whole, mtime=0)
        contents = [packed[:5], packed[5:]]
    body = chunked(*contents)
    for place in range(1, len(body)):
        framing = Chunked(gzipped=gzipped)
        assert feed(framing, [body[:place], body[place:]]) == 1, place
        assert b"".join(framing.pieces) == whole
    single = Chunked(gzipped=gzipped)
    assert feed(single, [body[index : index + 1] for index in range(len(body))]) == len(body) - 1
    assert b"".join(single.pieces) == whole


@given(st.lists(st.integers(1, 300), min_size=8, max_size=70), st.lists(st.integers(0, 30_000), max_size=6))
def test_whole_chunks_with_a_few_that_are_cut_or_came_together(sizes: list[int], cuts: list[int]) -> None:
    """Given chunks that mostly came one a read, then each is a piece of its own with the number of its read."""
    chunks = [chunked(b"x" * size)[:-5] for size in sizes]
    body = b"".join(chunks)
    seams = {sum(map(len, chunks[:number])) for number in range(1, len(chunks))}
    for place in cuts:  # a cut inside of a chunk, or one less between two
        seams ^= {place % len(body)}
    places = sorted(seams - {0})
    reads = [body[start:end] for start, end in zip([0, *places], [*places, len(body)], strict=True)]
    at_once, single = Chunked(), Chunked()
    at_once.walk(list(reads))
    for number in range(len(reads)):
        single.walk(reads[: number + 1])
    assert (at_once.pieces, at_once.read_of) == (single.pieces, single.read_of)
    assert b"".join(at_once.pieces) == b"".join(b"x" * size for size in sizes)
    assert not at_once.over


def test_a_stray_line_end_between_chunks_is_no_chunk() -> None:
    for stray in (b"\n", b"\nabc\r\n", b"\n" + b"x" * 20 + b"\r\n"):
        with pytest.raises(FramingError):
            Chunked().walk([b"3\r\nabc\r\n", stray, b"3\r\nabc\r\n"])


def test_a_piece_knows_the_read_that_completed_it() -> None:
    body = chunked(EVENT, EVENT)
    middle = len(body) // 2
    framing = Chunked()
    feed(framing, [chunked(EVENT)[:-5], body[:middle], body[middle:]])
    assert framing.read_of[0] == 0
    assert framing.read_of[-1] == 2
    assert framing.pieces[0] == EVENT


@given(CONTENTS.filter(bool), st.integers(1, 60))
def test_a_body_that_breaks_off_is_never_over(contents: list[bytes], missing: int) -> None:
    body = chunked(*contents)[:-missing]
    framing = Chunked()
    assert feed(framing, [body]) is None
    assert feed(Chunked(), [body[index : index + 1] for index in range(len(body))]) is None


def test_the_end_of_a_long_answer_takes_no_longer_than_that_of_a_short_one() -> None:
    framing = Chunked()
    reads = [b"%x\r\n%s\r\n" % (len(EVENT), EVENT)] * 1000
    feed(framing, reads)
    assert len(reads) - framing.walked < READS_AT_ONCE


def test_bytes_behind_the_end_are_noticed() -> None:
    for body in (chunked(EVENT) + b"H", chunked() + chunked()):
        framing = Chunked()
        framing.walk([body])
        assert framing.over
        assert framing.surplus
    sized = Sized(3)
    sized.walk([b"abcd"])
    assert (sized.over, sized.surplus, sized.pieces) == (True, True, [b"abc"])


@pytest.mark.parametrize(
    "body",
    [
        b"zz\r\nabc",
        b"\r\nabc\r\n",
        b"3\nabc\r\n",
        b"3\r\nabcd\r\n",
        b"-3\r\nabc",
        b"+3\r\nabc",
        b"1_0\r\n",
        b"0x3\r\n",
        b"3\r\nabc\n\n",
        b"3 4\r\nabc",
        b"f" * 16 + b"\r\n",
        b"3\r\nabc\r\n" * 2 + b"data\r\n",
        b"1;" + b"x" * 9000,
    ],
)
def test_what_is_no_chunked_body_is_refused_wherever_it_is_cut(body: bytes) -> None:
    with pytest.raises(FramingError):
        Chunked().walk([body])
    with pytest.raises(FramingError):
        Chunked().walk([body[index : index + 1] for index in range(len(body))])


def test_sized_and_endless_bodies() -> None:
    sized = Sized(10)
    assert feed(sized, [b"12345", b"67890"]) == 1
    assert (sized.pieces, sized.read_of) == ([b"12345", b"67890"], [0, 1])
    assert Sized(0).over
    endless = UntilClose(gzipped=True)
    packed = gzip.compress(b"hello")
    assert feed(endless, [packed[:9], packed[9:]]) is None
    endless.walk([packed[:9], packed[9:]])
    assert b"".join(endless.pieces) == b"hello"
    with pytest.raises(FramingError, match="cannot be read"):
        Sized(9, gzipped=True).walk([b"not gzip!"])


def test_of_an_error_only_the_beginning_is_kept() -> None:
    framing = Chunked(limit=10)
    framing.walk([chunked(b"x" * 8, b"y" * 8, b"z" * 8)])
    assert framing.over
    assert b"".join(framing.pieces) == b"xxxxxxxxyy"
