"""Stopped at any moment, `kvbench compare` leaves nothing running and nothing behind, and the run can go on.

The real engine; moments are drawn anew each time and printed, so that over many runs every moment is hit.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.cli.files import CPU_PROFILE, write
from tests.cli.invoke import Answer, kvbench

pytestmark = pytest.mark.engine

WHOLE_S = 45.0
"""About one round of each arm: two engine starts, priming and load."""

WORKLOAD = """\
name: short-round
arrivals: {process: poisson, rate: 6/s}
phases: [{name: steady, for: 4s}]
classes:
  long: {prefix: {tokens: 1024, pool: 8}, suffix_tokens: 32, output_tokens: 4}
prime: each_prefix_once
"""
RULES = """\
guardrails:
  - {id: errors, metric: error_rate, max: 50%}
benefits:
  - {id: ttft, metric: ttft, quantile: 0.5, max_ratio: 0.9}
rounds: {min: 2, max: 2}
validity: {send_lag_p99: 2s, contention: 4, scrape_coverage: 10%, scrape_gap: 30s}
"""


@dataclass(frozen=True)
class World:
    """What could be left behind: shared memory, marked processes, listening ports, tier directories."""

    shm: frozenset[str]
    processes: frozenset[int]
    ports: frozenset[int]
    tier: frozenset[str]


def world(tier: Path) -> World:
    marked = set()
    for process in psutil.process_iter():
        try:
            if "KVBENCH_LEASE" in process.environ() or "kvbench.load.driver" in " ".join(process.cmdline()):
                marked.add(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    listening = {c.laddr.port for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
    left = {path.name for path in tier.iterdir()} if tier.is_dir() else set()
    return World(
        frozenset(path.name for path in Path("/dev/shm").iterdir()),
        frozenset(marked),
        frozenset(listening),
        frozenset(left),
    )


def settled(tier: Path, before: World, within_s: float) -> World:
    """The world once it is as it was before, or as it is when the time is up."""
    deadline = time.monotonic() + within_s
    while (now := world(tier)) != before and time.monotonic() < deadline:
        time.sleep(0.2)
    return now


@pytest.fixture
def arguments(tmp_path: Path, engine_env: object) -> list[str]:
    base = CPU_PROFILE.format(name="base")
    tier = tmp_path / "tier"
    paths = write(
        tmp_path,
        base=base,
        tiered=base.replace("name: base", "name: tiered").replace(
            "blocks: 64}", f"blocks: 64}}, host: {{size: 16MiB}}, disk: {{path: {tier}}}"
        ),
        workload=WORKLOAD,
        rules=RULES,
    )
    return [
        "compare", str(paths["base"]), str(paths["tiered"]), "--workload", str(paths["workload"]),
        "--rules", str(paths["rules"]), "--out", str(tmp_path / "results"),
    ]  # fmt: skip


def start(arguments: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "kvbench", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "NO_COLOR": "1"},
        start_new_session=True,
    )


def stop_at(process: subprocess.Popen[str], after_s: float, number: signal.Signals) -> tuple[int, str]:
    try:
        process.wait(after_s)
    except subprocess.TimeoutExpired:
        process.send_signal(number)
    out, err = process.communicate(timeout=60)
    return process.returncode, out + err


def run_of(results: Path) -> Path | None:
    runs = sorted(results.glob("*")) if results.is_dir() else []
    return runs[-1] if runs else None


@pytest.mark.parametrize("moment", ["first", "second"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_any_moment_leaves_nothing(
    number: signal.Signals, moment: str, arguments: list[str], tmp_path: Path
) -> None:
    before = world(tmp_path / "tier")
    after_s = random.uniform(0.5, WHOLE_S)
    print(f"{moment}: {number.name} after {after_s:.2f} s")
    code, text = stop_at(start(arguments), after_s, number)
    assert settled(tmp_path / "tier", before, 3) == before
    assert "Traceback" not in text
    assert code in (128 + number, -number, 0, 1, 3, 4), text


def test_sigkill_at_any_moment_is_cleaned_up_at_the_latest_by_the_next_command(
    arguments: list[str], tmp_path: Path
) -> None:
    before = world(tmp_path / "tier")
    for after_s in (random.uniform(0.5, WHOLE_S), random.uniform(8, WHOLE_S)):
        print(f"SIGKILL after {after_s:.2f} s")
        stop_at(start(arguments), after_s, signal.SIGKILL)
        settled(tmp_path / "tier", before, 15)
        assert kvbench("engine", "list").code == 0
        assert settled(tmp_path / "tier", before, 5) == before


def resumed_until_done(results: Path, stop: Callable[[], float]) -> Answer:
    run = run_of(results)
    assert run is not None
    process = start(["compare", "--resume", str(run), "--json"])
    code, _text = stop_at(process, stop(), signal.SIGTERM)
    if code in (0, 1, 3, 4) and (run / "verdict.json").exists():
        return Answer(code, (run / "verdict.json").read_text(), "")
    return kvbench("compare", "--resume", run, "--json", timeout_s=400)


def test_a_stopped_run_resumes_and_keeps_what_it_had(arguments: list[str], tmp_path: Path) -> None:
    """Stopped during the first pair, then during the resumption, then left to end."""
    code, text = stop_at(start(arguments), random.uniform(20, WHOLE_S), signal.SIGINT)
    assert code == 130, text
    assert "--resume" in text
    run = run_of(tmp_path / "results")
    assert run is not None
    kept = [r for r in json.loads((run / "run.json").read_text())["rounds"] if r["state"] == "done"]
    answer = resumed_until_done(tmp_path / "results", lambda: random.uniform(10, 30))
    assert answer.code in (0, 1, 3), answer.text
    verdict = json.loads(answer.out)
    assert verdict["rounds"]["done"] == 2
    rounds = [r for r in json.loads((run / "run.json").read_text())["rounds"] if r["state"] == "done"]
    assert rounds[: len(kept)] == kept
    assert sorted((r["arm"], r["index"]) for r in rounds) == [
        ("base", 1),
        ("base", 2),
        ("tiered", 1),
        ("tiered", 2),
    ]
