"""What passes between master and worker: validated, in order, and from whoever has the secret alone."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.load import messages as m

KEY = m.session_key(b"a secret", "0" * 32, "1" * 32)


def ends() -> tuple[m.Seal, m.Seal]:
    return m.Seal(KEY, master=True), m.Seal(KEY, master=False)


def over_the_wire(envelope: object) -> object:
    return msgpack.loads(msgpack.dumps(envelope))


@given(st.binary(max_size=300), st.integers(0, 10**9))
@settings(max_examples=30)
def test_a_message_arrives_as_it_was_sent(blob: bytes, number: int) -> None:
    master, worker = ends()
    for _ in range(2):
        assert worker.open(over_the_wire(master.close(m.Ping(number=number), blob))) == (
            m.Ping(number=number),
            blob,
        )
        assert master.open(over_the_wire(worker.close(m.Late(by_s=0.5), blob))) == (m.Late(by_s=0.5), blob)


@given(st.data())
@settings(max_examples=60)
def test_nothing_changed_on_the_way_is_believed(data: st.DataObject) -> None:
    master, worker = ends()
    envelope = dict(master.close(m.Go(zero_ns=12345), b"some rows"))
    key = data.draw(st.sampled_from(["kind", "body", "blob", "number", "tag"]))
    replacement = data.draw(
        st.sampled_from(["Go", "Stop"])
        if key == "kind"
        else st.integers(0, 9)
        if key == "number"
        else st.binary(max_size=40)
    )
    changed = envelope | {key: replacement}
    if changed == envelope:
        return
    with pytest.raises(m.BadMessageError):
        worker.open(changed)


def test_a_message_counts_once_in_its_order_and_its_direction() -> None:
    master, worker = ends()
    first, second = master.close(m.Stop()), master.close(m.Over(kept=True))
    with pytest.raises(m.BadMessageError, match="out of order"):
        worker.open(second)
    worker.open(first)
    with pytest.raises(m.BadMessageError, match="out of order"):
        worker.open(first)
    worker.open(second)
    with pytest.raises(m.BadMessageError):
        master.open(m.Seal(KEY, master=True).close(m.Stop()))


def test_another_secret_proves_nothing() -> None:
    other = m.Seal(m.session_key(b"a guess", "0" * 32, "1" * 32), master=False)
    with pytest.raises(m.BadMessageError, match="forged"):
        ends()[0].open(other.close(m.Proof()))
    assert m.master_proof(b"a guess", "0" * 32, "1" * 32) != m.master_proof(b"a secret", "0" * 32, "1" * 32)


@pytest.mark.parametrize(
    "nonsense",
    [
        None,
        b"",
        7,
        [],
        {},
        {"kind": "Go"},
        {"kind": 1, "body": b"", "blob": b"", "number": 0, "tag": b""},
        "x" * 50,
    ],
)
def test_nonsense_is_told_as_such(nonsense: object) -> None:
    with pytest.raises(m.BadMessageError):
        ends()[0].open(nonsense)
    with pytest.raises(m.BadMessageError):
        m.read_unsealed(nonsense, m.Hello)


def test_a_genuine_envelope_with_a_body_of_another_shape_is_refused() -> None:
    class Go(m.Message):
        zero_ns: str

    with pytest.raises(m.BadMessageError, match="well-formed"):
        ends()[1].open(ends()[0].close(Go(zero_ns="soon")))
    with pytest.raises(m.BadMessageError, match="Challenge"):
        m.read_unsealed(m.unsealed(m.Refused(what="no", do=None)), m.Challenge)
