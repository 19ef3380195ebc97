"""The rollback rehearsal: the hook is run on purpose, once, and only where that can prove something."""

from __future__ import annotations

import http.client
import json
import random
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from kvbench.canary.rehearsal import Rehearsal, Rehearsed
from kvbench.canary.state import StateStore
from kvbench.errors import InputError
from kvbench.spec.canary import LoadedCanary
from tests.canary.build import T0, Truth, group
from tests.canary.watched import EVERY_S, LONG_S, Clock, Killed, Stored, both, loaded
from tests.cli.invoke import kvbench_here

AT = 300.0
OFF = group("canary", Truth(gap=(AT, 330), restart_at=330, off_at=330), seconds=LONG_S)


def armed(folder: Path, code: int = 0) -> tuple[LoadedCanary, Path]:
    told = folder / "told.jsonl"
    hook = ["sh", "-c", f"cat >> {told}; echo >> {told}; exit {code}"]
    return loaded(folder, json.dumps({"hook": hook, "armed": True, "within": "5m"})), told


def rehearsed(folder: Path, reader: Stored, canary: LoadedCanary) -> tuple[Rehearsed, list[str]]:
    lines: list[str] = []
    store = StateStore(folder / "state", canary.canary)
    try:
        it = Rehearsal(canary, reader, store, before_s=None, every_s=EVERY_S, sleep=reader.clock.sleep)
        return it.run(lines.append), lines
    finally:
        store.close()


class TestARehearsal:
    def test_runs_the_hook_and_proves_what_came_of_it(self, tmp_path: Path) -> None:
        canary, told = armed(tmp_path)
        found, lines = rehearsed(tmp_path, Stored(Clock(T0 + AT), both(OFF)), canary)
        assert (found.rehearsal, found.exit_code) == ("pass", 0), found.reasons
        (line,) = told.read_text().splitlines()
        payload = json.loads(line)
        assert payload["rehearsal"] is True
        assert payload["verdict"] == "NO_GO"
        assert payload["action"]["disable_tier"] == "host"
        assert "host" not in payload["action"]["configuration"]["profile"]["tiers"]
        assert "running the hook" in lines
        assert found.rollback is not None
        assert found.rollback.cost is not None
        assert found.rollback.cost.recomputed_tokens is not None

    def test_of_a_hook_that_changes_nothing_fails(self, tmp_path: Path) -> None:
        canary, _ = armed(tmp_path)
        stays = group("canary", Truth(), seconds=LONG_S)
        found, _ = rehearsed(tmp_path, Stored(Clock(T0 + AT), both(stays)), canary)
        assert (found.rehearsal, found.exit_code) == ("fail", 1)
        assert "the host tier is still on" in found.reasons[0]

    def test_of_a_hook_that_fails_says_so(self, tmp_path: Path) -> None:
        canary, _ = armed(tmp_path, code=7)
        found, _ = rehearsed(tmp_path, Stored(Clock(T0 + AT), both(OFF)), canary)
        assert (found.rehearsal, found.exit_code) == ("hook-failed", 4)
        assert "sh ended with 7" in found.reasons[0]

    @pytest.mark.parametrize(
        ("truth", "words"),
        [
            (Truth(per_s=0.05), "are too few to know TTFT by; the hook was not run"),
            (Truth(off_at=0.0), "nothing shows that the host tier is on; the hook was not run"),
            (Truth(silent_from=100.0), "no replica of the candidate answers; the hook was not run"),
        ],
    )
    def test_does_not_run_it_where_nothing_could_be_proven(self, tmp_path: Path, truth: Truth, words: str) -> None:
        canary, told = armed(tmp_path)
        reader = Stored(Clock(T0 + AT), both(group("canary", truth, seconds=LONG_S)))
        found, _ = rehearsed(tmp_path, reader, canary)
        assert (found.rehearsal, found.exit_code) == ("unknown", 3)
        assert words in found.reasons[0]
        assert not told.exists()

    def test_that_was_killed_goes_on_and_a_new_one_begins_anew(self, tmp_path: Path) -> None:
        canary, told = armed(tmp_path)
        clock = Clock(T0 + AT, killed_at=T0 + AT + 50)
        with pytest.raises(Killed):
            rehearsed(tmp_path, Stored(clock, both(OFF)), canary)
        assert len(told.read_text().splitlines()) == 1
        clock.killed_at = None
        found, lines = rehearsed(tmp_path, Stored(clock, both(OFF)), canary)
        assert found.rehearsal == "pass"
        assert "the hook is not run again" in lines[0]
        assert len(told.read_text().splitlines()) == 1
        rehearsed(tmp_path, Stored(Clock(T0 + AT), both(OFF)), canary)
        assert len(told.read_text().splitlines()) == 2


class TestAFile:
    @pytest.mark.parametrize(
        ("breach", "words"),
        [
            ("{armed: false}", "there is no hook to rehearse"),
            ("{hook: [./off.sh], armed: false}", "it is not armed"),
        ],
    )
    def test_without_an_armed_hook_is_refused(self, tmp_path: Path, breach: str, words: str) -> None:
        with pytest.raises(InputError, match=words):
            rehearsed(tmp_path, Stored(Clock(), both(OFF)), loaded(tmp_path, breach))

    @pytest.mark.parametrize("other", [("--once",), ("--serve", "0")])
    def test_with_options_that_make_no_sense_is_refused(self, tmp_path: Path, other: tuple[str, ...]) -> None:
        loaded(tmp_path)
        answer = kvbench_here("gate", tmp_path / "canary.yaml", "--rehearse", *other)
        assert answer.code == 2
        assert f"leave out {other[0]}" in answer.err

    def test_whose_proof_cannot_fit_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="cannot be reached within 30 s"):
            loaded(tmp_path, "{hook: [./off.sh], within: 30s}")


# -- over HTTP: an emulated engine with a host tier, restarted without it by whoever is posted to ------------------

PER_S = 12.0
BLOCKS, PREFIXES, PREFIX_TOKENS = 24, 24, 384
"""The prefixes are three times what the device holds."""
WARM_S = 3.0
PROFILE: dict[str, object] = {
    "name": "tiered",
    "engine": {"kind": "emulated", "model": "tiny", "args": {"max-model-len": 1024}},
    "tiers": {"device": {"blocks": BLOCKS}, "host": {"size": "64MiB"}},
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Staging:
    """One emulated engine on a port, under load, and a controller that restarts it as it is told."""

    def __init__(self, folder: Path) -> None:
        self.port, self._folder = free_port(), folder
        self._process: subprocess.Popen[bytes] | None = None
        self.payloads: list[dict[str, object]] = []
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        outer = self

        class Controller(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                payload = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.payloads.append(payload)
                outer.serve(payload["action"]["configuration"]["profile"])
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.controller = HTTPServer(("127.0.0.1", 0), Controller)
        self._threads.append(threading.Thread(target=self.controller.serve_forever, daemon=True))

    def serve(self, profile: dict[str, object]) -> None:
        """This profile instead of what was served before."""
        self._end()
        file = self._folder / "server.json"
        file.write_text(json.dumps({"profile": profile, "label": "staging"}))
        argv = [sys.executable, "-m", "kvbench.engine.emulated.server", "--config", str(file)]
        log = self._folder / "server.log"
        with log.open("w") as out:
            self._process = subprocess.Popen([*argv, "--port", str(self.port)], stdout=out, stderr=out)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=1):
                    return
            except OSError:
                time.sleep(0.1)
        raise RuntimeError(f"the emulated engine did not start: {log.read_text()}")

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _load(self) -> None:
        rng = random.Random(5)
        prefixes = [[rng.randrange(32, 255) for _ in range(PREFIX_TOKENS)] for _ in range(PREFIXES)]

        def ask(prompt: list[int]) -> None:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
            try:
                connection.request(
                    "POST", "/v1/completions", json.dumps({"model": "tiny", "prompt": prompt, "max_tokens": 2})
                )
                connection.getresponse().read()
            except (OSError, http.client.HTTPException):
                return
            finally:
                connection.close()

        while not self._stop.wait(1 / PER_S):
            prompt = [*rng.choice(prefixes), *(rng.randrange(32, 255) for _ in range(32))]
            threading.Thread(target=ask, args=(prompt,), daemon=True).start()

    def __enter__(self) -> Staging:
        self.serve(PROFILE)
        self._threads.append(threading.Thread(target=self._load))
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self.controller.shutdown()
        self.controller.server_close()
        for thread in self._threads:
            thread.join()
        self._end()


@contextmanager
def staging(folder: Path) -> Iterator[Staging]:
    with Staging(folder) as it:
        (folder / "tiered.yaml").write_text(json.dumps(PROFILE))
        (folder / "canary.yaml").write_text(
            f"""\
name: staging
scrape: {{candidate: ["http://127.0.0.1:{it.port}"]}}
candidate: {{profile: tiered.yaml}}
rules: {{guardrails: [{{id: ttft, metric: ttft, quantile: 0.9, max: 1s}}]}}
on_breach: {{post: "http://127.0.0.1:{it.controller.server_port}/off", armed: true, within: 60s, steady: 3s}}
"""
        )
        yield it


def test_over_http_the_tier_is_switched_off_proven_off_and_the_cost_is_said(tmp_path: Path) -> None:
    with staging(tmp_path) as it:
        time.sleep(WARM_S)
        answer = kvbench_here(
            *("gate", tmp_path / "canary.yaml", "--rehearse", "--json", "--for", "5s", "--every", "1s"),
            *("--state", tmp_path / "state", "--junit", tmp_path / "r.xml", "--markdown", tmp_path / "r.md"),
        )
    found = json.loads(answer.out)
    assert (answer.code, found["rehearsal"]) == (0, "pass"), (found["reasons"], answer.err)
    (payload,) = it.payloads
    assert payload["rehearsal"] is True
    rollback = found["rollback"]
    (row,) = rollback["replicas"]
    assert row["status"] == "off"
    assert any("its configuration has no KV connector" in each for each in row["evidence"])
    assert any("declare no family of the host tier" in each for each in row["evidence"])
    cost = rollback["cost"]
    assert cost["sources_before"]["host"] > 0
    assert cost["sources_after"]["host"] == 0
    assert 0 < cost["without_service_s"][1] < 30
    assert cost["recomputed_tokens"] > 0
    assert cost["ttft_before"]["mean_s"] > 0
    assert cost["ttft_after"]["requests"] >= 20
    assert ET.parse(tmp_path / "r.xml").getroot().get("failures") == "0"
    assert "the rollback works" in (tmp_path / "r.md").read_text()
