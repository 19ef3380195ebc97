"""The emulated engine as a server: vLLM's routes over the core, on the real clock. A process of its own.

Loopback only. Run as a module: `python -m kvbench.engine.emulated.server --config FILE --port N`.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import heapq
import json
import math
import os
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvbench.engine.emulated.answers import (
    BadRequest,
    Completion,
    answer_ids,
    block_keys,
    leaked_ids,
    parse_completion,
    tokens_asked,
    usage,
)
from kvbench.engine.emulated.configuration import configuration
from kvbench.engine.emulated.exposition import exposition
from kvbench.engine.emulated.fates import Fate, Fates
from kvbench.engine.emulated.http import Connection, Incoming
from kvbench.engine.emulated.noise import seed_of
from kvbench.engine.emulated.request import Request
from kvbench.engine.emulated.residue import leave_residue
from kvbench.engine.emulated.scheduler import EmulatedCore
from kvbench.engine.emulated.sizes import as_run, emulation_of, sizes_of
from kvbench.engine.emulated.wording import Wording
from kvbench.spec.emulation import Injections
from kvbench.spec.profile import Profile

__all__ = ["VERSION", "EmulatedServer", "main"]

LOOPBACK = "127.0.0.1"
VERSION = "emulated-0.32.0"
"""Of vLLM, whose behaviour is emulated."""
REMEMBERED = 16
"""Prompts that an answer may leak."""
_DONE = b"[DONE]"


@dataclass(eq=False)
class _Exchange:
    """One completion under way."""

    connection: Connection
    completion: Completion
    request: Request
    fate: Fate
    name: str
    wording: Wording
    ids: list[int] = field(default_factory=list)
    sent: int = 0


class EmulatedServer:
    """Feeds the core with what arrives and sends out what it has finished."""

    def __init__(self, profile: Profile, label: str) -> None:
        self._model = profile.served_name
        self._wordings = [Wording(self._model, VERSION, chat=chat) for chat in (False, True)]
        self._injections = profile.engine.inject or Injections()
        emulation = emulation_of(profile)
        self.sizes = as_run(sizes_of(profile, emulation), self._injections)
        self._costs = emulation.costs
        self._core = EmulatedCore(self.sizes, emulation, self._injections, seed_of(emulation.seed, label))
        self._fates = Fates(self._injections)
        self._label = label
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time()
        self._created_s = self._started_s = time.time()
        """When the counters began, and when the process did, as far as anybody outside can tell."""
        self._number = 0
        self._live: dict[int, _Exchange] = {}
        self._sources: dict[str, dict[str, int]] = {}
        """What each answered request found cached, by the name that its client gave it."""
        self._prompts: deque[Sequence[int]] = deque(maxlen=REMEMBERED)
        """The newest first, where one may leak."""
        self._arriving: list[tuple[float, int]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._away_until_s = -math.inf
        if self._injections.residue:
            leave_residue(self._core)

    def _now_s(self) -> float:
        return self._loop.time() - self._began_s

    def accepts(self) -> bool:
        """False while it is away."""
        return self._now_s() >= self._away_until_s

    # -- requests ---------------------------------------------------------------------------------------------

    def handle(self, connection: Connection, request: Incoming) -> None:
        """One request; everything but a completion is answered at once."""
        if not self.accepts():
            connection.abort()
            return
        match request.method, request.path:
            case "POST", "/v1/completions" | "/v1/chat/completions":
                self._complete(connection, request, chat="chat" in request.path)
            case "POST", "/tokenize" | "/detokenize":
                connection.answer(*tokens_asked(request.body, back=request.path == "/detokenize"))
            case "GET", "/health" | "/ping":
                connection.answer(200, b"")
            case "GET", "/version":
                connection.answer(200, json.dumps({"version": VERSION}).encode())
            case "GET", "/v1/models":
                connection.answer(200, self._models())
            case "GET", "/metrics":
                self._metrics(connection)
            case "GET", "/sources":  # what no real engine tells
                connection.answer(200, json.dumps(self._sources).encode())
            case "GET", "/server_info":
                info = {"vllm_config": configuration(self.sizes, self._label), "emulated": True}
                connection.answer(200, json.dumps(info).encode())
            case "POST", "/reset_prefix_cache":
                external = request.query.get("reset_external", ["false"])[0] == "true"
                self._pump()
                done = self._core.reset_caches(external=external)
                if done and external:
                    self._core.empty_disk()
                connection.answer(200, json.dumps({"success": done}).encode())
            case _:
                connection.answer(404, b'{"detail":"Not Found"}')

    def lost(self, connection: Connection) -> None:
        """Its requests are over."""
        for id_, exchange in list(self._live.items()):
            if exchange.connection is connection:
                del self._live[id_]
                self._core.abort(exchange.request, self._now_s())

    def _models(self) -> bytes:
        model = {
            "id": self._model,
            "object": "model",
            "owned_by": "kvbench",
            "max_model_len": self.sizes.max_model_len,
        }
        return json.dumps({"object": "list", "data": [model]}).encode()

    def _metrics(self, connection: Connection) -> None:
        missing = self._injections.missing_metrics
        if missing is not None and self._number >= missing.after:
            connection.answer(404, b'{"detail":"Not Found"}')
            return
        self._pump()
        text = exposition(
            self._core.read_gauges(),
            self.sizes,
            model=self._model,
            created_s=self._created_s,
            started_s=self._started_s,
        )
        connection.answer(200, text.encode(), "text/plain; version=0.0.4; charset=utf-8")

    def _complete(self, connection: Connection, incoming: Incoming, *, chat: bool) -> None:
        longest = self.sizes.max_model_len
        try:
            asked = parse_completion(incoming.body, model=self._model, max_model_len=longest, chat=chat)
        except BadRequest as error:
            connection.answer(400, error.body())
            return
        number = self._number
        self._number += 1
        for event in self._fates.strikes(number):
            self._strike(event)
        if not self.accepts():
            connection.abort()
            return
        handling_s = self._costs.request + self._costs.request_token * len(asked.prompt)
        if self._costs.shared_cores:
            self._pump()
            self._core.disturb(self._now_s(), handling_s)
        fate = self._fates.of(number, len(asked.prompt), asked.output_tokens)
        if fate.error:
            words = {"message": "injected", "type": "InternalServerError", "param": None, "code": 500}
            connection.answer(500, json.dumps({"error": words}).encode())
            return
        ids = answer_ids(asked.prompt, asked.output_tokens)
        keys = block_keys([*asked.prompt, *ids[:-1]], self.sizes.block_tokens)
        request = Request(number, len(asked.prompt), fate.output_tokens, keys, past_secondary=asked.past_secondary)
        name = incoming.headers.get(b"x-request-id", b"%x" % number).decode("latin-1")
        if self._injections.leaked_outputs is not None:
            self._prompts.appendleft(asked.prompt)
        wording = self._wordings[chat]
        self._live[number] = _Exchange(connection, asked, request, fate, wording.prefix + name, wording, ids)
        heapq.heappush(self._arriving, (self._now_s() + handling_s, number))
        self._pump()

    def _strike(self, event: str) -> None:
        print(f"injected: {event} before request {self._number}", flush=True)
        match event:
            case "counter_reset":
                self._core.reset_counters()
                self._created_s = time.time()
            case "restart":
                self._restart()
            case "death":
                os._exit(1)
            case "freeze":
                self._pump()
                self._core.freeze()

    def _restart(self) -> None:
        for exchange in self._live.values():
            exchange.connection.abort()
        self._live.clear()
        self._arriving.clear()
        self._core.restart()
        self._created_s = self._started_s = time.time()
        if self._injections.restart is not None:
            self._away_until_s = self._now_s() + self._injections.restart.down

    # -- time -------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Bring the core up to now and send out what there is."""
        now_s = self._now_s()
        while self._arriving and self._arriving[0][0] <= now_s:
            at_s, number = heapq.heappop(self._arriving)
            exchange = self._live.get(number)
            if exchange is not None:
                self._core.advance(at_s)
                self._core.submit(exchange.request, at_s)
        self._core.advance(now_s)
        self._core.take_finished()
        wake_s = self._deliver(now_s)
        arrival_s = self._arriving[0][0] if self._arriving else math.inf
        self._wake_at(min(self._core.next_s, arrival_s, wake_s))

    def _wake_at(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if at_s < math.inf:
            self._timer = self._loop.call_at(self._began_s + at_s, self._pump)

    def _deliver(self, now_s: float) -> float:
        """Tokens that are there and not held back; when the next that is held may go."""
        wake_s = math.inf
        for number, exchange in list(self._live.items()):
            times = exchange.request.times
            if exchange.sent == len(times):
                continue
            if times[0] + exchange.fate.held_s > now_s:
                wake_s = min(wake_s, times[0] + exchange.fate.held_s)
                continue
            if exchange.sent == 0:
                self._spoil(exchange)
            over = len(times) >= exchange.fate.output_tokens
            if over:
                del self._live[number]
                self._note_sources(exchange)
            if exchange.completion.stream:
                self._stream(exchange, len(times), over=over)
            else:
                exchange.sent = len(times)
                if over:
                    self._answer(exchange)
        return wake_s

    def _note_sources(self, exchange: _Exchange) -> None:
        request = exchange.request
        self._sources[exchange.name.removeprefix(exchange.wording.prefix)] = {
            "device": request.device_tokens,
            "host": request.host_tokens,
            "disk": request.disk_tokens,
        }

    def _spoil(self, exchange: _Exchange) -> None:
        """What is injected into the tokens of an answer, before its first goes out."""
        prompt, promoted = exchange.completion.prompt, exchange.request.promoted_tokens
        if self._fates.corrupts(promoted):
            exchange.ids = answer_ids(prompt, len(exchange.ids), corrupt=True)
        if self._fates.leaks(promoted):
            exchange.ids = leaked_ids(prompt, self._prompts, len(exchange.ids)) or exchange.ids

    def _stream(self, exchange: _Exchange, count: int, *, over: bool) -> None:
        connection, fate, first = exchange.connection, exchange.fate, exchange.sent
        name, created_s, wording = exchange.name, int(self._created_s), exchange.wording
        payloads: list[bytes] = []
        if first == 0:
            connection.begin_stream()
            payloads = wording.opening(name, created_s)
        exchange.sent = count
        end = count - 1 if over and not fate.dropped else None
        for index in range(first, count):
            reason = ("stop" if fate.short else "length") if index == end else None
            token, with_ids = exchange.ids[index], exchange.completion.with_ids
            payloads.append(wording.token(name, created_s, token, reason, with_ids=with_ids))
        if over and not fate.dropped:
            if exchange.completion.with_usage:
                payloads.append(wording.usage(name, created_s, self._usage(exchange)))
            payloads.append(_DONE)
        connection.events(payloads)
        if over and fate.dropped:
            connection.drop()
        elif over:
            connection.end_stream()

    def _usage(self, exchange: _Exchange) -> dict[str, object]:
        fate = exchange.fate
        return usage(fate.prompt_tokens, exchange.request.cached_tokens, fate.output_tokens)

    def _answer(self, exchange: _Exchange) -> None:
        if exchange.fate.dropped:
            exchange.connection.drop()
            return
        ids = exchange.ids[: exchange.fate.output_tokens]
        reason = "stop" if exchange.fate.short else "length"
        body = exchange.wording.whole(
            exchange.name,
            int(self._created_s),
            ids,
            reason,
            self._usage(exchange),
            with_ids=exchange.completion.with_ids,
        )
        exchange.connection.answer(200, body)


async def _serve(profile: Profile, label: str, port: int) -> None:
    server = EmulatedServer(profile, label)
    make = functools.partial(Connection, server, server.accepts)
    listener = await asyncio.get_running_loop().create_server(make, LOOPBACK, port, backlog=1024)
    print(f"emulated engine for profile {profile.name}: Application startup complete.", flush=True)
    async with listener:
        await listener.serve_forever()


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(description="an emulated vLLM: no model, no GPU")
    parser.add_argument("--config", type=Path, required=True, help="JSON: profile and label of the launch")
    parser.add_argument("--port", type=int, required=True)
    given = parser.parse_args()
    config = json.loads(given.config.read_text(encoding="utf-8"))
    profile = Profile.model_validate(config["profile"])
    try:
        asyncio.run(_serve(profile, str(config["label"]), given.port))
    except OSError as error:
        sys.exit(f"OSError: {error}")


if __name__ == "__main__":
    main()
