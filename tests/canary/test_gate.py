"""The gate with its clock: it ends when it is certain, outlives what passes, and tells others once."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import numpy as np
import pytest

from kvbench.canary.gate import Look
from kvbench.canary.series import Group
from kvbench.canary.serve import verdict_document
from kvbench.errors import InputError, RecordError
from kvbench.judge.verdict import Outcome
from tests.canary.build import STEP_S, T0
from tests.canary.watched import (
    BAD,
    EVERY_S,
    GOOD,
    Clock,
    Killed,
    Late,
    Stored,
    both,
    gate,
    killed_while_telling,
    loaded,
)
from tests.conftest import REPOSITORY


@dataclass
class Refusing(Stored):
    """One whose credentials are being renewed."""

    refuses: bool = False

    def now(self) -> float:
        if self.refuses:
            raise InputError("http://127.0.0.1:9 wants other credentials (status 401)")
        return super().now()


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
        kept = tmp_path / "state" / "scrapes"
        kept.write_text(kept.read_text() + kept.read_text()[:40])  # cut off in the middle of a line
        reader = Stored(clock, both(GOOD), looks_back=False)
        with gate(tmp_path, reader) as again:
            again.feed.resume()
            moments = again.feed.history.group("candidate", "canary").replicas[0].t_s
        assert reader.asked == []
        assert moments[0] == T0
        assert len(moments) in (10, 11)
        assert np.diff(moments).max() <= EVERY_S

    def test_cut_off_in_a_write_keeps_all_that_comes_after_it(self, tmp_path: Path) -> None:
        clock = Clock(killed_at=T0 + 100)
        with (
            gate(tmp_path, Stored(clock, both(GOOD), looks_back=False)) as watched,
            pytest.raises(Killed),
        ):
            watched.watch(lambda _: None)
        kept = tmp_path / "state" / "scrapes"
        kept.write_text(kept.read_text() + kept.read_text()[:40])
        clock.killed_at = T0 + 200
        with (
            gate(tmp_path, Stored(clock, both(GOOD), looks_back=False)) as again,
            pytest.raises(Killed),
        ):
            again.watch(lambda _: None)
        with gate(tmp_path, Stored(clock, both(GOOD), looks_back=False)) as once_more:
            once_more.feed.resume()
            moments = once_more.feed.history.group("candidate", "canary").replicas[0].t_s
        assert moments[0] == T0
        assert moments[-1] == pytest.approx(clock.t - EVERY_S, abs=STEP_S)
        assert np.diff(moments).max() <= EVERY_S

    def test_with_a_state_that_is_no_state_says_so(self, tmp_path: Path) -> None:
        (tmp_path / "state").mkdir()
        (tmp_path / "state" / "state.json").write_text("{")
        reader = Stored(Clock(), both(GOOD))
        with gate(tmp_path, reader) as watched, pytest.raises(RecordError, match="remove it to begin"):
            watched.watch(lambda _: None)


class TestAServingGate:
    """One in a pod: it may be started again at any time, and is asked by others long after its watch."""

    @pytest.mark.parametrize(
        ("candidate", "for_s", "outcome"),
        [(GOOD, 600.0, "GO"), (BAD, 600.0, "NO_GO"), (GOOD, 60.0, "INCONCLUSIVE")],
    )
    def test_answers_what_its_watch_ended_with_ever_after(
        self, tmp_path: Path, candidate: Group, for_s: float, outcome: str
    ) -> None:
        clock = Clock()
        with gate(tmp_path, Stored(clock, both(candidate)), for_s=for_s, serves=True) as watched:
            first = watched.watch(lambda _: None)
        assert first.verdict.value == outcome
        clock.t = T0 + 30 * 86400
        nobody = Stored(clock, {}, down=(0, 1e9))
        with gate(tmp_path, nobody, for_s=for_s, serves=True) as again:
            assert again.watch(lambda _: None) == first
            assert again.stands is not None
            assert again.stands.until_s is None
        assert nobody.asked == []

    @pytest.mark.parametrize("change", ["its file is another one", "its state is another one", "it does not serve"])
    def test_begins_anew_when(self, tmp_path: Path, change: str) -> None:
        clock = Clock()
        with gate(tmp_path, Stored(clock, both(GOOD)), serves=True) as watched:
            assert watched.watch(lambda _: None).verdict is Outcome.GO
        canary = loaded(tmp_path, "{hook: [./off.sh]}") if change == "its file is another one" else None
        if change == "its state is another one":
            (tmp_path / "state").rename(tmp_path / "old-state")
        clock.t = began = T0 + 601
        serves = change != "it does not serve"
        with gate(tmp_path, Stored(clock, both(GOOD)), canary=canary, for_s=60.0, serves=serves) as again:
            assert again.watch(lambda _: None).window.start == began
            assert again.stands is None

    def test_one_look_in_between_changes_nothing(self, tmp_path: Path) -> None:
        with gate(tmp_path, Stored(Clock(), both(BAD)), serves=True) as watched:
            first = watched.watch(lambda _: None)
        with gate(tmp_path, Stored(Clock(T0 + 650), both(GOOD))) as once:
            assert once.once().verdict is Outcome.GO
        with gate(tmp_path, Stored(Clock(T0 + 660), both(GOOD)), serves=True) as again:
            assert again.watch(lambda _: None) == first

    def test_over_http_where_even_the_prometheus_is_gone(self, tmp_path: Path) -> None:
        with gate(tmp_path, Stored(Clock(), both(BAD)), serves=True) as watched:
            first = watched.watch(lambda _: None)
        argv = ("gate", "canary.yaml", "--serve", "127.0.0.1:0", "--state", "state")
        process = subprocess.Popen(
            [sys.executable, "-m", "kvbench", *argv],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        try:
            address = next(filter(None, (re.search(r"serving (\S+)/verdict", line) for line in process.stderr)))[1]
            deadline = time.monotonic() + 30
            while httpx.get(f"{address}/healthz").status_code != 200 and time.monotonic() < deadline:
                time.sleep(0.05)
            assert httpx.get(f"{address}/verdict").json() == json.loads(
                json.dumps(verdict_document(first), allow_nan=False)
            )
            assert httpx.get(f"{address}/verdict/NO_GO").status_code == 200
        finally:
            process.terminate()
            said = " ".join(process.stderr.read().split())
            assert process.wait(timeout=30) == 143
        assert "this watch has ended before; its verdict stands, and no hook is run" in said


class TestTellingOthers:
    def hook(self, folder: Path, *, armed: bool = True, code: int = 0, within: str = "10m") -> tuple[str, Path]:
        told = folder / "told.jsonl"
        script = f"cat >> {told}; echo >> {told}; exit {code}"
        return json.dumps({"hook": ["sh", "-c", script], "armed": armed, "within": within}), told

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
        with gate(tmp_path, Stored(clock, both(BAD)), canary=canary) as watched:
            killed_while_telling(watched, told, monkeypatch)
        with gate(tmp_path, Stored(clock, both(BAD)), canary=canary) as again:
            verdict = again.watch(lambda _: None)
        assert told.read_text() == "once\n"
        assert verdict.verdict is Outcome.NO_GO
        assert verdict.hook is not None
        assert verdict.hook.state == "begun"
        assert "not again" in verdict.hook.text

    @pytest.mark.parametrize("within_s", [90.0, 600.0])
    def test_started_again_after_its_end_says_the_same_and_tells_nobody(
        self, tmp_path: Path, within_s: float
    ) -> None:
        """Even where the proof goes on beyond the planned end of the watch, at T0 + 600."""
        breach, told = self.hook(tmp_path, within=f"{within_s:g}s")
        canary, clock = loaded(tmp_path, breach), Clock()
        with gate(tmp_path, Stored(clock, both(BAD)), canary=canary) as watched:
            first = watched.watch(lambda _: None)
        ended_s = clock.t
        assert (ended_s > T0 + 600) == (within_s == 600)
        with gate(tmp_path, Stored(clock, both(BAD)), canary=canary) as again:
            second = again.watch(lambda _: None)
            assert again.stands is not None
            assert again.stands.until_s == pytest.approx(T0 + 600 if within_s == 90 else ended_s + 600, abs=1)
        assert clock.t == ended_s
        assert (second.verdict, second.reasons, second.window) == (first.verdict, first.reasons, first.window)
        assert second.hook is not None
        assert "not again" in second.hook.text
        assert len(told.read_text().splitlines()) == 1

    @pytest.mark.parametrize("change", ["its planned end is over", "a look has found it well since"])
    def test_tells_again_of_a_breach_in_another_watch(self, tmp_path: Path, change: str) -> None:
        breach, told = self.hook(tmp_path, within="70s")
        canary, clock = loaded(tmp_path, breach), Clock()
        with gate(tmp_path, Stored(clock, both(BAD)), canary=canary, for_s=400.0) as watched:
            watched.watch(lambda _: None)
        if change == "its planned end is over":
            clock.t = T0 + 400
        else:
            with gate(tmp_path, Stored(Clock(T0 + 600), both(GOOD)), canary=canary, for_s=400.0) as once:
                assert once.once().verdict is Outcome.GO
        with gate(tmp_path, Stored(clock, both(BAD)), canary=canary, for_s=400.0) as again:
            again.watch(lambda _: None)
        assert len(told.read_text().splitlines()) == 2

    def test_at_single_looks_tells_a_lasting_breach_once_and_a_new_one_again(self, tmp_path: Path) -> None:
        breach, told = self.hook(tmp_path)
        canary = loaded(tmp_path, breach)
        for candidate, at in ((BAD, 500), (BAD, 550), (GOOD, 600), (BAD, 650)):
            with gate(tmp_path, Stored(Clock(T0 + at), both(candidate)), canary=canary, for_s=400.0) as once:
                once.once()
        assert len(told.read_text().splitlines()) == 2

    def test_tells_it_although_the_server_wants_other_credentials_just_then(self, tmp_path: Path) -> None:
        breach, told = self.hook(tmp_path, within="90s")
        reader = Refusing(Clock(), both(BAD))

        def on_look(look: Look) -> None:
            reader.refuses = look.verdict.verdict is Outcome.NO_GO and look.verdict.rollback is None

        with gate(tmp_path, reader, canary=loaded(tmp_path, breach)) as watched:
            verdict = watched.watch(on_look)
        assert verdict.hook is not None
        assert verdict.hook.state == "done"
        assert len(told.read_text().splitlines()) == 1

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
