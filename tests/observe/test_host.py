"""The host during a round: who used the processors is told apart; what the host does not tell is absent."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from mmap import mmap
from pathlib import Path
from tempfile import NamedTemporaryFile

import pandas as pd
import pytest

from kvbench.observe import proc
from kvbench.observe.cgroup import cgroup_limits, cgroup_throttled_s
from kvbench.observe.host import HostSampler, Snapshot, mapped_bytes, rates, snapshot, tree_cpu_s, trees
from kvbench.observe.proc import Process
from kvbench.spec.host_figures import GPU_ABSENT, host_figure

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


def test_page_cache_is_told_apart_from_shared_memory(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemAvailable: 9 kB\nCached: 700 kB\nShmem: 200 kB\nSwapTotal: 0 kB\n")
    found = proc.memory(tmp_path)
    assert (found["memory_shmem_bytes"], found["memory_cache_bytes"]) == (200 * 1024, 500 * 1024)
    (tmp_path / "meminfo").write_text("Cached: 700 kB\n")
    assert proc.memory(tmp_path) == {}


def test_latency_of_the_tiers_disk_is_a_mean_over_what_ended(tmp_path: Path) -> None:
    device = tmp_path.stat().st_dev
    line = f"{os.major(device)} {os.minor(device)} disk 3 0 20 15 2 0 40 8 0 0 0\n"
    (tmp_path / "diskstats").write_text(line)
    assert proc.disk_waits(tmp_path, tmp_path) == (3, 0.015, 2, 0.008)
    before = Snapshot(1.0, 1.0, None, {}, {}, None, None, {}, (3, 0.015, 2, 0.008))
    after = replace(before, t=2.0, disk_waits=(7, 0.025, 2, 0.008))
    assert rates(before, after) == {"disk_read_latency_s": pytest.approx(0.0025)}, "nothing was written"
    assert rates(replace(before, disk_waits=None), after) == {}


def test_network_is_that_of_devices_else_of_all_but_the_loopback(tmp_path: Path) -> None:
    rows = {"lo": (9, 9), "eth0": (100, 20), "veth7": (100, 20)}
    lines = [f"{name}: {received} 1 0 0 0 0 0 0 {sent} 1 0" for name, (received, sent) in rows.items()]
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "dev").write_text("\n".join(["Inter-|", " face |", *lines]))
    assert proc.network_bytes(tmp_path, tmp_path) == (200, 40)
    (tmp_path / "eth0" / "device").mkdir(parents=True)
    assert proc.network_bytes(tmp_path, tmp_path) == (100, 20)
    assert proc.network_bytes(tmp_path / "nowhere", tmp_path) is None
    before = Snapshot(1.0, 1.0, None, {}, {}, None, None, {}, more={"network_sent_bytes_per_s": 20.0})
    assert rates(before, replace(before, t=3.0, more={"network_sent_bytes_per_s": 60.0})) == {
        "network_sent_bytes_per_s": 20.0
    }


def test_limits_of_the_control_group_are_the_tightest_around_it(tmp_path: Path) -> None:
    group = tmp_path / "slice" / "pöd"
    group.mkdir(parents=True)
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text("0::/slice/pöd\n", encoding="utf-8")
    assert cgroup_limits(tmp_path, tmp_path) == {}
    assert cgroup_throttled_s(tmp_path, tmp_path) is None
    (group / "cpu.max").write_text("max 100000\n")
    (tmp_path / "slice" / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "slice" / "cpu.stat").write_text("usage_usec 9\nthrottled_usec 2500000\n")
    assert cgroup_limits(tmp_path, tmp_path) == {"cgroup_cpu_limit_cores": 1.5}
    assert cgroup_throttled_s(tmp_path, tmp_path) == 2.5


def test_limits_of_version_1_are_read_too(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "cpu").mkdir()
    (tmp_path / "self" / "cgroup").write_text("4:cpu,cpuacct:/docker/x\n3:pids:/docker/x\n")
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("50000\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "cpu" / "cpu.stat").write_text("throttled_time 3000000000\n")
    assert cgroup_limits(tmp_path, tmp_path) == {"cgroup_cpu_limit_cores": 0.5}
    assert cgroup_throttled_s(tmp_path, tmp_path) == 3.0


def test_what_the_engine_maps_of_shared_memory_and_what_lies_there_is_told() -> None:
    with NamedTemporaryFile(dir="/dev/shm", prefix="kvbench-test-") as file:
        file.truncate(1 << 20)
        with mmap(file.fileno(), 1 << 20) as mapping:
            mapping[:] = b"\1" * (1 << 20)
            seen = snapshot([os.getpid()], [], None)
            assert seen.sizes["shm_size_bytes"] >= seen.sizes["shm_used_bytes"] >= 1 << 20
            mapped = mapped_bytes([os.getpid()])
            assert mapped is not None
            assert mapped >= 1 << 20
    assert mapped_bytes([]) is None


def test_an_engine_in_a_container_has_a_dev_shm_of_its_own() -> None:
    """Given a mount namespace with another one, as docker makes it, then that is what is told."""
    own = "mount -t tmpfs -o size=1m tmpfs /dev/shm && echo mounted && exec sleep 60"
    container = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", own], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert container.stdout is not None
        said = container.stdout.readline().strip()
        if said != "mounted":
            pytest.skip(f"no mount namespace here: {said}")
        assert snapshot([], [container.pid], None).sizes["shm_size_bytes"] == 1 << 20
        assert snapshot([], [], None).sizes["shm_size_bytes"] != 1 << 20
    finally:
        container.kill()
        container.communicate()


def test_every_sample_of_a_host_has_its_words(tmp_path: Path) -> None:
    """Given a round that was sampled, then all there is but clocks and plain sizes of processes is shown."""
    sampler = HostSampler(tmp_path, engine_pids=lambda: (os.getpid(),), disk_path=tmp_path, period_s=0.05)
    sampler.start()
    time.sleep(0.3)
    sampler.stop(time.monotonic())
    names = set(pd.read_parquet(tmp_path / "host.parquet")["name"])
    assert {"memory_cache_bytes", "network_sent_bytes_per_s", "engine_shm_mapped_bytes", "shm_used_bytes"} <= names
    assert GPU_ABSENT in names or any(name.startswith("gpu0_") for name in names)
    silent = {name for name in names if host_figure(name) is None}
    of_no_host = "pressure_cpu_full_share"  # the kernel tells it of control groups alone, and zero here
    assert silent <= {"clock_wall_s", "clock_suspended_s", "engine_rss_bytes", of_no_host, GPU_ABSENT}
