"""`kvbench gate` over a real Prometheus that scrapes real servers, and over the servers themselves.

Everything happens once: four emulated engines under one load, two of them with a known truth.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.invoke import Answer, kvbench_here
from tests.missing import need

need("prometheus_api_client")

LOAD_S = 14.0
"""Before the first look; the load goes on while there are looks."""
PER_S = 12.0
"""Requests a second and server: 36 in a window of three seconds, and far below what a server can do."""
SERVERS: dict[str, dict[str, object]] = {
    "stable": {},
    "good": {},
    "slow": {"slow_steps": {"factor": 16}},
    "restarting": {"restart": {"after": 90, "down": 1.0}},
}
"""Track → what is injected. Steps sixteen times as long cannot keep up with the load, so the queue grows."""

RULES = """\
rules:
  guardrails:
    - {id: sustained, metric: ttft, quantile: 0.9, max: 250ms, sustained: {window: 3s, for: 6s}}
    - {id: ttft-p90, metric: ttft, quantile: 0.9, max: 250ms}
    - {id: errors, metric: error_rate, max: 10%}
warm_up: false
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Field:
    """What the tests look at: the Prometheus, and the servers by track."""

    url: str
    ports: dict[str, int]
    folder: Path
    process: subprocess.Popen[bytes]
    began: float
    """When the load did, by the monotonic clock."""

    def gate(self, track: str, *options: str, baseline: str | None = "stable", name: str = "") -> Answer:
        """One look at everything since the load began."""
        lines = [f"name: {name or track}", f'prometheus: {{url: "{self.url}", retries: 0}}']
        if baseline:
            lines.append(f"baseline: {{match: {{job: vllm, track: {baseline}}}}}")
        lines.append(f"candidate: {{match: {{job: vllm, track: {track}}}}}")
        since = f"{time.monotonic() - self.began:.0f}s"
        text = "\n".join(lines) + "\n" + RULES
        return self.run(name or track, text, "--once", "--for", since, *options)

    def run(self, name: str, text: str, *options: str) -> Answer:
        file = self.folder / f"{name}.yaml"
        file.write_text(text)
        return kvbench_here("gate", file, "--json", "--state", self.folder / f"state-{name}", *options)


def _serve(track: str, folder: Path) -> tuple[subprocess.Popen[bytes], int]:
    port = free_port()
    profile: dict[str, object] = {
        "name": track,
        "engine": {"kind": "emulated", "model": "tiny", "args": {"max-model-len": 4096}},
        "tiers": {"device": {"blocks": 256}},
    }
    if SERVERS[track]:
        profile["engine"]["inject"] = SERVERS[track]  # type: ignore[index]
    file = folder / f"{track}.json"
    file.write_text(json.dumps({"profile": profile, "label": track}))
    argv = [sys.executable, "-m", "kvbench.engine.emulated.server", "--config", str(file), "--port", str(port)]
    return subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL), port


def _wait_for(url: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(url)


def _drive(port: int, stop: threading.Event) -> None:
    """Requests at a fixed pace, each on a thread of its own; what fails is the server's matter."""
    rng = random.Random(port)

    def ask() -> None:
        body = {"model": "tiny", "prompt": [rng.randrange(32, 255) for _ in range(64)], "max_tokens": 2}
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request("POST", "/v1/completions", json.dumps(body))
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return
        finally:
            connection.close()

    while not stop.wait(1 / PER_S):
        thread = threading.Thread(target=ask, daemon=True)
        thread.start()


def _configuration(ports: dict[str, int]) -> str:
    targets = "\n".join(
        f'      - {{targets: ["127.0.0.1:{port}"], labels: {{track: "{track}"}}}}' for track, port in ports.items()
    )
    return (
        "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
        f"scrape_configs:\n  - job_name: vllm\n    static_configs:\n{targets}\n"
    )


@pytest.fixture(scope="module")
def field(prometheus_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    """Four servers under load for a while, all of it in a Prometheus."""
    folder = tmp_path_factory.mktemp("prometheus")
    with ExitStack() as stack:
        ports: dict[str, int] = {}
        for track in SERVERS:
            process, ports[track] = _serve(track, folder)
            stack.callback(process.wait)
            stack.callback(process.kill)
        for port in ports.values():
            _wait_for(f"http://127.0.0.1:{port}/health")
        (folder / "prometheus.yml").write_text(_configuration(ports))
        address = f"127.0.0.1:{free_port()}"
        argv = [
            str(prometheus_binary),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={address}",
        ]
        server = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ})
        stack.callback(server.wait)
        stack.callback(server.kill)
        _wait_for(f"http://{address}/-/ready")
        time.sleep(2)
        stop = threading.Event()
        threads = [threading.Thread(target=_drive, args=(port, stop)) for port in ports.values()]
        began = time.monotonic()
        for thread in threads:
            thread.start()
            stack.callback(thread.join)
        stack.callback(stop.set)
        time.sleep(LOAD_S)
        yield Field(f"http://{address}", ports, folder, server, began)


def status(answer: Answer, rule: str) -> str:
    return next(each["status"] for each in json.loads(answer.out)["rules"] if each["rule"] == rule)


class TestOverAPrometheus:
    def test_a_healthy_canary_may_stay(self, field: Field) -> None:
        answer = field.gate("good", "--junit", str(field.folder / "gate.xml"))
        document = json.loads(answer.out)
        assert (answer.code, document["verdict"]) == (0, "GO"), document["reasons"]
        assert document["baseline"] == "job=vllm,track=stable"
        assert document["candidate"] == "job=vllm,track=good"
        assert document["window"]["end"] - document["window"]["start"] >= LOAD_S - 1
        assert document["sources"]["job=vllm,track=good"]["computed"] > 0
        assert (field.folder / "gate.xml").read_text().startswith("<?xml")

    def test_a_slow_one_must_not(self, field: Field) -> None:
        answer = field.gate("slow")
        assert answer.code == 1, json.loads(answer.out)["reasons"]
        assert status(answer, "sustained") == "fail"

    def test_a_slow_one_beside_a_slow_baseline_is_no_reason_to_act(self, field: Field) -> None:
        answer = field.gate("slow", baseline="~slo.")
        assert answer.code == 3
        assert "sick itself" in answer.out

    def test_one_that_restarted_is_inconclusive(self, field: Field) -> None:
        answer = field.gate("restarting")
        assert answer.code == 3, json.loads(answer.out)["reasons"]
        assert status(answer, "engine-restarted") == "unknown"

    def test_labels_that_select_nothing_are_inconclusive(self, field: Field) -> None:
        answer = field.gate("nobody")
        assert answer.code == 3
        assert status(answer, "series-missing") == "unknown"

    def test_a_replica_among_several_is_found_by_its_instance(self, field: Field) -> None:
        answer = field.gate("~good|slow", baseline=None, name="both")
        document = json.loads(answer.out)
        assert {row["replica"] for row in document["replicas"]} == {
            f"127.0.0.1:{field.ports[track]}" for track in ("good", "slow")
        }
        assert answer.code == 1

    def test_what_a_server_refuses_is_said_with_exit_2(self, field: Field) -> None:
        answer = field.run(
            "lost",
            f'name: lost\nprometheus: {{url: "{field.url}/elsewhere"}}\ncandidate: {{match: {{a: b}}}}\n{RULES}',
            "--once",
        )
        assert answer.code == 2
        assert "has no query API at this address" in answer.out


class TestOverTheServersThemselves:
    def test_a_short_stretch_is_seen_and_not_enough(self, field: Field) -> None:
        text = f'name: direct\nscrape: {{candidate: ["http://127.0.0.1:{field.ports["good"]}"]}}\ncandidate: {{}}\n'
        answer = field.run("direct", text + RULES, "--once", "--for", "3s", "--every", "1s")
        assert answer.code == 3
        assert status(answer, "series-missing") == "pass"
        assert status(answer, "too-few-requests") == "pass"
        assert status(answer, "sustained") == "unknown"


class TestWithoutAPrometheus:
    def test_that_went_down_the_gate_is_inconclusive_and_says_why(self, field: Field) -> None:
        field.process.kill()
        field.process.wait()
        answer = field.gate("good")
        assert answer.code == 3
        assert "cannot be reached" in answer.out
        assert status(answer, "metrics-unreachable") == "unknown"
