"""The host during a round: who used the processors is told apart; what the host does not tell is absent."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from kvbench.observe import proc
from kvbench.observe.host import HostSampler, Snapshot, rates, snapshot, tree_cpu_s, trees
from kvbench.observe.proc import Process

SPIN = "import time\nend = time.monotonic() + 60\nprint(flush=True)\nwhile time.monotonic() < end: pass"


@contextmanager
def spinning() -> Iterator[subprocess.Popen[bytes]]:
    """A process that keeps one core busy."""
    process = subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_process_of_ours_is_ours_and_one_of_others_is_foreign() -> None:
    with spinning() as busy:
        before = [snapshot([busy.pid], [], None), snapshot([1 << 30], [], None)]
        time.sleep(0.5)
        after = [snapshot([busy.pid], [], None), snapshot([1 << 30], [], None)]
    ours, foreign = rates(before[0], after[0]), rates(before[1], after[1])
    assert ours["cpu_own_cores"] > 0.1
    assert foreign["cpu_own_cores"] == 0
    # The same half second, seen with and without it: what is ours is missing from what is foreign.
    assert foreign["cpu_foreign_cores"] - ours["cpu_foreign_cores"] == pytest.approx(ours["cpu_own_cores"], abs=0.2)
    assert ours["steal_cores"] >= 0


def test_the_engine_tree_belongs_to_us_and_its_memory_is_told() -> None:
    with spinning() as engine:
        seen = snapshot([1 << 30], [engine.pid], None)
    assert engine.pid in seen.tree
    assert seen.sizes["engine_rss_bytes"] > seen.sizes["engine_memory_bytes"] > 1e6
    assert seen.sizes["memory_available_bytes"] > 0


def test_a_round_is_written_with_times_from_its_origin(tmp_path: Path) -> None:
    sampler = HostSampler(tmp_path, engine_pids=lambda: (os.getpid(),), disk_path=tmp_path, period_s=0.05)
    sampler.start()
    origin = time.monotonic() + 0.1
    time.sleep(0.4)
    sampler.stop(origin)
    table = pd.read_parquet(tmp_path / "host.parquet")
    assert table["t_s"].min() < 0 < table["t_s"].max()
    assert table["t_s"].is_monotonic_increasing
    names = set(table["name"])
    assert {"cpu_busy_cores", "cpu_foreign_cores", "steal_cores", "engine_memory_bytes", "swap_used_bytes"} <= names
    assert {"clock_wall_s", "clock_suspended_s"} <= names
    for clock in ("clock_wall_s", "clock_suspended_s"):
        assert table[table["name"] == clock]["value"].diff().abs().max() < 1.0
    assert (table["value"] >= 0).all()


def test_a_failure_on_the_thread_is_raised_where_it_can_be_handled(tmp_path: Path) -> None:
    def fails() -> tuple[int, ...]:
        raise ProcessLookupError("the engine is gone")

    sampler = HostSampler(tmp_path, engine_pids=fails, period_s=0.01)
    sampler.start()
    with pytest.raises(ProcessLookupError):
        sampler.stop(0.0)
    sampler.close()


def process(pid: int, parent: int, cpu_s: float, started: float = 0.0) -> Process:
    return Process(pid, parent, started, cpu_s)


def by_pid(*processes: Process) -> dict[int, Process]:
    return {p.pid: p for p in processes}


def test_a_tree_is_everything_that_descends_from_living_roots() -> None:
    everything = by_pid(process(1, 0, 0), process(2, 1, 0), process(3, 2, 0), process(4, 1, 0))
    assert set(trees(everything, [2, 99])) == {2, 3}
    assert set(trees(everything, [2, 3])) == {2, 3}


def test_time_of_children_that_ended_counts_once() -> None:
    before = by_pid(process(1, 0, 5.0), process(2, 1, 60.0))
    after = by_pid(process(1, 0, 5.5 + 60.2))  # its parent has waited for it
    assert tree_cpu_s(before, after, since_boot=100) == pytest.approx(0.7)


def test_time_of_an_orphan_that_ended_is_not_taken_from_the_others() -> None:
    before = by_pid(process(1, 0, 5.0), process(2, 77, 60.0))
    assert tree_cpu_s(before, by_pid(process(1, 0, 5.5)), since_boot=100) == pytest.approx(0.5)


def test_a_new_child_brings_its_time_and_an_old_process_that_joins_does_not() -> None:
    before = by_pid(process(1, 0, 5.0))
    after = by_pid(process(1, 0, 5.0), process(2, 1, 0.3, started=101), process(3, 9, 900.0, started=50))
    assert tree_cpu_s(before, after, since_boot=100) == pytest.approx(0.3)


def test_a_reused_pid_is_another_process() -> None:
    before = by_pid(process(1, 0, 5.0), process(2, 9, 50.0, started=10))
    after = by_pid(process(1, 0, 5.0), process(2, 1, 0.2, started=101))
    assert tree_cpu_s(before, after, since_boot=100) == pytest.approx(0.2)


def test_a_host_that_tells_nothing_gives_nothing(tmp_path: Path) -> None:
    assert proc.cpu_times(tmp_path) is None
    assert proc.memory(tmp_path) == {}
    assert proc.pressure_totals(tmp_path) == {}
    assert proc.disk_bytes(tmp_path, tmp_path) is None
    assert proc.resident([1], tmp_path) is None
    assert proc.swap_bytes(tmp_path) is None
    assert proc.processes(tmp_path) == {}
    (tmp_path / "stat").write_text("cpu 1 2 3\n")
    (tmp_path / "meminfo").write_text("MemTotal: 1 kB\n")
    (tmp_path / "diskstats").write_text("7 0 loop0 0 0 0 0 0 0 0 0 0 0 0\n")
    assert proc.cpu_times(tmp_path) is None
    assert proc.memory(tmp_path) == {}
    assert proc.disk_bytes(tmp_path, tmp_path) is None


def test_swap_traffic_is_told_in_bytes_and_its_rate(tmp_path: Path) -> None:
    (tmp_path / "vmstat").write_text("nr_free_pages 7\npswpin 3\npswpout 5\n")
    assert proc.swap_bytes(tmp_path) == (3 * proc.PAGE_BYTES, 5 * proc.PAGE_BYTES)
    (tmp_path / "vmstat").write_text("nr_free_pages 7\n")
    assert proc.swap_bytes(tmp_path) is None
    before, after = (
        Snapshot(t, t, None, {}, {}, None, swap, {}) for t, swap in ((1.0, (0, 100)), (3.0, (50, 100)))
    )
    assert rates(before, after) == {"swap_read_bytes_per_s": 25.0, "swap_write_bytes_per_s": 0.0}
    assert rates(replace(before, swap=None), after) == {}


def test_names_of_processes_may_hold_anything(tmp_path: Path) -> None:
    folder = tmp_path / "42"
    folder.mkdir()
    fields = ["S", "7", *["0"] * 9, "100", "50", "25", "25", *["0"] * 4, "300"]
    (folder / "stat").write_text("42 (a) b (c) " + " ".join(fields))
    (folder / "status").write_text("Name:\tx\n")
    ticks = proc.TICKS_PER_S
    assert proc.processes(tmp_path) == {42: Process(42, 7, 300 / ticks, 200 / ticks)}
    assert proc.resident([42], tmp_path) is None


def test_a_path_that_is_not_there_yet_lies_on_the_disk_of_its_parent(tmp_path: Path) -> None:
    device = tmp_path.stat().st_dev
    line = f"{os.major(device)} {os.minor(device)} disk 1 0 20 0 1 0 40 0 0 0 0\n"
    (tmp_path / "diskstats").write_text(line)
    assert proc.disk_bytes(tmp_path / "not" / "yet", tmp_path) == (20 * 512, 40 * 512)
