"""A gate over series that are all known beforehand, with a clock that goes on only when somebody waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kvbench.canary.gate import Gate, Times
from kvbench.canary.reading import Read, ReadFailed
from kvbench.canary.series import Group, Samples
from kvbench.canary.state import StateStore
from kvbench.spec.canary import LoadedCanary, load_canary
from tests.canary.build import T0, Truth, group

LONG_S = 700.0
EVERY_S = 30.0
GOOD = group("canary", Truth(), seconds=LONG_S)
STABLE = group("stable", Truth(seed=2), seconds=LONG_S)
BAD = group("canary", Truth(slow=lambda t: 0.3 if t > 200 else 0.001), seconds=LONG_S)

FILE = """\
name: c
prometheus: {{url: "http://127.0.0.1:9"}}
baseline: {{match: {{track: stable}}}}
candidate: {{match: {{track: canary}}, profile: tiered.yaml}}
warm_up: false
rules:
  guardrails:
    - {{id: sustained, metric: ttft, quantile: 0.99, max: 1s, sustained: {{window: 30s, for: 120s}}}}
    - {{id: errors, metric: error_rate, max: 2%}}
on_breach: {breach}
"""
PROFILE = """\
name: tiered
engine: {kind: vllm, environment: vllm-cpu, model: tiny, args: {max-model-len: 4096}}
tiers: {device: {blocks: 64}, host: {size: 64MiB}}
"""


class Killed(BaseException):
    """The gate is gone, whatever it was doing."""


@dataclass
class Clock:
    """Time that goes on only when somebody waits."""

    t: float = T0
    killed_at: float | None = None

    def sleep(self, seconds: float) -> None:
        self.t += seconds
        if self.killed_at is not None and self.t >= self.killed_at:
            raise Killed


@dataclass
class Stored:
    """A Prometheus that has all series already and shows what is not in the future."""

    clock: Clock
    groups: dict[str, Group]
    down: tuple[float, float] = (0.0, 0.0)
    looks_back: bool = True
    asked: list[tuple[float, float]] = field(default_factory=list)

    def now(self) -> float:
        if self.down[0] <= self.clock.t - T0 < self.down[1]:
            raise ReadFailed("http://127.0.0.1:9 cannot be reached: connection refused")
        return self.clock.t

    def read(self, since_s: float, until_s: float, stop: Callable[[], None]) -> Read:
        stop()
        self.asked.append((since_s, until_s))
        found = {}
        for side, each in self.groups.items():
            found[side] = {r.name: r.within(since_s, until_s).samples for r in each.replicas}
        return Read(found)

    def not_before(self, t_s: float) -> None:
        pass

    def close(self) -> None:
        pass


def loaded(folder: Path, breach: str = "{armed: false}") -> LoadedCanary:
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "tiered.yaml").write_text(PROFILE)
    file = folder / "canary.yaml"
    file.write_text(FILE.format(breach=breach))
    return load_canary(file)


@dataclass
class Late(Stored):
    """One in which a sample is there only some time after its own time."""

    by_s: float = 20.0

    def read(self, since_s: float, until_s: float, stop: Callable[[], None]) -> Read:
        found: dict[str, dict[str, Samples]] = {}
        for side, each in self.groups.items():
            found[side] = {replica.name: {} for replica in each.replicas}
            for replica in each.replicas:
                for key, (t_s, values) in replica.samples.items():
                    there = (t_s > since_s) & (t_s <= until_s - self.by_s)
                    if there.any():
                        found[side][replica.name][key] = (t_s[there], values[there])
        return Read(found)


@contextmanager
def gate(
    folder: Path,
    reader: Stored,
    *,
    canary: LoadedCanary | None = None,
    for_s: float = 600.0,
    every_s: float = EVERY_S,
    serves: bool = False,
) -> Iterator[Gate]:
    canary = canary or loaded(folder)
    store = StateStore(folder / "state", canary.canary)
    try:
        it = Gate(canary, reader, store, Times(for_s, every_s), keeps_verdict=serves, sleep=reader.clock.sleep)
        yield it
        it.delivered()
    finally:
        store.close()


def killed_while_telling(watched: Gate, told: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Watch until the hook is under way, which has written to `told`; the gate does not learn how it ended."""

    def killed(*_: object) -> None:
        told.write_text("once\n")
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("kvbench.canary.acting.fire", killed)
        with pytest.raises(Killed):
            watched.watch(lambda _: None)


def both(candidate: Group) -> dict[str, Group]:
    return {"candidate": candidate, "baseline": STABLE}
