"""One schedule on both faces of the emulated engine: the server sends what virtual time says, token by token.

The server runs in this process on a clock that passes only when something is due.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvbench.engine.emulated.http import Incoming
from kvbench.engine.emulated.server import EmulatedServer
from kvbench.engine.emulated.virtual import simulate
from kvbench.spec.profile import Profile
from kvbench.workload.schedule import PlannedRequest, Schedule
from tests.engine.emulated.build import a_profile, a_schedule


class Timer:
    def __init__(self, at_s: float, work: Callable[[], None]) -> None:
        self.at_s, self.work, self.cancelled = at_s, work, False

    def cancel(self) -> None:
        self.cancelled = True


class Clock:
    """As much of an event loop as the server needs."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._timers: list[Timer] = []

    def time(self) -> float:
        return self.now_s

    def call_at(self, at_s: float, work: Callable[[], None]) -> Timer:
        self._timers = [timer for timer in self._timers if not timer.cancelled]
        self._timers.append(Timer(at_s, work))
        return self._timers[-1]

    def run_until(self, at_s: float) -> None:
        while due := [timer for timer in self._timers if not timer.cancelled and timer.at_s <= at_s]:
            timer = min(due, key=lambda timer: timer.at_s)
            timer.cancel()
            self.now_s = timer.at_s
            timer.work()
        self.now_s = at_s


class Client:
    """One connection; notes when tokens come."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.times: list[float] = []
        self.over = False

    def begin_stream(self) -> None:
        pass

    def events(self, payloads: list[bytes]) -> None:
        tokens = [payload for payload in payloads if payload != b"[DONE]" and json.loads(payload)["choices"]]
        self.times += [self._clock.now_s] * len(tokens)

    def end_stream(self) -> None:
        self.over = True


def prompt_of(planned: PlannedRequest) -> list[int]:
    """Tokens that are a function of the segments' identities, as a client makes them."""
    drawn = [np.random.default_rng(abs(s.identity)).integers(0, 2**30, s.tokens) for s in planned.segments]
    return [int(token) for token in np.concatenate(drawn)]


def served(schedule: Schedule, arm: Profile, monkeypatch: pytest.MonkeyPatch) -> dict[int, list[float]]:
    """Seconds after sending at which each request's tokens come."""
    clock = Clock()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: clock)
    server = EmulatedServer(arm, "faces")
    clients: dict[int, Client] = {}
    for planned in schedule.requests:
        assert planned.intended_s is not None
        clock.run_until(planned.intended_s)
        clients[planned.id] = client = Client(clock)
        asked: dict[str, Any] = {
            "prompt": prompt_of(planned),
            "max_tokens": planned.output_tokens,
            "stream": True,
            "return_token_ids": True,
        }
        server.handle(client, Incoming("POST", "/v1/completions", {}, json.dumps(asked).encode()))  # type: ignore[arg-type]
    clock.run_until(schedule.duration_s + 60)
    assert all(client.over for client in clients.values())
    sent = {planned.id: planned.intended_s or 0.0 for planned in schedule.requests}
    return {id_: [at_s - sent[id_] for at_s in client.times] for id_, client in clients.items()}


def simulated(schedule: Schedule, arm: Profile) -> dict[int, list[float]]:
    result = simulate(schedule, arm)
    sent = result.requests.to_pandas().set_index("id")["sent_s"]
    tokens = result.tokens.to_pandas()
    return {int(id_): (rows["t_s"] - sent[id_]).tolist() for id_, rows in tokens.groupby("id")}


@pytest.mark.parametrize("shared_cores", [0.0, 1.0])
@pytest.mark.parametrize("inject", [None, {"slower_tail": {"share": 0.1, "by": 1.0}}], ids=["plain", "held"])
def test_tokens_come_at_the_same_times(
    shared_cores: float, inject: dict[str, Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Handling and copies that take the engine's own cores cost both faces the same."""
    schedule = a_schedule(prime="none")
    arm = a_profile(blocks=80, host_blocks=100, disk=True, inject=inject)
    emulation = arm.engine.emulation
    assert emulation is not None
    costs = emulation.costs.model_copy(update={"shared_cores": shared_cores})
    emulation = emulation.model_copy(update={"costs": costs})
    arm = arm.model_copy(update={"engine": arm.engine.model_copy(update={"emulation": emulation})})
    here, there = served(schedule, arm, monkeypatch), simulated(schedule, arm)
    assert here.keys() == there.keys()
    for id_, times in there.items():
        assert here[id_] == pytest.approx(times, abs=1e-6), id_


def test_requests_on_the_engines_cores_slow_it_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the test above is about something: with shared cores tokens come later on either face."""
    schedule = a_schedule(prime="none", arrivals={"process": "poisson", "rate": 10.0})
    plain = a_profile(blocks=80)
    emulation = plain.engine.emulation
    assert emulation is not None
    costs = emulation.costs.model_copy(update={"shared_cores": 1.0})
    shared = plain.model_copy(
        update={
            "engine": plain.engine.model_copy(update={"emulation": emulation.model_copy(update={"costs": costs})})
        }
    )
    for face in (lambda arm: served(schedule, arm, monkeypatch), lambda arm: simulated(schedule, arm)):
        alone, beside = (sum(times[-1] for times in face(arm).values()) for arm in (plain, shared))
        assert beside > 1.05 * alone
