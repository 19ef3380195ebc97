"""What a master and its workers say to each other: plain validated values in sealed envelopes, never pickles.

An envelope is the data of a Locust message. Its body is JSON, its blob an Arrow buffer or a schedule; its tag, made
with a key that only the two have, covers both and their place in the sequence.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvbench.errors import LoadError
from kvbench.load.plan import LoadPlan

__all__ = [
    "ENVELOPE",
    "PROTOCOL",
    "Assign",
    "AtLine",
    "BadMessageError",
    "Batch",
    "Challenge",
    "Failed",
    "Finished",
    "Go",
    "Hello",
    "Late",
    "Message",
    "Over",
    "Ping",
    "Pong",
    "Prepared",
    "Prime",
    "Progress",
    "Proof",
    "Refused",
    "Seal",
    "Stop",
    "kind_of",
    "master_proof",
    "read_unsealed",
    "session_key",
    "unsealed",
]

ENVELOPE = "kvbench"
"""The type of every Locust message of ours."""
PROTOCOL = 1

Nonce = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
Text = Annotated[str, Field(max_length=4000)]
Count = Annotated[int, Field(ge=0)]


class BadMessageError(LoadError):
    """What came cannot be a message of the other side."""


class Message(BaseModel):
    """Base of all of them."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Hello(Message):
    """Worker: I am here. `index` is set for those whom the master started itself."""

    protocol: int
    kvbench: Text
    nonce: Nonce
    host: Text
    machine: Text
    """Equal on one machine: its boot and its time namespace."""
    index: Count | None


class Challenge(Message):
    """Master: prove that you have the secret; here is the proof that I have it."""

    nonce: Nonce
    proof: Nonce


class Proof(Message):
    """Worker: the first sealed message; its tag is the proof."""


class Refused(Message):
    """Master: you cannot take part."""

    what: Text
    do: Text | None


class Ping(Message):
    """Master: what time is it?"""

    number: Count


class Pong(Message):
    """Worker: it was so much when your question came, and is so much now."""

    number: Count
    received_ns: Count
    replied_ns: Count


class Assign(Message):
    """Master: your plan; your share of the schedule is the blob. Paths in the plan are the master's own."""

    plan: LoadPlan


class Prepared(Message):
    """Worker: I have my share."""

    planned: Count


class AtLine(Message):
    """Worker: primed and encoded; waiting for the common start."""


class Go(Message):
    """Master: time zero, by your clock."""

    zero_ns: int


class Late(Message):
    """Worker: time zero was over when I heard of it."""

    by_s: float


class Prime(Message):
    """Worker: so much of the priming is done."""

    done: Count
    of: Count


class Progress(Message):
    """Worker: once a second."""

    t_s: float
    sent: Count
    done: Count
    failed: Count
    running: Count
    tokens: Count
    ttft_p50_s: float | None
    refused: Count
    refused_with: int | None
    served: Count


class Batch(Message):
    """Worker: rows; the blob is one Arrow record batch."""

    table: Literal["requests", "tokens"]


class Finished(Message):
    """Worker: played, and all rows are sent."""

    complete: bool
    rows: Count
    tokens: Count
    figures: dict[str, float | None]


class Failed(Message):
    """Worker: I cannot go on."""

    what: Text
    do: Text | None
    exit_code: int


class Stop(Message):
    """Master: end the round now, with its rows."""


class Over(Message):
    """Master: the round is over. `kept`: your rows are on the master's disk."""

    kept: bool


_KINDS: dict[str, type[Message]] = {kind.__name__: kind for kind in Message.__subclasses__()}


class _Envelope(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    kind: str
    body: bytes
    blob: bytes = b""
    number: Count
    tag: bytes


def _key(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()


def session_key(secret: bytes, worker_nonce: str, master_nonce: str) -> bytes:
    """The key of one worker's conversation with one master."""
    return hashlib.blake2b(f"session {worker_nonce} {master_nonce}".encode(), key=_key(secret)).digest()


def master_proof(secret: bytes, worker_nonce: str, master_nonce: str) -> str:
    """What only somebody with the secret can answer to a worker's nonce."""
    text = f"master {worker_nonce} {master_nonce}".encode()
    return hashlib.blake2b(text, key=_key(secret), digest_size=16).hexdigest()


AnyMessage = TypeVar("AnyMessage", bound=Message)


def unsealed(message: Message) -> dict[str, object]:
    """An envelope from before there is a key."""
    return {"kind": type(message).__name__, "body": message.model_dump_json().encode(), "number": 0, "tag": b""}


def read_unsealed(data: object, kind: type[AnyMessage]) -> AnyMessage:
    """The message of an envelope from before there is a key. BadMessageError when it is not a `kind`."""
    envelope = _open(data)
    if envelope.kind != kind.__name__:
        raise BadMessageError(f"{envelope.kind[:40]!r} came where {kind.__name__} was due")
    message = _message(envelope)
    assert isinstance(message, kind)  # noqa: S101  (its name says so)
    return message


def kind_of(data: object) -> str:
    """Which message an envelope holds; nothing else about it is checked."""
    return _open(data).kind


class Seal:
    """One end of a sealed conversation. Messages arrive once and in order, or it is broken."""

    def __init__(self, key: bytes, *, master: bool) -> None:
        self._key = key
        self._out, self._in = (b"m", b"w") if master else (b"w", b"m")
        self._sent = 0
        self._received = 0

    def close(self, message: Message, blob: bytes = b"") -> dict[str, object]:
        """The envelope that is sent next."""
        self._sent += 1
        kind, body = type(message).__name__, message.model_dump_json().encode()
        tag = self._tag(self._out, self._sent, kind, body, blob)
        return {"kind": kind, "body": body, "blob": blob, "number": self._sent, "tag": tag}

    def open(self, data: object) -> tuple[Message, bytes]:
        """Message and blob of the envelope that came next. BadMessageError when it is not genuine."""
        envelope = _open(data)
        tag = self._tag(self._in, self._received + 1, envelope.kind, envelope.body, envelope.blob)
        if envelope.number != self._received + 1 or not hmac.compare_digest(tag, envelope.tag):
            raise BadMessageError("a message is forged, lost or out of order")
        self._received += 1
        return _message(envelope), envelope.blob

    def _tag(self, direction: bytes, number: int, kind: str, body: bytes, blob: bytes) -> bytes:
        head = b"%b %d %b %d %d " % (direction, number, kind.encode(), len(body), len(blob))
        digest = hashlib.blake2b(head, key=self._key, digest_size=16)
        digest.update(body)
        digest.update(blob)
        return digest.digest()


def _open(data: object) -> _Envelope:
    try:
        return _Envelope.model_validate(data)
    except ValidationError as error:
        raise BadMessageError(f"not an envelope: {error.error_count()} faults") from error


def _message(envelope: _Envelope) -> Message:
    kind = _KINDS.get(envelope.kind)
    if kind is None:
        raise BadMessageError(f"unknown message {envelope.kind[:40]!r}")
    try:
        return kind.model_validate_json(envelope.body)
    except ValidationError as error:
        raise BadMessageError(f"{envelope.kind} is not well-formed: {error.errors()[0]['msg']}") from error
