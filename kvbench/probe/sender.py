"""Sends single requests and tells when their first token came; beside them, when asked, a background load.

Uses the streaming client of the load driver on the calling thread. Times in seconds, instants in monotonic ns.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kvbench.compare.load_plan import prompts_of
from kvbench.engine.base import Endpoint
from kvbench.errors import LoadError
from kvbench.interrupts import raise_if_stopped
from kvbench.load.bodies import Bodies
from kvbench.load.client import Client
from kvbench.load.clock import Clock
from kvbench.load.exchange import Exchange
from kvbench.load.outcome import Failure
from kvbench.load.plan import LoadPlan
from kvbench.load.stream import Completion, CompletionReader
from kvbench.load.target import Target
from kvbench.probe.setting import OUTPUT_TOKENS, SUFFIX_TOKENS
from kvbench.workload.randomness import Identities, Stream
from kvbench.workload.schedule import Segment

__all__ = ["Answer", "Background", "Sender"]

TIMEOUT_S = 120.0
LOOK_S = 0.1
"""At most so long is slept without looking whether a signal has come."""
_PROBE, _BACKGROUND, _NUDGE = 1, 2, 3
NUDGE_TOKENS = 4
"""Beside those that the server puts around a text."""


@dataclass(frozen=True)
class Answer:
    """What came of one request."""

    ttft_s: float
    """From the send, which for a probe is the intended time, to the first token."""
    prompt_tokens: int
    cached_tokens: int | None
    at_s: float
    """When it was sent, monotonic."""


@dataclass
class Background:
    """Open-loop load with prompts that are never seen twice: it computes and decodes, and hits nothing."""

    rate_per_s: float
    prompt_tokens: int = 256
    output_tokens: int = 64
    sent: int = 0
    failed: int = 0
    due_ns: int = 0


class Sender:
    """One connection pool to one endpoint. `close` it."""

    def __init__(self, endpoint: Endpoint, seed: int) -> None:
        self._bodies = Bodies(_plan(endpoint))
        self._identities = Identities(seed, "probe")
        self._gaps = Stream(seed, "probe", "background")
        self._clock = Clock()
        target = Target.of(endpoint.base_url, endpoint.api, endpoint.access)
        self._client = Client(target, self._clock, self._on_over)
        self._nudge_tokens = NUDGE_TOKENS + endpoint.extra_prompt_tokens + endpoint.extra_tokens_behind
        self._count = 0
        self._ours: set[int] = set()
        self.background: Background | None = None

    def close(self) -> None:
        """Abort what is under way and close every connection."""
        self.quiet()
        self._client.close()

    def quiet(self) -> None:
        """End the background load: what is under way is aborted."""
        self.background = None
        for exchange in list(self._client.active):
            self._client.abort(exchange, Failure("stopped", "the probe is over"))

    def probe(self, number: int, prefix_tokens: int, suffix_tokens: int = SUFFIX_TOKENS, suffix: int = 1) -> Answer:
        """Send the prefix `number` with its suffix, wait for its answer. LoadError when it fails."""
        segments = (
            Segment(self._identities(_PROBE, number), prefix_tokens),
            Segment(self._identities(_PROBE, number, suffix), suffix_tokens),
        )
        return self._ask(segments, OUTPUT_TOKENS)

    def decode(self, numbers: Iterable[int], prefix_tokens: int, output_tokens: int) -> list[list[int]]:
        """Send these prompts at once; when each output token of each of them came, monotonic ns."""
        together = [
            self._send((Segment(self._identities(_PROBE, number), prefix_tokens),), output_tokens)
            for number in numbers
        ]
        return [list(self._read_over(exchange).placed.times_ns) for exchange in together]

    def nudge(self) -> None:
        """A prompt too short to be kept. Engines begin to store the blocks of a step in the next one, if any."""
        self._count += 1
        self._ask((Segment(self._identities(_NUDGE, self._count), self._nudge_tokens),), 1)

    def wait(self, seconds: float) -> None:
        """Let time pass; the background load goes on."""
        until_ns = self._clock.now_ns() + int(seconds * 1e9)
        while (left_ns := until_ns - self._clock.now_ns()) > 0:
            self._turn(left_ns)

    def _ask(self, segments: tuple[Segment, ...], output_tokens: int) -> Answer:
        exchange = self._send(segments, output_tokens)
        completion = self._read_over(exchange)
        first_ns, sent_ns = completion.placed.first_ns, exchange.sent_ns
        prompt = sum(segment.tokens for segment in segments)
        if first_ns is None or sent_ns is None:
            raise LoadError("a probe was answered without a token")
        if completion.prompt_tokens not in (None, prompt):
            raise LoadError(
                f"a probe of {prompt} tokens was counted as {completion.prompt_tokens} by the server",
                do="give engine.token_id_range, or a server that takes token ids",
            )
        return Answer((first_ns - sent_ns) / 1e9, prompt, completion.cached_tokens, sent_ns / 1e9)

    def _read_over(self, exchange: Exchange) -> Completion:
        """Wait for its end. LoadError when it fails."""
        self._ours.add(exchange.id)
        while exchange.over_ns is None:
            self._turn(int(LOOK_S * 1e9))
        self._ours.discard(exchange.id)
        return _read(exchange)

    def _send(self, segments: tuple[Segment, ...], output_tokens: int) -> Exchange:
        self._count += 1
        body = self._bodies.make(segments, output_tokens)
        name = f"kvbench-probe-{self._count}"
        message = self._client.message(name, body.content)
        deadline_ns = self._clock.now_ns() + int(TIMEOUT_S * 1e9)
        exchange = Exchange(self._count, name, message, deadline_ns)
        self._client.send(exchange)
        return exchange

    def _turn(self, wait_ns: int) -> None:
        """Handle what has arrived, send what is due, and wait at most so long for more."""
        raise_if_stopped()
        now_ns = self._clock.now_ns()
        self._client.expire(now_ns)
        wait_ns = min(wait_ns, int(LOOK_S * 1e9))
        if self.background is not None:
            wait_ns = min(wait_ns, self._keep_up(self.background, now_ns))
        self._client.poll(max(wait_ns, 0))

    def _keep_up(self, load: Background, now_ns: int) -> int:
        """Send what is due of the background; how long until the next."""
        if load.due_ns == 0:
            load.due_ns = now_ns
        while load.due_ns <= now_ns:
            load.sent += 1
            segment = Segment(self._identities(_BACKGROUND, load.sent), load.prompt_tokens)
            self._send((segment,), load.output_tokens)
            load.due_ns += int(self._gaps.exponential() / load.rate_per_s * 1e9)
        return load.due_ns - now_ns

    def _on_over(self, exchange: Exchange) -> None:
        if exchange.id not in self._ours and exchange.failure and self.background:
            self.background.failed += 1


def _plan(endpoint: Endpoint) -> LoadPlan:
    return LoadPlan(schedule=Path(), out=Path(), arm="probe", round=0, **prompts_of(endpoint))


def _read(exchange: Exchange) -> Completion:
    """The answer taken apart. LoadError when there is none."""
    if exchange.failure is not None:
        raise LoadError(f"a probe failed: {exchange.failure}")
    reader = CompletionReader(exchange.chunks, exchange.times_ns)
    while not reader.step():
        pass
    completion = reader.completion()
    if completion.failure is not None:
        raise LoadError(f"a probe failed: {completion.failure}")
    return completion
