"""What dashboards and rules are asked of: a Prometheus that scrapes this host, two engines under load, and a gate.

The engines are emulated ones with all tiers; the candidate is slower than its rule allows, so the gate ends with
NO_GO, runs its hook, which changes nothing, and says that the tier is still on and TTFT where it should be.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

from kvbench.dashboards.budgets import Budgets
from kvbench.dashboards.generate import rules
from kvbench.engine.ports import free_port
from tests.canary.field import Track, driven, emulated, process, tokens, wait_for_answer
from tests.canary.prometheus_tools import node_exporter, running
from tests.dashboards.asking import Asker
from tests.dashboards.made_up import made_up

__all__ = ["MOUNT", "VALUES", "scraping", "watched_host", "write_rules"]

PER_S = 6.0
PREFIXES = [tokens(random.Random(n), 256) for n in range(40)]
"""80 blocks: the device holds two in five of them, the host tier three in five, the disk all."""
TIERS: dict[str, object] = {"device": {"blocks": 33}, "host": {"size": "12MiB", "store_threshold": 2}}
SLOW = {"slow_steps": {"factor": 4}}
"""Every gap between tokens takes 36 ms instead of 9."""
MOUNT = "/dev/shm"
VALUES = {
    "label": "track", "baseline": "stable", "candidate": "canary", "ttft_budget": "2.5", "itl_budget": "0.1",
    "node": "host", "mount": MOUNT, "device": ".+", "gate": "watched", "rule": ".+", "__rate_interval": "1m",
}  # fmt: skip
CANARY = """\
name: watched
prometheus: {{url: "{prometheus}"}}
baseline: {{match: {{job: vllm, track: stable}}}}
candidate: {{match: {{job: vllm, track: canary}}, profile: canary-profile.yaml}}
warm_up: false
rules:
  guardrails:
    - {{id: itl, metric: itl, quantile: 0.5, max: 25ms}}
    - {{id: sustained, metric: ttft, quantile: 0.9, max: 5s, sustained: {{window: 5s, for: 10s}}}}
on_breach: {{hook: ["true"], armed: true, within: 8s, steady: 6s}}
"""
PROFILE = """\
name: canary
engine: {{kind: attached, base_url: "http://127.0.0.1:{port}", model: tiny}}
tiers: {{device: {{blocks: 33}}, host: {{size: 12MiB}}, disk: {{path: /kv}}}}
"""
WATCH = "30s"
"""24 segments of 1.25 s; the breach is decided after 20 of them."""


def prefixed(rng: random.Random, number: int) -> list[int]:
    """A prompt that begins as some before it did."""
    return rng.choice(PREFIXES) + tokens(rng, 16)


def scraping(rule_folder: Path, *jobs: str) -> str:
    """A configuration with the shipped rules."""
    lines = [
        "global: {scrape_interval: 500ms, evaluation_interval: 1s}",
        f"rule_files: [{rule_folder}/*.yaml]",
        "scrape_configs:",
        *(f"  - {job}" for job in jobs),
    ]
    return "\n".join(lines) + "\n"


def _job(name: str, path: str, targets: str, more: str = "") -> str:
    return f"{{job_name: {name}, metrics_path: {path}, {more}static_configs: [{targets}]}}"


def _target(port: int, **labels: str) -> str:
    told = ", ".join(f"{name}: {value}" for name, value in labels.items())
    return f'{{targets: ["127.0.0.1:{port}"], labels: {{{told}}}}}'


@contextmanager
def _host() -> Iterator[int]:
    """node_exporter on a port; it tells of `/dev/shm` only when it is asked to, as dashboards/README.md says."""
    port = free_port()
    shown = "^/(proc|sys|run/credentials/.+|var/lib/docker/.+)($|/)"
    with process(
        node_exporter(),
        f"--web.listen-address=127.0.0.1:{port}",
        f"--collector.filesystem.mount-points-exclude={shown}",
    ):
        wait_for_answer(f"http://127.0.0.1:{port}/metrics")
        yield port


def write_rules(folder: Path) -> Path:
    """The rules as they are exported for a disk tier at `MOUNT`."""
    folder.mkdir()
    for name, text in rules(Budgets(disk_mount=MOUNT)).items():
        (folder / Path(name).name).write_text(text)
    return folder


@contextmanager
def watched_host(folder: Path) -> Iterator[Asker]:
    """Everything under way, and the gate at its end."""
    with ExitStack() as stack:
        engines, gate_port = {"stable": free_port(), "canary": free_port()}, free_port()
        for track, port in engines.items():
            tiers = {**TIERS, "disk": {"path": str(folder / f"kv-{track}")}}
            more: dict[str, object] = {"inject": SLOW} if track == "canary" else {}
            stack.enter_context(emulated(track, folder, port, tiers, **more))
        for port in engines.values():
            wait_for_answer(f"http://127.0.0.1:{port}/health")
        host_port, made_up_port = stack.enter_context(_host()), stack.enter_context(made_up())
        jobs = (
            _job("vllm", "/metrics", ", ".join(_target(port, track=track) for track, port in engines.items())),
            _job(
                "vllm-failures",
                "/engine",
                ", ".join(_target(made_up_port, track=track, instance=track) for track in engines),
            ),
            _job("node", "/metrics", _target(host_port, instance="host"), "scrape_interval: 2s, "),
            _job("gpu", "/host", _target(made_up_port, instance="host")),
            _job("gate", "/metrics", _target(gate_port, role="gate")),
        )
        configuration = scraping(write_rules(folder / "rules"), *jobs)
        prometheus = stack.enter_context(running(folder / "prometheus", configuration))
        stack.enter_context(driven({port: Track(per_s=PER_S, prompt=prefixed) for port in engines.values()}))
        ask = Asker(stack.enter_context(httpx.Client(base_url=prometheus.url, timeout=10)))
        ask.wait_for("count(rate(vllm:time_to_first_token_seconds_count[10s]) > 0) == 2", 30)
        (folder / "canary.yaml").write_text(CANARY.format(prometheus=prometheus.url))
        (folder / "canary-profile.yaml").write_text(PROFILE.format(port=engines["canary"]))
        argv = [sys.executable, "-m", "kvbench", "gate", "canary.yaml", "--for", WATCH, "--every", "1s"]
        stack.enter_context(
            process(*argv, "--serve", f"127.0.0.1:{gate_port}", "--state", folder / "state", cwd=folder)
        )
        ask.wait_for("kvbench_gate_rollback_after_seconds", 90)
        yield ask
