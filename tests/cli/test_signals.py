"""Stopped at any moment, kvbench leaves nothing running and nothing behind, and a run can go on.

Moments are drawn anew each time and printed, so that over many runs every moment is hit. Most stop a launched
stand-in that leaves what a killed vLLM would leave (a round of it takes seconds, so every stage of a run is hit
often); the real engine is stopped twice in one run. What a signal ends is gone when the process has exited; only
after SIGKILL others have to end by themselves, and the next command removes the rest.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import psutil
import pytest

from kvbench.engine.environment import EngineEnvironment, kvbench_home
from kvbench.load.calibrate import calibrated
from tests.cli.files import CPU_PROFILE, write
from tests.cli.invoke import kvbench
from tests.standin import launched

STAND_IN_WHOLE_S = 18.0
"""About one round of each arm with the stand-in: start, launch, load, clean-up."""
STOP_AFTER_S = 1.0
"""The stand-in takes so long to end, so that its stop is hit often, too."""
CALIBRATION_S = 10.0
"""At the beginning, on a host that kvbench has not been on before."""
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

SHM_OF_STAND_INS = "kvbench-stand-in-*"


@dataclass(frozen=True)
class World:
    """What could be left behind."""

    shm: frozenset[str]
    processes: frozenset[int]
    ports: frozenset[int]
    tier: frozenset[str]
    temporary: frozenset[str]
    leases: frozenset[str]

    def beyond(self, before: World) -> World:
        """What is here now and was not before."""
        return World(*(getattr(self, each.name) - getattr(before, each.name) for each in fields(World)))


NOTHING = World(*(frozenset() for _ in fields(World)))


@dataclass(frozen=True)
class Place:
    """Where the kvbench under test keeps everything: nobody else uses these directories."""

    folder: Path
    home: Path
    temporary: Path
    shm: str = SHM_OF_STAND_INS
    """Which names in `/dev/shm` count."""

    @property
    def tier(self) -> Path:
        return self.folder / "tier"

    @property
    def results(self) -> Path:
        return self.folder / "results"

    def world(self) -> World:
        marked = marked_processes()
        connections = psutil.net_connections("tcp")
        listening = {c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN and c.pid in marked}
        return World(
            frozenset({path.name for path in Path("/dev/shm").glob(self.shm)} - mapped_by_others(marked)),
            frozenset(marked),
            frozenset(listening),
            *(names_in(directory) for directory in (self.tier, self.temporary, self.home / "leases")),
        )

    def run(self) -> Path | None:
        runs = sorted(self.results.glob("*")) if self.results.is_dir() else []
        return runs[-1] if runs else None


def marked_processes() -> set[int]:
    marked = set()
    for process in psutil.process_iter():
        try:
            if MARK in process.environ():
                marked.add(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return marked


def after_the_kill(within_s: float = 15.0) -> None:
    """Wait until what was not killed has ended by itself, or the time is up."""
    deadline = time.monotonic() + within_s
    while marked_processes() and time.monotonic() < deadline:
        time.sleep(0.2)


def names_in(directory: Path) -> frozenset[str]:
    return frozenset(path.name for path in directory.iterdir()) if directory.is_dir() else frozenset()


def mapped_by_others(marked: set[int]) -> set[str]:
    """Names in `/dev/shm` that living processes hold which no kvbench of these tests started."""
    names: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        if int(maps.parent.name) not in marked:
            with contextlib.suppress(OSError):  # it ended meanwhile
                names.update(re.findall(r" /dev/shm/(\S+)", maps.read_text(errors="replace")))
    return names


def compare_with(folder: Path, base: str, tiered: str, workload: str) -> list[str]:
    paths = write(folder, base=base, tiered=tiered, workload=workload, rules=RULES)
    return [
        "compare", str(paths["base"]), str(paths["tiered"]), "--workload", str(paths["workload"]),
        "--rules", str(paths["rules"]), "--out", str(folder / "results"),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def calibration() -> Path:
    """Where the calibration of this host is kept; it takes seconds, so not every test does it again."""
    calibrated(print)
    return kvbench_home() / "calibration"


@pytest.fixture
def new_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A home in which nothing is, not even a calibration."""
    temporary = Path(tempfile.mkdtemp(prefix="t-"))  # short: the engine's sockets lie in it
    monkeypatch.setenv("KVBENCH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setenv("STAND_IN_STOP_AFTER", str(STOP_AFTER_S))
    (tmp_path / "home").mkdir()
    yield Place(tmp_path, tmp_path / "home", temporary)
    shutil.rmtree(temporary)


@pytest.fixture
def place(calibration: Path, new_host: Place) -> Place:
    shutil.copytree(calibration, new_host.home / "calibration")
    return new_host


@pytest.fixture
def with_engine(
    calibration: Path, engine_env: EngineEnvironment, new_host: Place, monkeypatch: pytest.MonkeyPatch
) -> Place:
    """The same with the engines and models of the usual home."""
    usual = engine_env.root.parents[1]
    (usual / "models").mkdir(exist_ok=True)
    for name in ("engines", "models", "calibration"):
        (new_host.home / name).symlink_to(usual / name)
    return Place(new_host.folder, new_host.home, new_host.temporary, shm="*")


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
def of_engines(tmp_path: Path) -> list[str]:
    base = CPU_PROFILE.format(name="base")
    tiers = f"blocks: 64}}, host: {{size: 16MiB}}, disk: {{path: {tmp_path / 'tier'}}}"
    tiered = base.replace("name: base", "name: tiered").replace("blocks: 64}", tiers)
    return compare_with(tmp_path, base, tiered, WORKLOAD.format(rate=6, seconds=4))


class Started:
    """A kvbench in a process of its own. It writes into a file: a pipe would be held open by what it left."""

    def __init__(self, arguments: list[str], place: Place) -> None:
        self._said = place.folder / "said"
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "kvbench", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env={**os.environ, "NO_COLOR": "1", MARK: "1"},
                start_new_session=True,
            )

    @property
    def text(self) -> str:
        return self._said.read_text()

    def wait_for(self, holds: Callable[[], bool], within_s: float = 60.0) -> None:
        deadline = time.monotonic() + within_s
        while not holds():
            assert time.monotonic() < deadline, self.text
            assert self.process.poll() is None, self.text
            time.sleep(0.1)

    def stop(self, after_s: float, number: signal.Signals) -> int:
        """Its exit code."""
        print(f"{number.name} after {after_s:.2f} s")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(after_s)
        self.process.send_signal(number)
        return self.process.wait(60)


def ended_well(code: int, text: str, number: signal.Signals, place: Place) -> None:
    """By the signal, or by itself before it came; without kvbench's clean-up only before it had begun anything."""
    assert "Traceback" not in text
    assert "fault of kvbench" not in text
    assert code in (128 + number, -number, 0, 1, 3), text
    run = place.run()
    assert code != -number or run is None, text
    assert run is None or (run / "run.json").is_file(), text


def rounds_done(run: Path) -> list[dict[str, object]]:
    return [r for r in json.loads((run / "run.json").read_text())["rounds"] if r["state"] == "done"]


def signalled(arguments: list[str], place: Place, longest_s: float, number: signal.Signals) -> None:
    before = place.world()
    started = Started(arguments, place)
    code = started.stop(random.uniform(0.3, longest_s), number)
    assert place.world().beyond(before) == NOTHING, (code, started.text)
    ended_well(code, started.text, number, place)


@pytest.mark.parametrize("moment", ["first", "second", "third"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_any_moment_leaves_nothing(
    number: signal.Signals, moment: str, of_stand_ins: list[str], place: Place
) -> None:
    signalled(of_stand_ins, place, STAND_IN_WHOLE_S, number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_on_a_new_host_leaves_nothing(
    number: signal.Signals, of_stand_ins: list[str], new_host: Place
) -> None:
    signalled(of_stand_ins, new_host, CALIBRATION_S, number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_first_signal_while_an_engine_is_being_stopped_waits_for_that(
    number: signal.Signals, of_stand_ins: list[str], place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_STOP_AFTER", "3")
    before = place.world()
    started = Started(of_stand_ins, place)
    # Scrapes and samples of the host are written at the end of the load, right before the stop.
    started.wait_for(lambda: any(place.results.glob("*/arms/base/round-1/host.parquet")))
    code = started.stop(random.uniform(0.3, 1.5), number)
    assert place.world().beyond(before) == NOTHING, started.text
    assert code == 128 + number, started.text
    assert "stopping; removing what was started" in started.text
    ended_well(code, started.text, number, place)


@pytest.mark.parametrize("on", ["a host", "a new host"])
def test_sigkill_at_any_moment_is_cleaned_up_at_the_latest_by_the_next_command(
    on: str, of_stand_ins: list[str], calibration: Path, new_host: Place
) -> None:
    before = new_host.world()
    longest_s = CALIBRATION_S
    if on == "a host":
        shutil.copytree(calibration, new_host.home / "calibration")
        longest_s = STAND_IN_WHOLE_S
    for after_s in (random.uniform(0.3, longest_s), random.uniform(longest_s / 6, longest_s)):
        Started(of_stand_ins, new_host).stop(after_s, signal.SIGKILL)
        after_the_kill()
        assert kvbench("engine", "list").code == 0
        assert new_host.world().beyond(before) == NOTHING


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_engine_that_was_started_to_be_kept_ends_with_kvbench(
    number: signal.Signals, of_stand_ins: list[str], place: Place
) -> None:
    before = place.world()
    _, _, tiered, *_ = of_stand_ins
    started = Started(["engine", "start", tiered], place)
    started.wait_for(lambda: "Ctrl-C stops it" in started.text)
    code = started.stop(random.uniform(0, 1), number)
    if number == signal.SIGKILL:
        after_the_kill()
        assert kvbench("engine", "list").code == 0
    assert place.world().beyond(before) == NOTHING, started.text
    assert code == (-number if number == signal.SIGKILL else 128 + number)


def test_a_run_stopped_again_and_again_resumes_to_its_end_and_keeps_what_it_had(
    of_stand_ins: list[str], place: Place
) -> None:
    """Stopped once it has a round, then during each resumption, then left to end."""
    started = Started(of_stand_ins, place)
    started.wait_for(lambda: bool((run := place.run()) and (run / "run.json").exists() and rounds_done(run)))
    run = place.run()
    assert run is not None
    code = started.stop(random.uniform(0, 2), signal.SIGINT)
    assert code == 130, started.text
    assert f"--resume {run}" in started.text
    kept = rounds_done(run)
    for number in (signal.SIGTERM, signal.SIGKILL):
        Started(["compare", "--resume", str(run)], place).stop(random.uniform(1, 6), number)
        assert rounds_done(run)[: len(kept)] == kept
    answer = kvbench("compare", "--resume", run, "--json")
    assert answer.code in (1, 3), answer.text
    assert json.loads(answer.out)["rounds"]["done"] == 1
    assert sorted((r["arm"], r["index"]) for r in rounds_done(run)) == [("base", 1), ("tiered", 1)]
    assert rounds_done(run)[: len(kept)] == kept


@pytest.mark.engine
def test_a_real_engine_stopped_in_every_way_leaves_nothing_and_the_run_resumes(
    of_engines: list[str], with_engine: Place
) -> None:
    place = with_engine
    before = place.world()
    first, second = random.sample([signal.SIGINT, signal.SIGTERM, signal.SIGKILL], 2)
    started = Started(of_engines, place)
    code = started.stop(random.uniform(4, ENGINE_WHOLE_S), first)
    if first == signal.SIGKILL:
        after_the_kill()
        assert kvbench("engine", "list").code == 0
    else:
        ended_well(code, started.text, first, place)
    assert place.world().beyond(before) == NOTHING, (code, started.text)
    run = place.run()
    assert run is not None
    kept = rounds_done(run)
    Started(["compare", "--resume", str(run)], place).stop(random.uniform(4, 15), second)
    answer = kvbench("compare", "--resume", run, "--json", timeout_s=400)
    assert place.world().beyond(before) == NOTHING
    assert answer.code in (0, 1, 3), answer.text
    verdict = json.loads(answer.out)
    assert verdict["rounds"]["done"] == 1
    assert rounds_done(run)[: len(kept)] == kept
    assert sorted((r["arm"], r["index"]) for r in rounds_done(run)) == [("base", 1), ("tiered", 1)]
