"""What a streamed completion says: which tokens came when, how it ended, what the server counted.

Works on the recorded bytes of an answer after it is over, a few events at a time, so that the driver's loop is
never held up. Times are monotonic nanoseconds. Knows completions and chat completions of vLLM and its like.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvbench.load.outcome import Failure, encodable
from kvbench.load.sse import EventDecoder
from kvbench.load.tokens import Carrier, Placed, place_tokens

__all__ = ["Completion", "CompletionReader"]

_DONE = b"[DONE]"
_SHOWN = 200
"""Characters of a server's own words that go into a row."""
_MOST_TOKENS = 1 << 24
"""No context is longer than 16 million tokens; a larger count is nonsense and would only fill the memory."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer, read to its end."""

    placed: Placed
    token_ids: tuple[int, ...] | None
    """None: the server gave none."""
    text: str
    finish_reason: str | None
    prompt_tokens: int | None
    cached_tokens: int | None
    events: int
    failure: Failure | None


class CompletionReader:
    """Reads the chunks of one body, each with the time it was received."""

    def __init__(self, chunks: Sequence[bytes], times_ns: Sequence[int]) -> None:
        self._chunks = chunks
        self._times_ns = times_ns
        self._next = 0
        self._decoder = EventDecoder()
        self._carriers: list[Carrier] = []
        self._ids = array("q")
        self._text: list[str] = []
        self._finish_reason: str | None = None
        self._usage: object = None
        self._done = False
        self._events = 0
        self._events_before = 0
        self._failure: Failure | None = None

    @property
    def over(self) -> bool:
        """Whether everything that matters has been read."""
        return self._done or self._failure is not None or self._next >= len(self._chunks)

    def step(self, chunks: int = 64) -> bool:
        """Read at most `chunks` further chunks; True when there is no more to read."""
        end = min(self._next + chunks, len(self._chunks))
        payloads: list[bytes] = []
        times: list[int] = []
        for index in range(self._next, end):
            for payload in self._decoder.feed(self._chunks[index]):
                payloads.append(payload)
                times.append(self._times_ns[index])
        self._next = end
        if _DONE in payloads:
            self._done = True
            cut = payloads.index(_DONE)
            del payloads[cut:], times[cut:]
        try:
            events = _parse(payloads)
        except ValueError:
            events = self._parse_up_to_the_broken_one(payloads)
        try:
            self._take(events, times)
        except (
            TypeError,
            AttributeError,
            KeyError,
            OverflowError,
        ):  # JSON, but not of the types that a completion has
            shown = str(events[self._events - self._events_before])[:_SHOWN]
            self._failure = Failure("malformed_event", f"event {self._events} is {shown!r}")
        return self.over

    def completion(self) -> Completion:
        """The reading, once `step` has returned True."""
        failure = self._failure
        if failure is None and not (self._done and self._finish_reason):
            missing = "no [DONE]" if self._finish_reason else "no finish_reason"
            failure = Failure("stream_broken", f"the stream ended with {missing} after {self._events} events")
        if failure is None and self._finish_reason not in ("stop", "length"):
            failure = Failure("server_error", f"finish_reason is {self._finish_reason!r}")
        details = self._usage.get("prompt_tokens_details") if isinstance(self._usage, dict) else None
        return Completion(
            placed=place_tokens(self._carriers, _count(self._usage, "completion_tokens")),
            token_ids=tuple(self._ids) if self._ids else None,
            text="".join(self._text),
            finish_reason=self._finish_reason,
            prompt_tokens=_count(self._usage, "prompt_tokens"),
            cached_tokens=_count(details, "cached_tokens"),
            events=self._events,
            failure=failure,
        )

    def _parse_up_to_the_broken_one(self, payloads: list[bytes]) -> list[Any]:
        events: list[Any] = []
        for payload in payloads:
            try:
                events += _parse([payload])
            except ValueError:
                shown = payload[:_SHOWN].decode("utf-8", "backslashreplace")
                self._failure = Failure("malformed_event", f"event {self._events + len(events)} is {shown!r}")
                break
        return events

    def _take(self, events: list[Any], times_ns: list[int]) -> None:
        """The hot path: some microseconds of CPU for every event of a run are spent here."""
        self._events_before = self._events
        carriers, texts = self._carriers, self._text
        for event, at_ns in zip(events, times_ns, strict=False):
            choices = event.get("choices")
            usage = event.get("usage")
            if usage:
                self._usage = usage
            if choices:
                choice = choices[0]
                ids = choice.get("token_ids")
                delta = choice.get("delta")
                text = choice.get("text") if delta is None else delta.get("content")
                if text:
                    if not isinstance(text, str):
                        raise TypeError("text is not a string")
                    texts.append(text)
                if ids:
                    self._ids.extend(ids)
                if choice.get("finish_reason"):
                    self._finish_reason = encodable(str(choice["finish_reason"])[:_SHOWN])
                # A chat's first event only says who speaks.
                if delta is None or ids or text or carriers or "role" not in delta:
                    carriers.append(
                        Carrier(
                            at_ns,
                            None if ids is None else len(ids),
                            _count(usage, "completion_tokens") if usage else None,
                            len(text) if text else 0,
                        )
                    )
            elif event.get("error"):
                self._failure = Failure("server_error", _words(event["error"]))
                return
            self._events += 1


def _parse(payloads: list[bytes]) -> list[Any]:
    """The JSON values in `payloads`; ValueError when any is none. One call for all is twice as quick."""
    values = json.loads(b"[" + b",".join(payloads) + b"]")
    if len(values) != len(payloads):
        raise ValueError("not one value each")
    events: list[Any] = values
    return events


def _count(counts: object, name: str) -> int | None:
    value = counts.get(name) if isinstance(counts, dict) else None
    return value if isinstance(value, int) and 0 <= value <= _MOST_TOKENS else None


def _words(error: object) -> str:
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or error)[:_SHOWN]
