"""Samples the host once a second while a round runs: who uses the processors, memory, pressure, the tier's disk,
the network, GPUs. The names stand in `kvbench.spec.host_figures`.

Contention is steal plus CPU that neither kvbench nor an engine used. What the host does not tell is an absent row.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from kvbench.engine.processes import SHM, mapped_shm
from kvbench.observe import proc
from kvbench.observe.cgroup import cgroup_limits, cgroup_throttled_s
from kvbench.observe.gpu import GpuReader
from kvbench.observe.grid import beats
from kvbench.record.atomic import write_table
from kvbench.record.tables import HOST

__all__ = ["HostSampler", "Snapshot", "mapped_bytes", "rates", "snapshot", "tree_cpu_s", "trees"]

PERIOD_S = 1.0
MAPPED_EVERY = 10
"""Samples. Reading the map of a large process takes milliseconds and holds it up meanwhile."""


@dataclass(frozen=True)
class Snapshot:
    """Everything that grows, at one moment, and the sizes of that moment."""

    t: float
    """Monotonic seconds."""
    since_boot: float
    """Seconds on the clock that process start times are counted by."""
    cpu: proc.CpuTimes | None
    tree: dict[int, proc.Process]
    """kvbench, the engines, and all their descendants."""
    stalled: dict[str, float]
    disk: tuple[int, int] | None
    swap: tuple[int, int] | None
    """Bytes from and to swap."""
    sizes: dict[str, float]
    disk_waits: tuple[int, float, int, float] | None = None
    """Reads of the tier's disk and their seconds, writes and theirs."""
    more: dict[str, float] = field(default_factory=dict)
    """What else grows, by the name of its rate."""


def trees(processes: dict[int, proc.Process], roots: Iterable[int]) -> dict[int, proc.Process]:
    """The roots that are alive, and everything that descends from them."""
    children: dict[int, list[int]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process.pid)
    found: dict[int, proc.Process] = {}
    queue = [pid for pid in roots if pid in processes]
    while queue:
        pid = queue.pop()
        if pid not in found:
            found[pid] = processes[pid]
            queue += children.get(pid, [])
    return found


def tree_cpu_s(before: dict[int, proc.Process], after: dict[int, proc.Process], since_boot: float) -> float:
    """CPU seconds that the processes of a tree used between two moments, the first at `since_boot`.

    A process that ended takes its time to the parent that waited for it, where what was counted before must not
    count again; a process that only now joins the tree, but is older, brings nothing.
    """
    known = {(p.pid, p.started): p for p in before.values()}
    used = 0.0
    for process in after.values():
        earlier = known.pop((process.pid, process.started), None)
        if earlier is not None:
            used += process.cpu_s - earlier.cpu_s
        elif process.started >= since_boot - 1 / proc.TICKS_PER_S:
            used += process.cpu_s
    used -= sum(gone.cpu_s for gone in known.values() if gone.parent in after)
    return max(0.0, used)


def snapshot(roots: Iterable[int], engine: Iterable[int], disk_path: Path | None) -> Snapshot:
    """Look at the host once; about five milliseconds for a few hundred processes."""
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    everything = proc.processes()
    engine_tree = trees(everything, engine)
    sizes: dict[str, float] = dict(proc.memory()) | _clocks() | cgroup_limits() | _shared_memory(engine_tree)
    if (memory := proc.resident(engine_tree)) is not None:
        sizes["engine_memory_bytes"] = memory.private + memory.shared
        sizes["engine_rss_bytes"] = memory.total
        sizes["engine_shmem_bytes"] = memory.shared
    return Snapshot(
        t=time.monotonic(),
        since_boot=since_boot,
        cpu=proc.cpu_times(),
        tree=trees(everything, roots) | engine_tree,
        stalled=proc.pressure_totals(),
        disk=proc.disk_bytes(disk_path) if disk_path is not None else None,
        swap=proc.swap_bytes(),
        sizes=sizes,
        disk_waits=proc.disk_waits(disk_path) if disk_path is not None else None,
        more=_more(),
    )


def _shared_memory(engine: Iterable[int]) -> dict[str, float]:
    """Of the engine's `/dev/shm`: files that have lost their names count for as long as somebody maps them."""
    try:
        told = os.statvfs(_shm_of(engine))
    except OSError:
        return {}
    size = told.f_blocks * told.f_frsize
    return {"shm_size_bytes": size, "shm_used_bytes": size - told.f_bfree * told.f_frsize}


def _shm_of(engine: Iterable[int]) -> Path:
    """In a container it is another one than the host's, under the same name."""
    with suppress(OSError):
        of_host = SHM.stat().st_dev
        for pid in engine:
            own = Path(f"/proc/{pid}/root{SHM}")
            with suppress(OSError):
                if own.stat().st_dev != of_host:
                    return own
    return SHM


def _more() -> dict[str, float]:
    found: dict[str, float] = {}
    if (network := proc.network_bytes()) is not None:
        found["network_received_bytes_per_s"], found["network_sent_bytes_per_s"] = network
    if (throttled_s := cgroup_throttled_s()) is not None:
        found["cgroup_cpu_throttled_share"] = throttled_s
    return found


def mapped_bytes(engine: Iterable[int]) -> float | None:
    """Of `/dev/shm` by these processes, which share it: the largest mapping. None: there is no process."""
    each = [sum(mapped_shm(pid).values()) for pid in engine]
    return float(max(each)) if each else None


def _clocks() -> dict[str, float]:
    """How far other clocks are from the monotonic one. The distances change when a clock is set, and when the
    machine sleeps, which the monotonic clock of Linux does not count."""
    now = time.monotonic()
    return {
        "clock_wall_s": time.time() - now,
        "clock_suspended_s": time.clock_gettime(time.CLOCK_BOOTTIME) - now,
    }


def rates(before: Snapshot, after: Snapshot) -> dict[str, float]:
    """What happened between two snapshots, per second: cores, shares of time, bytes per second."""
    elapsed = after.t - before.t
    found: dict[str, float] = {}
    if before.cpu is not None and after.cpu is not None:
        busy, interrupts, steal = (b - a for a, b in zip(before.cpu, after.cpu, strict=True))
        ours = tree_cpu_s(before.tree, after.tree, before.since_boot)
        found["cpu_busy_cores"] = (busy + interrupts) / elapsed
        found["cpu_own_cores"] = ours / elapsed
        # Without interrupts: the packets and disk blocks of the round itself are handled in them.
        found["cpu_foreign_cores"] = max(0.0, busy - ours) / elapsed
        found["steal_cores"] = max(0.0, steal) / elapsed
    for name, total in after.stalled.items():
        if name in before.stalled:
            found[f"pressure_{name}_share"] = (total - before.stalled[name]) / elapsed
    for name, first, last in (("disk", before.disk, after.disk), ("swap", before.swap, after.swap)):
        if first is not None and last is not None:
            found[f"{name}_read_bytes_per_s"] = (last[0] - first[0]) / elapsed
            found[f"{name}_write_bytes_per_s"] = (last[1] - first[1]) / elapsed
    for name, total in after.more.items():
        if name in before.more:
            found[name] = (total - before.more[name]) / elapsed
    return found | _latencies(before, after)


def _latencies(before: Snapshot, after: Snapshot) -> dict[str, float]:
    """Mean over the reads and over the writes that ended in between; absent where there were none."""
    if before.disk_waits is None or after.disk_waits is None:
        return {}
    reads, read_s, writes, write_s = (b - a for a, b in zip(before.disk_waits, after.disk_waits, strict=True))
    means = (("disk_read_latency_s", reads, read_s), ("disk_write_latency_s", writes, write_s))
    return {name: seconds / count for name, count, seconds in means if count > 0}


class HostSampler:
    """One round's sampling. `start`, then `stop` (which writes `host.parquet`) or `close` (which does not)."""

    def __init__(
        self,
        directory: Path,
        *,
        engine_pids: Callable[[], Iterable[int]],
        own_pid: int | None = None,
        disk_path: Path | None = None,
        period_s: float = PERIOD_S,
    ) -> None:
        """`engine_pids` is asked at every sample; `disk_path` names the disk whose traffic is of interest."""
        self._directory = directory
        self._engine_pids = engine_pids
        self._own_pid = own_pid if own_pid is not None else os.getpid()
        self._disk_path = disk_path
        self._period_s = period_s
        self._rows: list[tuple[float, str, float]] = []
        self._failure: Exception | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvbench-host-sampler", daemon=True)

    def start(self) -> None:
        """Begin; rates are there from the second sample on."""
        self._thread.start()

    def stop(self, origin: float) -> None:
        """Write `host.parquet` with times from `origin` (monotonic seconds)."""
        self.close()
        if self._failure is not None:
            raise self._failure
        table = pa.table(
            {
                "t_s": [t - origin for t, _, _ in self._rows],
                "name": [name for _, name, _ in self._rows],
                "value": [value for _, _, value in self._rows],
            },
            schema=HOST,
        )
        write_table(self._directory / "host.parquet", table)

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            before: Snapshot | None = None
            with closing(GpuReader()) as gpus:
                for number, _ in enumerate(beats(self._period_s, self._stop)):
                    engine = tuple(self._engine_pids())
                    now = snapshot([self._own_pid], engine, self._disk_path)
                    values = now.sizes | gpus.read() | (rates(before, now) if before is not None else {})
                    mapped = mapped_bytes(trees(now.tree, engine)) if number % MAPPED_EVERY == 0 else None
                    if mapped is not None:
                        values["engine_shm_mapped_bytes"] = mapped
                    self._rows += [(now.t, name, value) for name, value in sorted(values.items())]
                    before = now
        except Exception as error:  # noqa: BLE001 - raised again by `stop`, on the thread that can act on it
            self._failure = error
