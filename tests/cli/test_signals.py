"""Stopped at any moment, `kvbench compare` leaves nothing running and nothing behind, and the run can go on.

Moments are drawn anew each time and printed, so that over many runs every moment is hit. Most stop a launched
stand-in that leaves what a killed vLLM would leave (a round of it takes seconds, so every stage of a run is hit
often); the real engine is stopped twice in one run.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.cli.files import CPU_PROFILE, write
from tests.cli.invoke import kvbench
from tests.standin import launched

STAND_IN_WHOLE_S = 16.0
"""About one round of each arm with the stand-in: start, launch, load, clean-up."""
ENGINE_WHOLE_S = 45.0
"""The same with the real engine: two engine starts, priming and load."""

STAND_IN = f"""\
name: {{name}}
engine: {{{{kind: vllm, command: ["{sys.executable}", "{launched.__file__}"], model: stand-in, revision: main}}}}
tiers: {{tiers}}
"""
WORKLOAD = """\
name: short-round
arrivals: {{process: poisson, rate: {rate}/s}}
phases: [{{name: steady, for: {seconds}s}}]
classes:
  long: {{prefix: {{tokens: 1024, pool: 8}}, suffix_tokens: 32, output_tokens: 4}}
prime: each_prefix_once
"""
RULES = """\
guardrails:
  - {id: errors, metric: error_rate, max: 50%}
benefits:
  - {id: ttft, metric: ttft, quantile: 0.5, max_ratio: 0.9}
rounds: {min: 1, max: 1}
validity: {send_lag_p99: 2s, contention: 4, scrape_coverage: 10%, scrape_gap: 30s}
"""


MARK = f"KVBENCH_TEST_{os.getpid()}"
"""Environment variable of every process that comes of a kvbench started here, whatever it is started by."""


@dataclass(frozen=True)
class World:
    """What could be left behind: shared memory, processes and their ports, tier directories."""

    shm: frozenset[str]
    processes: frozenset[int]
    ports: frozenset[int]
    tier: frozenset[str]

    def beyond(self, before: World) -> World:
        """What is here now and was not before."""
        return World(
            self.shm - before.shm,
            self.processes - before.processes,
            self.ports - before.ports,
            self.tier - before.tier,
        )


NOTHING = World(frozenset(), frozenset(), frozenset(), frozenset())


SHM_OF_STAND_INS = "kvbench-stand-in-*"


def world(tier: Path, shm: str) -> World:
    """`shm`: which names in `/dev/shm` count."""
    marked = set()
    for process in psutil.process_iter():
        try:
            if MARK in process.environ():
                marked.add(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    connections = psutil.net_connections("tcp")
    listening = {c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN and c.pid in marked}
    left = {path.name for path in tier.iterdir()} if tier.is_dir() else set()
    return World(
        frozenset({path.name for path in Path("/dev/shm").glob(shm)} - mapped_by_others(marked)),
        frozenset(marked),
        frozenset(listening),
        frozenset(left),
    )


def mapped_by_others(marked: set[int]) -> set[str]:
    """Names in `/dev/shm` that living processes hold which no kvbench of these tests started."""
    names: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        if int(maps.parent.name) not in marked:
            with contextlib.suppress(OSError):  # it ended meanwhile
                names.update(re.findall(r" /dev/shm/(\S+)", maps.read_text(errors="replace")))
    return names


def left(tier: Path, before: World, within_s: float, shm: str = SHM_OF_STAND_INS) -> World:
    """What is still there beyond `before` when the time is up; mostly nothing, and then at once."""
    deadline = time.monotonic() + within_s
    while (more := world(tier, shm).beyond(before)) != NOTHING and time.monotonic() < deadline:
        time.sleep(0.2)
    return more


def compare_with(folder: Path, base: str, tiered: str, workload: str) -> list[str]:
    paths = write(folder, base=base, tiered=tiered, workload=workload, rules=RULES)
    return [
        "compare", str(paths["base"]), str(paths["tiered"]), "--workload", str(paths["workload"]),
        "--rules", str(paths["rules"]), "--out", str(folder / "results"),
    ]  # fmt: skip


@pytest.fixture
def of_stand_ins(tmp_path: Path) -> list[str]:
    tiers = f"{{host: {{size: 16MiB, via: offloading}}, disk: {{path: {tmp_path / 'tier'}}}}}"
    return compare_with(
        tmp_path,
        STAND_IN.format(name="base", tiers="{}"),
        STAND_IN.format(name="tiered", tiers=tiers),
        WORKLOAD.format(rate=40, seconds=2),
    )


@pytest.fixture
def of_engines(tmp_path: Path, engine_env: object) -> list[str]:
    base = CPU_PROFILE.format(name="base")
    tiers = f"blocks: 64}}, host: {{size: 16MiB}}, disk: {{path: {tmp_path / 'tier'}}}"
    tiered = base.replace("name: base", "name: tiered").replace("blocks: 64}", tiers)
    return compare_with(tmp_path, base, tiered, WORKLOAD.format(rate=6, seconds=4))


def start(arguments: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "kvbench", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "NO_COLOR": "1", MARK: "1"},
        start_new_session=True,
    )


def stop_at(process: subprocess.Popen[str], after_s: float, number: signal.Signals) -> tuple[int, str]:
    print(f"{number.name} after {after_s:.2f} s")
    try:
        process.wait(after_s)
    except subprocess.TimeoutExpired:
        process.send_signal(number)
    out, err = process.communicate(timeout=60)
    return process.returncode, out + err


def run_of(results: Path) -> Path | None:
    runs = sorted(results.glob("*")) if results.is_dir() else []
    return runs[-1] if runs else None


def rounds_done(run: Path) -> list[dict[str, object]]:
    return [r for r in json.loads((run / "run.json").read_text())["rounds"] if r["state"] == "done"]


@pytest.mark.parametrize("moment", ["first", "second", "third"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_any_moment_leaves_nothing(
    number: signal.Signals, moment: str, of_stand_ins: list[str], tmp_path: Path
) -> None:
    before = world(tmp_path / "tier", SHM_OF_STAND_INS)
    code, text = stop_at(start(of_stand_ins), random.uniform(0.3, STAND_IN_WHOLE_S), number)
    assert left(tmp_path / "tier", before, 3) == NOTHING
    assert "Traceback" not in text
    assert code in (128 + number, -number, 0, 1, 3, 4), text


def test_sigkill_at_any_moment_is_cleaned_up_at_the_latest_by_the_next_command(
    of_stand_ins: list[str], tmp_path: Path
) -> None:
    before = world(tmp_path / "tier", SHM_OF_STAND_INS)
    for after_s in (random.uniform(0.3, STAND_IN_WHOLE_S), random.uniform(3, STAND_IN_WHOLE_S)):
        stop_at(start(of_stand_ins), after_s, signal.SIGKILL)
        left(tmp_path / "tier", before, 15)
        assert kvbench("engine", "list").code == 0
        assert left(tmp_path / "tier", before, 5) == NOTHING


def test_a_run_stopped_again_and_again_resumes_to_its_end_and_keeps_what_it_had(
    of_stand_ins: list[str], tmp_path: Path
) -> None:
    """Stopped once it has a round, then during each resumption, then left to end."""
    process = start(of_stand_ins)
    deadline = time.monotonic() + 60
    while not ((run := run_of(tmp_path / "results")) and (run / "run.json").exists() and rounds_done(run)):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    code, text = stop_at(process, random.uniform(0, 2), signal.SIGINT)
    assert code == 130, text
    assert f"--resume {run}" in text
    kept = rounds_done(run)
    for number in (signal.SIGTERM, signal.SIGKILL):
        stop_at(start(["compare", "--resume", str(run)]), random.uniform(1, 6), number)
        assert rounds_done(run)[: len(kept)] == kept
    answer = kvbench("compare", "--resume", run, "--json")
    assert answer.code in (1, 3), answer.text
    assert json.loads(answer.out)["rounds"]["done"] == 1
    assert sorted((r["arm"], r["index"]) for r in rounds_done(run)) == [("base", 1), ("tiered", 1)]
    assert rounds_done(run)[: len(kept)] == kept


@pytest.mark.engine
def test_a_real_engine_stopped_in_every_way_leaves_nothing_and_the_run_resumes(
    of_engines: list[str], tmp_path: Path
) -> None:
    before = world(tmp_path / "tier", "*")
    first, second = random.sample([signal.SIGINT, signal.SIGTERM, signal.SIGKILL], 2)
    code, text = stop_at(start(of_engines), random.uniform(4, ENGINE_WHOLE_S), first)
    assert "Traceback" not in text
    if first == signal.SIGKILL:
        left(tmp_path / "tier", before, 15, "*")
        assert kvbench("engine", "list").code == 0
    assert left(tmp_path / "tier", before, 3, "*") == NOTHING, code
    run = run_of(tmp_path / "results")
    assert run is not None
    kept = rounds_done(run)
    stop_at(start(["compare", "--resume", str(run)]), random.uniform(4, 15), second)
    answer = kvbench("compare", "--resume", run, "--json", timeout_s=400)
    assert left(tmp_path / "tier", before, 3, "*") == NOTHING
    assert answer.code in (0, 1, 3), answer.text
    verdict = json.loads(answer.out)
    assert verdict["rounds"]["done"] == 1
    assert rounds_done(run)[: len(kept)] == kept
    assert sorted((r["arm"], r["index"]) for r in rounds_done(run)) == [("base", 1), ("tiered", 1)]
