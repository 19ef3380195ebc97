"""What the tests with a real Prometheus look at: emulated engines with known truths under load, side by side."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import random
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kvbench.engine.ports import free_port
from tests.canary.prometheus_tools import Running, running
from tests.cli.invoke import Answer, kvbench_here

__all__ = [
    "LOAD_S",
    "PER_S",
    "TRACKS",
    "Field",
    "driven",
    "emulated",
    "in_the_field",
    "wait_for_answer",
    "watched_through_an_outage",
]

LOAD_S = 16.0
"""Before the first look; the load goes on while there are looks."""
PER_S = 12.0
"""Requests a second and server: 36 in a window of three seconds, and far below what a server can do."""
WATCH_S = 80.0
"""Of the watch that outlives its Prometheus, which scrapes again some 6 s after it was killed (its discovery of
targets takes 5 s): so long that this is less than a tenth, as a minute of two hours is."""
DOWN_S = 0.2

Prompt = Callable[[random.Random, int], list[int]]
"""Of the request with this number."""


def tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(32, 255) for _ in range(count)]


def short(rng: random.Random, number: int) -> list[int]:
    return tokens(rng, 64)


def at_times_long(rng: random.Random, number: int) -> list[int]:
    """16 % take 0.11 s to compute: more than the 10 % of a p90, less than the 30 % of a `sustained` rule on a p85.

    At ten a second no other waits for more than 0.1 s behind them, but for those that a busy machine holds up: of
    these there may be as many again.
    """
    return tokens(rng, 800 if int((number + 1) * 0.16) > int(number * 0.16) else 64)


@dataclass(frozen=True)
class Track:
    """One server: what is injected into it, and the load that it gets."""

    inject: Mapping[str, object] = field(default_factory=dict)
    per_s: float = PER_S
    prompt: Prompt = short


TRACKS = {
    "stable": Track(),
    "good": Track(),
    # Cannot quite keep up with the load, so the queue grows.
    "slow": Track({"slow_steps": {"factor": 10}}),
    # 13 requests come within one step, ten of them wait for too long: 28 % of three seconds, 14 % of six.
    "spiking": Track({"stalls": {"every": 9, "by": 1.1}}),
    "burning": Track(per_s=10.0, prompt=at_times_long),
    "restarting": Track({"restart": {"after": 90, "down": 1.0}}),
    "idle": Track(per_s=0.0),
    "few": Track(per_s=0.3),
}
PAIR = ("stable", "good")
"""The watch through an outage is over these two."""

SUSTAINED = "{id: sustained, metric: ttft, quantile: 0.9, max: 250ms, sustained: {window: 3s, for: 6s}}"
P90 = "{id: ttft-p90, metric: ttft, quantile: 0.9, max: 250ms}"
GENEROUS = "{id: ttft-p90, metric: ttft, quantile: 0.9, max: 1s}"
ERRORS = "{id: errors, metric: error_rate, max: 10%}"


def canary(
    name: str,
    prometheus: str,
    track: str,
    *,
    baseline: str | None,
    guardrails: tuple[str, ...],
    profile: Path | None = None,
) -> str:
    """A canary file over series by their label `track`."""
    lines = [f"name: {name}", f'prometheus: {{url: "{prometheus}", retries: 0}}']
    if baseline:
        lines.append(f"baseline: {{match: {{job: vllm, track: {baseline}}}}}")
    runs = "" if profile is None else f", profile: {profile}"
    lines.append(f"candidate: {{match: {{job: vllm, track: {track}}}{runs}}}")
    lines += ["warm_up: false", "rules:", "  guardrails:", *(f"    - {rule}" for rule in guardrails)]
    return "\n".join(lines) + "\n"


@dataclass
class Field:
    """The Prometheus, the servers by track, and a watch over another Prometheus that went away in the middle."""

    prometheus: Running
    ports: dict[str, int]
    folder: Path
    outage: subprocess.Popen[str]
    began: float
    """When the load did, by the monotonic clock."""
    rest: Callable[[], None]
    """Ends the load of all tracks but stable and good, which the watch is over."""
    embedded_port: int
    """Scraped as `track: embedded`; nothing is there until a test starts it."""

    def gate(
        self,
        track: str,
        *options: str,
        baseline: str | None = "stable",
        name: str = "",
        guardrails: tuple[str, ...] = (SUSTAINED, P90, ERRORS),
        since_s: float | None = None,
        profile: Path | None = None,
    ) -> Answer:
        """One look at everything since the load began, or at the last seconds."""
        name = name or track
        text = canary(name, self.prometheus.url, track, baseline=baseline, guardrails=guardrails, profile=profile)
        since_s = since_s or time.monotonic() - self.began
        return self.run(name, text, "--once", "--for", f"{since_s:.0f}s", *options)

    def wait_for(self, seconds: float) -> None:
        """Until the load has gone on for so long."""
        time.sleep(max(0.0, self.began + seconds - time.monotonic()))

    def run(self, name: str, text: str, *options: str) -> Answer:
        file = self.folder / f"{name}.yaml"
        file.write_text(text)
        return kvbench_here("gate", file, "--json", "--state", self.folder / f"state-{name}", *options)


@contextmanager
def emulated(name: str, folder: Path, port: int, tiers: dict[str, object], **more: object) -> Iterator[None]:
    """An emulated engine without noise as a server of its own; `more` are further keys of its `engine`."""
    profile = {
        "name": name,
        "engine": {
            "kind": "emulated",
            "model": "tiny",
            "args": {"max-model-len": 4096},
            "emulation": {"noise": {"launch": 0, "level": 0, "step": 0}},
            **more,
        },
        "tiers": tiers,
    }
    file = folder / f"{name}.json"
    file.write_text(json.dumps({"profile": profile, "label": name}))
    argv = [sys.executable, "-m", "kvbench.engine.emulated.server", "--config", str(file), "--port", str(port)]
    with process(*argv):
        yield


@contextmanager
def process(*argv: str | Path, cwd: Path | None = None) -> Iterator[None]:
    """A server that is killed in the end; what it says is not kept."""
    child = subprocess.Popen(list(map(str, argv)), cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        child.kill()
        child.wait()


@contextmanager
def _served(track: str, folder: Path) -> Iterator[int]:
    port, inject = free_port(), TRACKS[track].inject
    more: dict[str, object] = {"inject": inject} if inject else {}
    with emulated(track, folder, port, {"device": {"blocks": 256}}, **more):
        yield port


def wait_for_answer(url: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=1):
            return
        time.sleep(0.1)
    raise TimeoutError(url)


@contextmanager
def driven(loads: Mapping[int, Track]) -> Iterator[None]:
    """Port → the load that it gets meanwhile, at a fixed pace, each request on a thread of its own. Whatever fails
    is the server's matter."""
    stop = threading.Event()

    def ask(port: int, prompt: list[int]) -> None:
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 2}
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return
        finally:
            connection.close()

    def drive(port: int, load: Track) -> None:
        rng, began = random.Random(7), time.monotonic()
        for number in itertools.count():
            if stop.wait(max(0.0, began + number / load.per_s - time.monotonic())):
                return
            threading.Thread(target=ask, args=(port, load.prompt(rng, number)), daemon=True).start()

    threads = [threading.Thread(target=drive, args=each) for each in loads.items() if each[1].per_s]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _scraping(jobs: str) -> str:
    return f"global: {{scrape_interval: 1s, scrape_timeout: 1s}}\nscrape_configs:\n{jobs}"


def _job(name: str, ports: Mapping[str, int], more: str = "") -> str:
    targets = "".join(
        f'      - {{targets: ["127.0.0.1:{port}"], labels: {{track: {track}, job: vllm}}}}\n'
        for track, port in ports.items()
    )
    return f"  - job_name: {name}\n{more}    static_configs:\n{targets}"


NO_BUCKETS = """\
    metric_relabel_configs:
      - {source_labels: [__name__], regex: vllm:time_to_first_token_seconds_bucket, action: drop}
"""


@contextmanager
def _outlived(
    folder: Path, shaky: Running, *, watch_s: float = WATCH_S, down_s: float = DOWN_S
) -> Iterator[subprocess.Popen[str]]:
    """A watch over a Prometheus that is killed once the watch has begun, and started again on its data."""
    file, state = folder / "outage.yaml", folder / "state-outage"
    file.write_text(canary("outage", shaky.url, "good", baseline="stable", guardrails=(GENEROUS, ERRORS)))
    argv = [sys.executable, "-m", "kvbench", "gate", str(file), "--json", "--state", str(state)]
    process = subprocess.Popen(
        [*argv, "--for", f"{watch_s:g}s", "--every", "1s"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not (state / "state.json").exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(3)
        shaky.kill()
        time.sleep(down_s)
        shaky.start()
        yield process
    finally:
        process.kill()
        process.wait()


def _ports(stack: ExitStack, tracks: Iterable[str], folder: Path) -> dict[str, int]:
    ports = {track: stack.enter_context(_served(track, folder)) for track in tracks}
    for port in ports.values():
        wait_for_answer(f"http://127.0.0.1:{port}/health")
    return ports


def _watched(stack: ExitStack, pair: Mapping[str, int], folder: Path) -> Running:
    """A Prometheus of these two alone, which are driven from then on."""
    shaky = stack.enter_context(running(folder / "shaky", _scraping(_job("pair", pair))))
    time.sleep(2)
    stack.enter_context(driven({port: TRACKS[track] for track, port in pair.items()}))
    return shaky


@contextmanager
def watched_through_an_outage(folder: Path, *, watch_s: float, down_s: float) -> Iterator[subprocess.Popen[str]]:
    """Stable and good alone, and the watch over a Prometheus that was down for so long."""
    with ExitStack() as stack:
        shaky = _watched(stack, _ports(stack, PAIR, folder), folder)
        yield stack.enter_context(_outlived(folder, shaky, watch_s=watch_s, down_s=down_s))


@contextmanager
def in_the_field(folder: Path) -> Iterator[Field]:
    """All servers under load for a while, all of it in a Prometheus."""
    with ExitStack() as stack:
        ports = _ports(stack, TRACKS, folder)
        embedded_port = free_port()
        jobs = _job("all", {**ports, "embedded": embedded_port}) + _job("mute", {"mute": ports["good"]}, NO_BUCKETS)
        prometheus = stack.enter_context(running(folder / "steady", _scraping(jobs)))
        pair = {track: ports[track] for track in PAIR}
        shaky = _watched(stack, pair, folder)
        others = stack.enter_context(ExitStack())
        others.enter_context(driven({port: TRACKS[track] for track, port in ports.items() if track not in pair}))
        began = time.monotonic()
        outage = stack.enter_context(_outlived(folder, shaky))
        it = Field(prometheus, ports, folder, outage, began, others.close, embedded_port)
        it.wait_for(LOAD_S)
        yield it
