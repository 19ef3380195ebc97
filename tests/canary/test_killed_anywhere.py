"""A gate that is killed at any step and started again: the same watch, the same verdict, the hook once at most."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path

import pytest

from kvbench.canary import acting
from kvbench.canary.gate import Gate, Times
from kvbench.canary.hook import fire
from kvbench.canary.reading import Read
from kvbench.canary.scrapes import ScrapeLog
from kvbench.canary.series import Samples
from kvbench.canary.state import StateStore
from kvbench.canary.verdict import CanaryVerdict, HookResult
from kvbench.judge.verdict import Outcome
from kvbench.spec.canary import LoadedCanary
from tests.canary.build import STEP_S, T0, Truth, group
from tests.canary.watched import Clock, Killed, Stored, both, loaded

FOR_S, EVERY_S = 240.0, 30.0
CANDIDATES = {
    "bad": group("canary", Truth(slow=lambda t: 0.5), seconds=2000.0),
    "good": group("canary", Truth(), seconds=2000.0),
}


@dataclass
class Scraped(Stored):
    """Servers that tell their present alone."""

    looks_back: bool = False

    def read(self, since_s: float, until_s: float, stop: Callable[[], None]) -> Read:
        found: dict[str, dict[str, Samples]] = {}
        for side, each in self.groups.items():
            found[side] = {}
            for replica in each.replicas:
                present = replica.within(until_s - STEP_S, until_s).samples
                found[side][replica.name] = {key: (t_s[-1:], v[-1:]) for key, (t_s, v) in present.items()}
        return Read(found)


@dataclass
class Steps:
    """Counts what a gate does to the disk and to others, and kills it before or after one of these steps."""

    kill_at: int | None = None
    done: list[str] = field(default_factory=list)

    def around(self, name: str, step: Callable[..., object]) -> Callable[..., object]:
        @wraps(step)
        def counted(*given: object, **named: object) -> object:
            self._count(f"before {name}")
            found = step(*given, **named)
            self._count(f"after {name}")
            return found

        return counted

    def _count(self, name: str) -> None:
        self.done.append(name)
        if self.kill_at is not None and len(self.done) == self.kill_at:
            raise Killed


@contextmanager
def counting(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        for owner, name in ((StateStore, "save"), (ScrapeLog, "keep"), (ScrapeLog, "drop")):
            patch.setattr(owner, name, steps.around(name, getattr(owner, name)))
        patch.setattr(acting, "fire", steps.around("hook", fire))
        yield


def armed(folder: Path) -> tuple[LoadedCanary, Path]:
    note = folder / "told"
    hook = ["sh", "-c", f"cat >> {note}; echo >> {note}"]
    return loaded(folder, json.dumps({"hook": hook, "armed": True, "within": "90s", "steady": "60s"})), note


def run(folder: Path, clock: Clock, canary: LoadedCanary, candidate: str, kind: type[Stored]) -> CanaryVerdict:
    """One life of the gate, its verdict delivered."""
    store = StateStore(folder / "state", canary.canary)
    try:
        reader = kind(clock, both(CANDIDATES[candidate]))
        it = Gate(canary, reader, store, Times(FOR_S, EVERY_S), sleep=clock.sleep)
        verdict = it.watch(lambda _: None)
        it.delivered()
    finally:
        store.close()
    return verdict


@pytest.mark.parametrize("kind", [Stored, Scraped])
@pytest.mark.parametrize("candidate", ["bad", "good"])
def test_goes_on_wherever_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, candidate: str, kind: type[Stored]
) -> None:
    whole = Steps()
    canary, note = armed(tmp_path / "whole")
    with counting(whole, monkeypatch):
        expected = run(tmp_path / "whole", Clock(), canary, candidate, kind)
    assert (expected.verdict is Outcome.NO_GO) == (candidate == "bad") == note.exists()
    begun = next(place for place, name in enumerate(whole.done, 1) if name == "after save")
    assert len(whole.done) > begun
    for place in range(begun, len(whole.done)):  # after the last one its verdict was delivered
        folder = tmp_path / str(place)
        canary, note = armed(folder)
        steps, clock = Steps(kill_at=place), Clock()
        with counting(steps, monkeypatch), pytest.raises(Killed):
            run(folder, clock, canary, candidate, kind)
        killed = f"killed at step {place} of {len(whole.done)}: {steps.done[-1]}"
        clock.t += 1.0
        found = run(folder, clock, canary, candidate, kind)
        assert found.verdict is expected.verdict, killed
        assert found.window.start == T0, killed
        _told_once(note, found.hook, candidate, killed)


def _told_once(note: Path, hook: HookResult | None, candidate: str, killed: str) -> None:
    """At most once; not at all only if it was killed between noting that and doing it, and then it says so."""
    times = len(note.read_text().splitlines()) if note.exists() else 0
    if candidate == "good":
        assert (times, hook) == (0, None), killed
        return
    assert hook is not None, killed
    between = killed.endswith(("after save", "before hook")) and hook.state == "begun"
    assert times == (0 if between and not note.exists() else 1), killed
