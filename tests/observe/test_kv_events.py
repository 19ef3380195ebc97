"""KV events over a real socket, and payloads of every kind."""

from __future__ import annotations

import json
import time
from pathlib import Path

import msgpack
import numpy as np
import pandas as pd
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.errors import RecordError
from kvbench.ledger.events import event_table
from kvbench.observe.kv_events import EVENTS_NAME, Frame, KvEventListener, decode, in_order

STORED = {
    "type": "BlockStored",
    "block_hashes": [14866752011490726644, 1],
    "parent_block_hash": 5491069014787098876,
    "token_ids": [174, 58, 88, 9],
    "block_size": 2,
    "lora_id": None,
    "medium": "GPU",
    "group_idx": 0,
}
REMOVED = {"type": "BlockRemoved", "block_hashes": [b"\x01" * 32], "medium": "CPU", "group_idx": 0}


def frame(batch: object, sequence: int = 0, *, monotonic_s: float = 110.0, unix_s: float = 1010.0) -> Frame:
    return Frame(monotonic_s, unix_s, sequence, msgpack.packb(batch))


def publish(listener: KvEventListener, sequences: list[int], topic: str | None = None) -> None:
    """As an engine does: it connects, and sends once somebody has subscribed."""
    with zmq.Context() as context, context.socket(zmq.XPUB) as socket:
        socket.setsockopt(zmq.LINGER, 2000)
        socket.connect(listener.target.endpoint)
        assert socket.poll(5000), "nobody subscribed"
        for sequence in sequences:
            payload = msgpack.packb([time.time(), [STORED], 0])
            parts = ((topic or listener.target.topic).encode(), sequence.to_bytes(8, "big"), payload)
            socket.send_multipart(parts)


def recorded(directory: Path) -> pd.DataFrame:
    return pd.read_parquet(directory / EVENTS_NAME)


def test_what_an_engine_publishes_becomes_a_table(tmp_path: Path) -> None:
    listener = KvEventListener()
    assert listener.target.endpoint.startswith("tcp://127.0.0.1:")
    listener.start(tmp_path)
    origin = time.monotonic()
    publish(listener, [0, 1, 2])
    _wait_for(tmp_path)
    listener.stop(origin)
    table = recorded(tmp_path)
    assert list(table["batch"]) == [0, 1, 2]
    assert table["t_s"].between(-1, 60).all()
    assert list(table["tokens"].iloc[0]) == [174, 58, 88, 9]
    assert [path.name for path in tmp_path.iterdir()] == [EVENTS_NAME], "nothing else is left"


def _wait_for(directory: Path) -> None:
    deadline = time.monotonic() + 10
    while not any(directory.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.01)


def test_another_engines_events_are_not_taken_in(tmp_path: Path) -> None:
    listener = KvEventListener()
    listener.start(tmp_path)
    publish(listener, [1], topic="kvbench-of-an-earlier-run")
    publish(listener, [0])
    _wait_for(tmp_path)
    listener.stop(0.0)
    assert list(recorded(tmp_path)["batch"]) == [0]


def test_a_number_beyond_all_that_engines_count_to_is_a_gap(tmp_path: Path) -> None:
    """vLLM ends a replay with −1; as an unsigned number it would fit no table."""
    listener = KvEventListener()
    listener.start(tmp_path)
    publish(listener, [0, 2**64 - 1])
    _wait_for(tmp_path)
    listener.stop(0.0)
    table = recorded(tmp_path)
    assert list(table["kind"]) == ["stored", "lost", "stored"]


def test_a_round_without_events_has_no_table_and_the_port_is_given_back(tmp_path: Path) -> None:
    listener = KvEventListener()
    listener.start(tmp_path)
    listener.stop(0.0)
    assert list(tmp_path.iterdir()) == []
    listener.close()
    port = int(listener.target.endpoint.rpartition(":")[2])
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.bind(f"tcp://127.0.0.1:{port}")


def test_a_disk_that_refuses_is_an_error_of_the_round(tmp_path: Path) -> None:
    listener = KvEventListener()
    gone = tmp_path / "gone"
    gone.mkdir()
    listener.start(gone)
    gone.rmdir()
    publish(listener, [0])
    time.sleep(0.3)
    with pytest.raises(RecordError, match="cannot write"):
        listener.stop(0.0)


def test_times_are_the_engines_own_moved_to_the_rounds_clock() -> None:
    """Said at Unix second 1009, heard at 1010, which was second 110 of the monotonic clock; time zero was 100."""
    (event,) = decode(frame([1009.0, [REMOVED]]), 100.0) or []
    assert (event.t_s, event.kind, event.tier, event.hashes) == (9.0, "removed", "host", (b"\x01" * 32,))


def test_hashes_are_the_same_wherever_they_are_told() -> None:
    said = [STORED, {**STORED, "medium": "STORAGE", "token_ids": [], "block_size": 0, "parent_block_hash": None}]
    device, disk = decode(frame([1009.0, said]), 0.0) or []
    assert device.hashes == disk.hashes
    assert (device.tier, disk.tier) == ("device", "disk")
    assert (len(device.tokens), len(disk.tokens), disk.parent) == (4, 0, None)


def test_a_gap_in_the_sequence_and_a_message_that_is_none_are_events() -> None:
    frames = [frame([1.0, [REMOVED]], 3), frame([1.0, [REMOVED]], 6), Frame(1.0, 1.0, 7, b"\xc1")]
    assert [(e.kind, e.batch) for e in in_order(frames, 0.0)] == [
        ("lost", 0),
        ("removed", 3),
        ("lost", 4),
        ("removed", 6),
        ("lost", 7),
    ]


def test_messages_that_come_again_or_in_another_order_leave_nothing_certain_from_there_on() -> None:
    """Also those of a second rank on the same address, which counts its own through from 0."""
    for sequences, certain in (([0, 1, 1, 2], 2), ([0, 2, 1, 3], 1), ([0, 0, 1, 1], 1)):
        kinds = [event.kind for event in in_order([frame([1.0, [REMOVED]], n) for n in sequences], 0.0)]
        assert kinds.index("lost") == certain
        assert kinds.count("removed") == len(sequences), "what is said is kept"


def test_an_event_is_not_said_after_it_was_heard() -> None:
    """Given a wall clock that was set back by an hour on the way, then the moment of hearing is the latest."""
    (event,) = decode(frame([1009.0 + 3600, [REMOVED]]), 100.0) or []
    assert event.t_s == 10.0


def test_what_is_understood_can_be_stored() -> None:
    media = [{**STORED, "medium": medium} for medium in ("GPU", "NVME", None)]
    events = [*in_order([frame([1.0, media], -1 % 2**63)], 0.0)]
    table = event_table(events)
    assert table["tier"].to_pylist() == [None, "device", "NVME", None]
    for tokens in ([[174, 58], [88, 9]], [2**40], ["a"]):
        assert decode(frame([1.0, [{**STORED, "token_ids": tokens}]]), 0.0) is None


def test_unknown_events_are_left_out() -> None:
    said = [{"type": "BlockMoved", "block_hashes": [1]}, ["array", "form"], None, {"type": "AllBlocksCleared"}]
    assert [event.kind for event in decode(frame([1.0, said]), 0.0) or []] == ["cleared"]


@settings(max_examples=80, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_events_or_not_understood(payload: bytes) -> None:
    events = decode(Frame(1.0, 1.0, 0, payload), 0.0)
    assert events is None or all(event.kind in ("stored", "removed", "cleared") for event in events)


values = st.recursive(
    st.none() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(STORED)), values, max_size=8))
def test_any_fields_are_taken_or_the_message_is_not_understood(fields: dict[str, object]) -> None:
    events = decode(frame([1.0, [{**STORED, **fields, "type": "BlockStored"}]]), 0.0)
    assert events is None or [event.kind for event in events] == ["stored"]
    assert event_table(events or []).num_rows == len(events or [])


def test_captured_events_are_understood(shared_dir: Path) -> None:
    lines = (shared_dir / "facts" / "vllm-0.32.0" / "kv-events-sample.jsonl").read_text().splitlines()
    frames = []
    for line in lines:
        said = json.loads(line)
        for event in said["batch"][1]:
            for key in ("block_hashes", "token_ids", "extra_keys"):  # the capture was shortened
                if isinstance(event.get(key), list):
                    event[key] = [value for value in event[key] if not isinstance(value, str)]
        frames.append(frame(said["batch"], said["seq"]))
    found = [event for event in in_order(frames, 0.0) if event.kind != "lost"]
    assert [(e.kind, e.tier) for e in found] == [
        ("stored", "device"),
        ("stored", "host"),
        ("stored", "disk"),
        ("removed", "host"),
        ("removed", "device"),
        ("cleared", None),
    ]
    assert found[1].hashes == found[2].hashes
    assert np.array_equal(found[1].tokens, found[2].tokens)
