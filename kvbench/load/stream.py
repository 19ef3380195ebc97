"""What a streamed completion says: which tokens came when, how it ended, what the server counted.

Works on the recorded bytes of an answer after it is over, a few events at a time, so that the driver's loop is
never held up. Times are monotonic nanoseconds. Knows completions and chat completions of vLLM and its like.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from pydantic_core import from_json

from kvbench.load.alike import Alike
from kvbench.load.outcome import Failure, encodable
from kvbench.load.sse import EventDecoder
from kvbench.load.tokens import Carriers, Placed, place_tokens
from kvbench.load.usage import count_of, read_usage

__all__ = ["Completion", "CompletionReader"]

_DONE = b"[DONE]"
_DONE_CHUNK = b"data: [DONE]\n\n"
_SHOWN = 200
"""Characters of a server's own words that go into a row."""
_CLOSING = 3
"""Chunks at the end of an answer that are read one by one: its last token, the usage, `[DONE]`."""
_FEWEST_ALIKE = 16
"""Of fewer events it takes longer to find out what they have in common."""


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

    def __init__(self, chunks: Sequence[bytes], times_ns: Sequence[int], sent_ns: int = 0) -> None:
        """`sent_ns`: before it nothing of the answer can have come."""
        self._chunks = chunks
        self._times_ns = times_ns
        self._next = 0
        self._decoder = EventDecoder()
        self._carriers = Carriers(sent_ns)
        self._ids = array("q")
        self._text: list[str] = []
        self._finish_reason: str | None = None
        self._usage: object = None
        self._alike: Alike | None = None
        self._done = False
        self._events = 0
        self._events_before = 0
        self._failure: Failure | None = None

    @property
    def over(self) -> bool:
        """Whether everything that matters has been read."""
        return self._done or self._failure is not None or self._next >= len(self._chunks)

    @property
    def tokens(self) -> int:
        """Output tokens read so far: by their ids, else by a running usage, else one an event that may have one."""
        if self._ids or not self._carriers.at_ns:
            return len(self._ids)
        counted = self._carriers.counted[-1]
        return len(self._carriers.at_ns) if counted is None else counted

    def step(self, chunks: int = 128) -> bool:
        """Read at most `chunks` further chunks; True when there is no more to read."""
        end = min(self._next + chunks, len(self._chunks))
        batch = self._chunks[self._next : end]
        times = self._times_ns[self._next : end]
        # The first event and the last ones often say more than those between.
        first = 1 if self._next == 0 else 0
        last = min(end, len(self._chunks) - _CLOSING) - self._next
        self._next = end
        taken = 0
        if last - first >= _FEWEST_ALIKE:
            self._take_some(batch[:first], times[:first])
            taken = last if self._take_alike(batch[first:last], times[first:last]) else first
        self._take_some(batch[taken:], times[taken:])
        return self.over

    def _take_some(self, batch: Sequence[bytes], times_ns: Sequence[int]) -> None:
        if not (self._done or self._failure or self._take_whole(batch, times_ns)):
            self._take_in_pieces(batch, times_ns)

    def _take_alike(self, batch: Sequence[bytes], times_ns: Sequence[int]) -> bool:
        """Events that differ in text and ids alone. False when any of them is otherwise; nothing was taken then."""
        if self._done or self._failure or not self._decoder.idle:
            return False
        alike = self._alike or Alike.of(batch[len(batch) // 2])
        columns = alike.columns(batch) if alike else None
        self._alike = alike if columns else None
        return columns is not None and self._take_columns(*columns, None, times_ns)

    def _take_whole(self, batch: Sequence[bytes], times_ns: Sequence[int]) -> bool:
        """The usual: one event a chunk. False when it is otherwise; nothing was taken then."""
        done = bool(batch) and batch[-1] == _DONE_CHUNK
        if done:
            batch, times_ns = batch[:-1], times_ns[:-1]
        payloads = self._decoder.one_each(batch) if batch else b""
        if payloads is None:
            return False
        try:
            events = _values(payloads, len(batch))
        except ValueError:
            events = self._up_to_the_broken_one([chunk[6:-2] for chunk in batch])
        self._done = self._done or done
        self._take_if_right(events, times_ns)
        return True

    def _take_in_pieces(self, batch: Sequence[bytes], times_ns: Sequence[int]) -> None:
        payloads: list[bytes] = []
        times: list[int] = []
        ended_ns = self._carriers.at_ns[-1] if self._carriers.at_ns else None
        for chunk, at_ns in zip(batch, times_ns, strict=True):
            for payload in self._decoder.feed(chunk):
                payloads.append(payload)
                times.append(at_ns)
                ended_ns = at_ns
            # A long event may take several reads of one segment: its beginning then has the same time as its end.
            if ended_ns == at_ns and not self._decoder.idle:
                self._carriers.torn_ns.add(at_ns)
        if _DONE in payloads:
            self._done = True
            del payloads[payloads.index(_DONE) :]
        try:
            events = _values(b",".join(payloads), len(payloads))
        except ValueError:
            events = self._up_to_the_broken_one(payloads)
        self._take_if_right(events, times)

    def _take_if_right(self, events: list[Any], times_ns: Sequence[int]) -> None:
        try:
            self._events_before = self._events
            last = events[-1] if events else None
            usual = len(events) - (isinstance(last, dict) and not last.get("choices"))  # it often has usage alone
            if not self._take_usual(events[:usual], times_ns):
                usual = 0
            self._take(events[usual:], times_ns[usual:])
        except (
            TypeError,
            AttributeError,
            KeyError,
            OverflowError,
        ):  # JSON, but not of the types that a completion has
            shown = str(events[self._events - self._events_before])[:_SHOWN]
            self._failure = Failure("malformed_event", f"event {self._events} is {shown!r}")

    def completion(self) -> Completion:
        """The reading, once `step` has returned True."""
        failure = self._failure
        if failure is None and not (self._done and self._finish_reason):
            missing = "no [DONE]" if self._finish_reason else "no finish_reason"
            failure = Failure("stream_broken", f"the stream ended with {missing} after {self._events} events")
        if failure is None and self._finish_reason not in ("stop", "length"):
            failure = Failure("server_error", f"finish_reason is {self._finish_reason!r}")
        usage = read_usage(self._usage)
        return Completion(
            placed=place_tokens(self._carriers, usage.completion_tokens),
            token_ids=tuple(self._ids) if self._ids else None,
            text="".join(self._text),
            finish_reason=self._finish_reason,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            events=self._events,
            failure=failure,
        )

    def _up_to_the_broken_one(self, payloads: list[bytes]) -> list[Any]:
        events: list[Any] = []
        for payload in payloads:
            if payload == _DONE:
                self._done = True
                break
            try:
                events += _values(payload, 1)
            except ValueError:
                shown = payload[:_SHOWN].decode("utf-8", "backslashreplace")
                self._failure = Failure("malformed_event", f"event {self._events + len(events)} is {shown!r}")
                break
        return events

    def _take_usual(self, events: list[Any], times_ns: Sequence[int]) -> bool:
        """Completions without usage, all with token ids or all without, column by column, which takes a third of
        the time of one by one. False when any of them is otherwise; nothing was taken then."""
        try:
            choices = [event["choices"][0] for event in events]
            texts = [choice["text"] for choice in choices]
            ids = [choice.get("token_ids") for choice in choices]
            reasons = [reason for choice in choices if (reason := choice.get("finish_reason"))]
            unusual = [event.get("usage") for event in events] + ["delta" in choice for choice in choices]
        except (KeyError, IndexError, TypeError, AttributeError):
            return False
        if any(unusual):
            return False
        without = ids.count(None) == len(ids)
        return self._take_columns(texts, None if without else ids, reasons[-1] if reasons else None, times_ns)

    def _take_columns(
        self, texts: list[str], ids: list[list[int]] | None, reason: object, times_ns: Sequence[int]
    ) -> bool:
        """One text and, unless `ids` is None, one list of ids for each event. False when they are of other types;
        nothing was taken then."""
        counts: list[int | None] = [None] * len(texts)
        held = array("q")
        try:
            if ids is not None:
                counts = [len(each) for each in ids]
                held.extend(chain.from_iterable(ids))
            lengths = list(map(len, texts))
            text = "".join(texts)
        except (TypeError, OverflowError):
            return False
        if reason:
            self._finish_reason = encodable(str(reason)[:_SHOWN])
        self._ids.extend(held)
        self._text.append(text)
        carriers = self._carriers
        carriers.at_ns.extend(times_ns[: len(texts)])
        carriers.ids.extend(counts)
        carriers.text.extend(lengths)
        carriers.counted.extend([None] * len(texts))
        self._events += len(texts)
        return True

    def _take(self, events: list[Any], times_ns: Sequence[int]) -> None:
        """One event after the other."""
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
                held = None if ids is None else len(ids)
                if held:
                    self._ids.extend(ids)
                if choice.get("finish_reason"):
                    self._finish_reason = encodable(str(choice["finish_reason"])[:_SHOWN])
                # A chat's first event only says who speaks.
                if delta is None or ids or text or carriers.at_ns or "role" not in delta:
                    carriers.at_ns.append(at_ns)
                    carriers.ids.append(held)
                    carriers.text.append(len(text) if text else 0)
                    carriers.counted.append(count_of(usage, "completion_tokens") if usage else None)
            elif event.get("error"):
                self._failure = Failure("server_error", _words(event["error"]))
                return
            self._events += 1


def _values(payloads: bytes, count: int) -> list[Any]:
    """The `count` JSON values in `payloads`, with commas between; ValueError when it is otherwise.

    One call for all takes half the time of a call for each.
    """
    text = b"[" + payloads + b"]"
    try:
        values: list[Any] = from_json(text)
    except ValueError:
        values = json.loads(text)  # allows more, such as half of a surrogate pair
    if len(values) != count:
        raise ValueError("not one value each")
    return values


def _words(error: object) -> str:
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or error)[:_SHOWN]
