"""The gate with its clock: it ends when it is certain, outlives what passes, and tells others once."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest

from kvbench.canary.gate import Gate, Look, Times
from kvbench.canary.reading import Read, ReadFailed
from kvbench.canary.series import Group, Samples
from kvbench.canary.state import StateStore
from kvbench.errors import InputError, RecordError
from kvbench.judge.verdict import Outcome
from kvbench.spec.canary import LoadedCanary, load_canary
from tests.canary.build import STEP_S, T0, Truth, group

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
        self.asked.append((since_s, until_s))
        found = {}
        for side, each in self.groups.items():
            found[side] = {r.name: r.within(since_s, until_s).samples for r in each.replicas}
        return Read(found)

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
) -> Iterator[Gate]:
    canary = canary or loaded(folder)
    store = StateStore(folder / "state", canary.canary)
    try:
        yield Gate(canary, reader, store, Times(for_s, every_s), sleep=reader.clock.sleep)
    finally:
        store.close()


def both(candidate: Group) -> dict[str, Group]:
    return {"candidate": candidate, "baseline": STABLE}


class TestAWatch:
    def test_of_a_healthy_canary_ends_with_go_at_its_end(self, tmp_path: Path) -> None:
        looks: list[Look] = []
        with gate(tmp_path, Stored(Clock(), both(GOOD))) as watched:
            verdict = watched.watch(looks.append)
        assert verdict.verdict is Outcome.GO
        assert verdict.window.end - verdict.window.start == pytest.approx(600, abs=1)
        assert {look.verdict.verdict for look in looks[:-1]} == {Outcome.INCONCLUSIVE}

    def test_of_a_bad_one_ends_as_soon_as_it_is_certain_with_what_to_apply(self, tmp_path: Path) -> None:
        with gate(tmp_path, Stored(Clock(), both(BAD))) as watched:
            verdict = watched.watch(lambda _: None)
        assert verdict.verdict is Outcome.NO_GO
        assert 200 < verdict.window.end - T0 < 300
        assert verdict.action is not None
        assert verdict.action.disable_tier == "host"
        configuration = verdict.action.configuration
        assert configuration is not None
        assert "host" not in configuration.profile["tiers"]  # type: ignore[operator]
        assert configuration.argv
        assert not any("kv-transfer-config" in each or "kv-offloading" in each for each in configuration.argv)

    def test_outlives_a_prometheus_that_is_down_for_a_minute(self, tmp_path: Path) -> None:
        looks: list[Look] = []
        with gate(tmp_path, Stored(Clock(), both(GOOD), down=(300, 360))) as watched:
            verdict = watched.watch(looks.append)
        assert verdict.verdict is Outcome.GO
        blind = [look for look in looks if look.failure]
        assert len(blind) == 2
        assert "cannot be reached" in blind[0].verdict.reasons[0]

    def test_that_looks_often_gets_what_comes_late(self, tmp_path: Path) -> None:
        with gate(tmp_path, Late(Clock(), both(GOOD)), for_s=100.0, every_s=5.0) as watched:
            verdict = watched.watch(lambda _: None)
            seen = watched.feed.history.group("candidate", "canary").replicas[0].t_s
        assert verdict.window.end == T0 + 100
        assert seen.tolist() == np.arange(T0, T0 + 80.1, STEP_S).tolist()

    def test_that_never_reads_anything_ends_inconclusive(self, tmp_path: Path) -> None:
        with gate(tmp_path, Stored(Clock(), both(GOOD), down=(0, 1e9)), for_s=60.0) as watched:
            watched.feed.now = lambda: watched._reader.clock.t  # type: ignore[attr-defined, method-assign]
            verdict = watched.watch(lambda _: None)
        assert verdict.verdict is Outcome.INCONCLUSIVE
        assert verdict.exit_code == 3


class TestAKilledGate:
    def test_goes_on_without_losing_time(self, tmp_path: Path) -> None:
        clock = Clock(killed_at=T0 + 200)
        with gate(tmp_path, Stored(clock, both(GOOD))) as watched, pytest.raises(Killed):
            watched.watch(lambda _: None)
        clock.killed_at, clock.t = None, T0 + 320
        with gate(tmp_path, Stored(clock, both(GOOD))) as again:
            verdict = again.watch(lambda _: None)
            assert again.resumed
        assert verdict.verdict is Outcome.GO
        assert verdict.window.start == T0
        assert verdict.window.end == pytest.approx(T0 + 600, abs=1)
        assert next(r for r in verdict.rules if r.rule == "scrape-gap").text == "scrapes are complete"

    def test_begins_anew_when_its_time_is_long_over_or_its_file_changed(self, tmp_path: Path) -> None:
        clock = Clock(killed_at=T0 + 100)
        with gate(tmp_path, Stored(clock, both(GOOD)), for_s=200.0) as watched, pytest.raises(Killed):
            watched.watch(lambda _: None)
        clock.killed_at, clock.t = None, T0 + 450
        with gate(tmp_path, Stored(clock, both(GOOD)), for_s=200.0) as again:
            assert again.watch(lambda _: None).window.start == T0 + 450
            assert not again.resumed

    def test_lets_nobody_else_watch_the_same_canary_meanwhile(self, tmp_path: Path) -> None:
        reader = Stored(Clock(), both(GOOD))
        with gate(tmp_path, reader), pytest.raises(InputError, match="another gate"), gate(tmp_path, reader):
            pass

    def test_keeps_scrapes_that_nobody_else_keeps(self, tmp_path: Path) -> None:
        clock = Clock(killed_at=T0 + 300)
        with (
            gate(tmp_path, Stored(clock, both(GOOD), looks_back=False)) as watched,
            pytest.raises(Killed),
        ):
            watched.watch(lambda _: None)
        kept = tmp_path / "state" / "scrapes.jsonl"
        whole = kept.read_text()
        kept.write_text(whole + '{"t": 17')  # cut off in the middle of a line
        with gate(tmp_path, Stored(clock, both(GOOD), looks_back=False)) as again:
            rounds = list(again._store.kept())
        assert len(rounds) == whole.count("\n") == 11

    def test_cut_off_in_a_write_keeps_all_that_comes_after_it(self, tmp_path: Path) -> None:
        clock = Clock(killed_at=T0 + 100)
        with (
            gate(tmp_path, Stored(clock, both(GOOD), looks_back=False)) as watched,
            pytest.raises(Killed),
        ):
            watched.watch(lambda _: None)
        kept = tmp_path / "state" / "scrapes.jsonl"
        kept.write_text(kept.read_text() + '{"t": 17')
        clock.killed_at = T0 + 200
        with (
            gate(tmp_path, Stored(clock, both(GOOD), looks_back=False)) as again,
            pytest.raises(Killed),
        ):
            again.watch(lambda _: None)
        with gate(tmp_path, Stored(clock, both(GOOD), looks_back=False)) as once_more:
            moments = [t_s for _, t_s in once_more._store.kept()]
        assert moments[0] == T0
        assert moments[-1] == pytest.approx(clock.t - EVERY_S, abs=1)
        assert np.diff(moments).max() <= EVERY_S

    def test_with_a_state_that_is_no_state_says_so(self, tmp_path: Path) -> None:
        (tmp_path / "state").mkdir()
        (tmp_path / "state" / "state.json").write_text("{")
        reader = Stored(Clock(), both(GOOD))
        with gate(tmp_path, reader) as watched, pytest.raises(RecordError, match="remove it to begin"):
            watched.watch(lambda _: None)


class TestTellingOthers:
    def hook(self, folder: Path, *, armed: bool = True, code: int = 0) -> tuple[str, Path]:
        told = folder / "told.jsonl"
        script = f"cat >> {told}; echo >> {told}; exit {code}"
        return json.dumps({"hook": ["sh", "-c", script], "armed": armed}), told

    def test_runs_the_hook_once_with_the_payload_on_stdin(self, tmp_path: Path) -> None:
        breach, told = self.hook(tmp_path)
        with gate(tmp_path, Stored(Clock(), both(BAD)), canary=loaded(tmp_path, breach)) as watched:
            verdict = watched.watch(lambda _: None)
        assert verdict.hook is not None
        assert verdict.hook.state == "done"
        (line,) = told.read_text().splitlines()
        payload = json.loads(line)
        assert payload["verdict"] == "NO_GO"
        assert payload["action"]["disable_tier"] == "host"
        assert payload["action"]["configuration"]["argv"]
        assert payload["id"] == verdict.hook.id

    def test_does_not_run_it_before_it_is_armed(self, tmp_path: Path) -> None:
        breach, told = self.hook(tmp_path, armed=False)
        with gate(tmp_path, Stored(Clock(), both(BAD)), canary=loaded(tmp_path, breach)) as watched:
            verdict = watched.watch(lambda _: None)
        assert verdict.hook is not None
        assert verdict.hook.state == "dry-run"
        assert not told.exists()

    def test_does_not_tell_it_twice_when_killed_while_telling(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        breach, told = self.hook(tmp_path)
        canary = loaded(tmp_path, breach)
        clock = Clock()

        def killed(*_: object) -> None:
            told.write_text("once\n")
            raise Killed

        with monkeypatch.context() as patch, gate(tmp_path, Stored(clock, both(BAD)), canary=canary) as watched:
            patch.setattr("kvbench.canary.acting.fire", killed)
            with pytest.raises(Killed):
                watched.watch(lambda _: None)
        with gate(tmp_path, Stored(clock, both(BAD)), canary=canary) as again:
            verdict = again.watch(lambda _: None)
        assert told.read_text() == "once\n"
        assert verdict.verdict is Outcome.NO_GO
        assert verdict.hook is not None
        assert verdict.hook.state == "begun"
        assert "not again" in verdict.hook.text

    def test_at_single_looks_tells_a_lasting_breach_once_and_a_new_one_again(self, tmp_path: Path) -> None:
        breach, told = self.hook(tmp_path)
        canary = loaded(tmp_path, breach)
        for candidate, at in ((BAD, 500), (BAD, 550), (GOOD, 600), (BAD, 650)):
            with gate(tmp_path, Stored(Clock(T0 + at), both(candidate)), canary=canary, for_s=400.0) as once:
                once.once()
        assert len(told.read_text().splitlines()) == 2

    def test_a_hook_that_fails_is_said(self, tmp_path: Path) -> None:
        breach, _ = self.hook(tmp_path, code=3)
        with gate(tmp_path, Stored(Clock(), both(BAD)), canary=loaded(tmp_path, breach)) as watched:
            verdict = watched.watch(lambda _: None)
        assert verdict.hook is not None
        assert (verdict.hook.state, verdict.hook.text) == ("failed", "sh ended with 3")

    def test_posts_with_a_signature_and_tries_again(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GATE_SECRET", "s3cret")
        received: list[tuple[dict[str, str], bytes]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                received.append((dict(self.headers), body))
                self.send_response(503 if len(received) == 1 else 204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        breach = json.dumps(
            {
                "post": f"http://127.0.0.1:{server.server_port}/hooks/s3cret-path",
                "secret_env": "GATE_SECRET",
                "armed": True,
            }
        )
        try:
            with gate(tmp_path, Stored(Clock(), both(BAD)), canary=loaded(tmp_path, breach)) as watched:
                verdict = watched.watch(lambda _: None)
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
        assert verdict.hook is not None
        assert verdict.hook.state == "done"
        assert "s3cret-path" not in verdict.model_dump_json()
        assert all("s3cret-path" not in file.read_text() for file in tmp_path.rglob("*.json"))
        assert len(received) == 2
        headers, body = received[-1]
        signed = headers["X-Kvbench-Timestamp"].encode() + b"." + body
        expected = hmac.new(b"s3cret", signed, hashlib.sha256).hexdigest()
        assert headers["X-Kvbench-Signature"] == f"sha256={expected}"
        assert {each[0]["X-Kvbench-Delivery"] for each in received} == {verdict.hook.id}

    def test_refuses_to_begin_without_the_secret(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("GATE_SECRET", raising=False)
        breach = '{post: "http://127.0.0.1:9/x", secret_env: GATE_SECRET, armed: true}'
        with (
            pytest.raises(InputError, match="GATE_SECRET is not set"),
            gate(tmp_path, Stored(Clock(), both(BAD)), canary=loaded(tmp_path, breach)),
        ):
            pass
