"""KV events of an engine that kvbench launched: received over ZMQ, kept as they come, made a table at the end.

vLLM connects to an address without a wildcard, so it is kvbench that listens: on loopback, on a port that the
kernel gives it. A random topic keeps out what an engine of an earlier run may still send to that port.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgpack
import numpy as np
import zmq

from kvbench.engine.base import KvEventTarget
from kvbench.engine.ports import LOOPBACK
from kvbench.errors import RecordError
from kvbench.ledger.events import KvEvent, event_table
from kvbench.record.atomic import write_table

__all__ = ["EVENTS_NAME", "Frame", "KvEventListener", "decode", "in_order"]

EVENTS_NAME = "kv_events.parquet"
_RAW_NAME = "kv_events.raw"
"""While a round runs: msgpack arrays of monotonic and Unix seconds, sequence number and payload."""

_TIERS = {"GPU": "device", "CPU": "host", "STORAGE": "disk"}
_KINDS = {"BlockStored": "stored", "BlockRemoved": "removed", "AllBlocksCleared": "cleared"}
_LOOK_MS = 100
_LARGEST_BYTES = 256 * 2**20
"""No step of an engine says more; a message beyond it is not one of an engine's."""
_HASH_BYTES = 8
_SEQUENCE_BYTES = 8


class Frame(NamedTuple):
    """One message as it came."""

    monotonic_s: float
    unix_s: float
    """The same moment on the clock that engines put into their messages."""
    sequence: int
    payload: bytes


class KvEventListener:
    """Listens from its making on. `start`, then `stop` (which writes the table) or `close` (which does not)."""

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        topic = f"kvbench-{secrets.token_hex(8)}"
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, _LARGEST_BYTES)
        self._socket.setsockopt(zmq.SUBSCRIBE, topic.encode())
        port = self._socket.bind_to_random_port(f"tcp://{LOOPBACK}", min_port=32768, max_port=60999)
        self.target = KvEventTarget(f"tcp://{LOOPBACK}:{port}", topic)
        """Where the engine is to send them."""
        self._raw: Path | None = None
        self._failure: Exception | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvbench-kv-events", daemon=True)

    def start(self, directory: Path) -> None:
        """Begin to take in what comes; `directory` is the round's."""
        self._raw = directory / _RAW_NAME
        self._raw.unlink(missing_ok=True)
        self._thread.start()

    def stop(self, origin: float) -> None:
        """Write `kv_events.parquet`, unless nothing came. `origin`: the round's time zero, monotonic seconds.
        RecordError when the disk refused."""
        self.close()
        raw = self._raw
        if isinstance(self._failure, OSError):
            raise RecordError(
                f"cannot write {raw}: {self._failure.strerror or self._failure}", do="free space, then --resume"
            )
        if self._failure is not None:
            raise self._failure
        if raw is None or not raw.exists():
            return
        write_table(raw.with_name(EVENTS_NAME), event_table(in_order(_frames(raw), origin)))
        raw.unlink()

    def close(self) -> None:
        """End the thread and give the port back; may be called again."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()
        self._context.destroy(linger=0)

    def _run(self) -> None:
        try:
            self._receive()
        except Exception as error:  # noqa: BLE001 - raised again by `stop`, on the thread that can act on it
            self._failure = error

    def _receive(self) -> None:
        """What has come is written before anybody's wish to end is heeded, so nothing that is there is lost."""
        raw = self._raw
        while raw is not None:
            ending = self._end.is_set()
            if self._socket.poll(0 if ending else _LOOK_MS):
                with raw.open("ab") as file:
                    while self._socket.poll(0):
                        parts = self._socket.recv_multipart()
                        file.write(msgpack.packb((time.monotonic(), time.time(), *parts[1:])))
            if ending:
                return


def _frames(raw: Path) -> Iterator[Frame]:
    """What was kept, in the order in which it came; what is no message of an engine is left out."""
    with raw.open("rb") as file:
        for entry in msgpack.Unpacker(file, max_buffer_size=2 * _LARGEST_BYTES):
            if len(entry) == len(Frame._fields) and len(entry[2]) == _SEQUENCE_BYTES:
                yield Frame(entry[0], entry[1], int.from_bytes(entry[2], "big", signed=True), entry[3])


def in_order(frames: Iterable[Frame], origin: float) -> Iterator[KvEvent]:
    """The events of all messages; a gap in the sequence, which an engine begins with 0, is an event of its own."""
    expected = 0
    for frame in frames:
        if frame.sequence != expected:
            yield KvEvent(expected, frame.monotonic_s - origin, "lost")
        expected = frame.sequence + 1
        events = decode(frame, origin)
        if events is None:
            yield KvEvent(frame.sequence, frame.monotonic_s - origin, "lost")
        else:
            yield from events


def decode(frame: Frame, origin: float) -> list[KvEvent] | None:
    """The events of one message; None when it is not understood, whatever it is. Unknown kinds are left out."""
    try:
        batch = msgpack.unpackb(frame.payload, strict_map_key=False)
        said_s, events = float(batch[0]), batch[1]
        # Nothing is said after it was heard, whatever became of the clock on the way.
        t_s = min(frame.monotonic_s - frame.unix_s + said_s, frame.monotonic_s) - origin
        if not np.isfinite(t_s):
            return None
        return [
            _event(frame.sequence, t_s, event)
            for event in events
            if isinstance(event, Mapping) and event.get("type") in _KINDS
        ]
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, msgpack.UnpackException):
        return None


def _event(batch: int, t_s: float, said: Mapping[str, object]) -> KvEvent:
    medium, parent, tokens, group = (
        said.get(name) for name in ("medium", "parent_block_hash", "token_ids", "group_idx")
    )
    hashes = said.get("block_hashes") or ()
    if not isinstance(hashes, list | tuple):
        raise TypeError("block hashes are not a list")
    ids = np.array(tokens if isinstance(tokens, list) else [], np.int32)
    if ids.ndim != 1:
        raise TypeError("token ids are not a plain list")
    return KvEvent(
        batch=batch,
        t_s=t_s,
        kind=_KINDS[str(said["type"])],  # type: ignore[arg-type]  # values of the table above
        tier=None if medium is None else _TIERS.get(str(medium), str(medium)),
        hashes=tuple(map(_hash, hashes)),
        parent=None if parent is None else _hash(parent),
        tokens=ids,
        block_tokens=_whole(said.get("block_size")) or 0,
        group=_whole(group),
    )


def _hash(value: object) -> bytes:
    """64-bit numbers by default, longer bytes when asked for."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, int):
        return value.to_bytes(_HASH_BYTES, "big")
    raise TypeError("a block hash is neither a number nor bytes")


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and -(2**31) <= value < 2**31 else None
