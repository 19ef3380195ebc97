"""Reads a host: memory, `/dev/shm`, limits, NUMA, clock, governor, load. Quick, changes nothing. Bytes, seconds."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import stat
import time
from pathlib import Path

from kvbench.doctor.cgroup import memory_limit
from kvbench.doctor.devices import VISIBLE_DEVICES
from kvbench.doctor.host import (
    Clock,
    Host,
    Leftover,
    Limits,
    Load,
    Memory,
    Nic,
    NumaNode,
    PortUse,
    Shm,
)
from kvbench.doctor.installed import find_engine, find_model
from kvbench.doctor.storage import read_disk
from kvbench.engine.ports import LOOPBACK
from kvbench.engine.processes import SHM, listeners, mapped_shm
from kvbench.observe.host import rates, snapshot
from kvbench.spec.profile import Profile

__all__ = [
    "read_clock",
    "read_essentials",
    "read_governors",
    "read_leftovers",
    "read_limits",
    "read_load",
    "read_machine",
    "read_memory",
    "read_nics",
    "read_numa",
    "read_port",
    "read_shm",
]

ENGINE_FILES = ("vllm_offload_*", "psm_*", "sem.mp-*", "nccl-*", "torch_*")
"""Names of what vLLM, Python's shared memory, NCCL and torch put into `/dev/shm`."""

SETTLED_S = 60.0
"""A younger file may belong to a process that has yet to map it."""

LOOK_S = 0.5
"""Of the look at what others do; processor times come in steps of 10 ms."""


def read_essentials(profile: Profile) -> Host:
    """What a comparison checks before it starts anything; milliseconds, and a tenth of a second for an engine of a
    Python to tell its version."""
    disk = profile.tiers.disk
    return Host(
        memory=read_memory(),
        cgroup=memory_limit(),
        shm=read_shm(),
        port=read_port(profile),
        disk=read_disk(disk.path) if disk is not None else None,
        engine=find_engine(profile),
        model=find_model(profile),
    )


def read_machine() -> Host:
    """What the machine is beside that, and what others do on it for half a second."""
    return Host(
        limits=read_limits(),
        numa=read_numa(),
        nics=read_nics(),
        clock=read_clock(),
        governors=read_governors(),
        load=read_load(),
        visible_devices=os.environ.get(VISIBLE_DEVICES),
    )


def read_memory(proc: Path = Path("/proc")) -> Memory | None:
    """None where there is no Linux `/proc`."""
    try:
        lines = (proc / "meminfo").read_text(encoding="ascii").splitlines()
        overcommit = int((proc / "sys/vm/overcommit_memory").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    raw = {key: int(value.split()[0]) for key, _, value in (line.partition(":") for line in lines)}
    size = {key: 1024 * value for key, value in raw.items()}
    page = size.get("Hugepagesize", 0)
    return Memory(
        total=size["MemTotal"],
        available=size["MemAvailable"],
        shmem=size.get("Shmem", 0),
        swap_total=size.get("SwapTotal", 0),
        swap_free=size.get("SwapFree", 0),
        huge_total=raw.get("HugePages_Total", 0) * page,
        huge_free=raw.get("HugePages_Free", 0) * page,
        overcommit=overcommit,
        commit_limit=size.get("CommitLimit", 0),
        committed=size.get("Committed_AS", 0),
    )


def read_shm(path: Path = SHM) -> Shm | None:
    """Sizes only."""
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return None
    return Shm(str(path), usage.total, usage.free)


def read_leftovers(path: Path = SHM) -> tuple[Leftover, ...]:
    """Files that engines made, that are older than a minute and that no process visible here maps.

    Another user's processes cannot be looked into; their files are left out.
    """
    files = [file for pattern in ENGINE_FILES for file in path.glob(pattern)]
    if not files:
        return ()
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    in_use = {file.inode for pid in pids for file in mapped_shm(pid)}
    found = []
    for file in sorted(files):
        try:
            seen = file.lstat()
        except OSError:
            continue
        ours = os.geteuid() in (0, seen.st_uid) and stat.S_ISREG(seen.st_mode)
        if ours and seen.st_ino not in in_use and time.time() - seen.st_mtime > SETTLED_S:
            found.append(Leftover(str(file), seen.st_blocks * 512))
    return tuple(found)


def read_limits() -> Limits:
    """Of this process; children inherit them."""
    lock, files = resource.getrlimit(resource.RLIMIT_MEMLOCK), resource.getrlimit(resource.RLIMIT_NOFILE)
    return Limits(*(None if value == resource.RLIM_INFINITY else value for value in (*lock, *files)))


def read_numa(
    nodes: Path = Path("/sys/devices/system/node"), status: Path = Path("/proc/self/status")
) -> tuple[NumaNode, ...]:
    """None of them where the kernel knows no NUMA."""
    folders = sorted(
        (f for f in nodes.glob("node*") if f.name[4:].isdigit()), key=lambda folder: int(folder.name[4:])
    )
    ids = [int(folder.name[4:]) for folder in folders]
    allowed = _allowed_nodes(status)
    found = []
    for folder, number in zip(folders, ids, strict=True):
        try:
            lines = (folder / "meminfo").read_text(encoding="ascii").splitlines()
            distances = (folder / "distance").read_text(encoding="ascii").split()
        except OSError:
            continue
        # Lines read `Node 0 MemTotal:  32 kB`.
        size = {f[2].rstrip(":"): 1024 * int(f[3]) for f in (line.split() for line in lines) if len(f) > 3}
        free = sum(size.get(key, 0) for key in ("MemFree", "Active(file)", "Inactive(file)"))
        far = dict(zip(ids, map(int, distances), strict=False))
        usable = allowed is None or number in allowed
        found.append(NumaNode(number, size.get("MemTotal", 0), free, far, usable))
    return tuple(found)


def _allowed_nodes(status: Path) -> set[int] | None:
    try:
        lines = status.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    listed = next((line.partition(":")[2] for line in lines if line.startswith("Mems_allowed_list")), None)
    return None if listed is None else _numbers(listed)


def _numbers(listed: str) -> set[int]:
    """`0-1,4` as numbers."""
    found: set[int] = set()
    for part in listed.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            found.update(range(int(first), int(last or first) + 1))
    return found


def read_nics(net: Path = Path("/sys/class/net")) -> tuple[Nic, ...]:
    """Cards on a bus that are up; loopback and virtual devices have no bus."""
    found = []
    for card in sorted(net.glob("*")):
        if not (card / "device").exists() or _read(card / "operstate") != "up":
            continue
        speed, node = _read(card / "speed"), _read(card / "device" / "numa_node")
        megabits = int(speed) if speed is not None and speed.isdigit() else None
        found.append(
            Nic(card.name, int(node) if node is not None and node.isdigit() else None, megabits and megabits * 1e6)
        )
    return tuple(found)


def _read(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def read_clock(folder: Path = Path("/sys/devices/system/clocksource/clocksource0")) -> Clock | None:
    """The source's name, the step of its clock, and how long a reading takes (the median of many)."""
    source = _read(folder / "current_clocksource")
    if source is None:
        return None
    took = []
    for _ in range(200):
        before = time.perf_counter_ns()
        after = time.perf_counter_ns()
        took.append(after - before)
    return Clock(source, time.clock_getres(time.CLOCK_MONOTONIC), sorted(took)[len(took) // 2] / 1e9)


def read_governors(cpus: Path = Path("/sys/devices/system/cpu")) -> tuple[str, ...]:
    """One a processor, in no order of meaning; none where nobody governs."""
    files = sorted(cpus.glob("cpu[0-9]*/cpufreq/scaling_governor"))
    return tuple(name for file in files if (name := _read(file)) is not None)


def read_load(look_s: float = LOOK_S) -> Load:
    """What other processes than this one did, over half a second."""
    before = snapshot([os.getpid()], (), None)
    time.sleep(look_s)
    seen = rates(before, snapshot([os.getpid()], (), None))
    moved = [seen[name] for name in ("swap_read_bytes_per_s", "swap_write_bytes_per_s") if name in seen]
    return Load(
        cores=len(os.sched_getaffinity(0)),
        foreign_cores=seen.get("cpu_foreign_cores"),
        steal_cores=seen.get("steal_cores"),
        swap_bytes_per_s=sum(moved) if moved else None,
        memory_pressure=seen.get("pressure_memory_some_share"),
        io_pressure=seen.get("pressure_io_some_share"),
        load_average=os.getloadavg()[0],
    )


def read_port(profile: Profile) -> PortUse | None:
    """None where the profile asks for no port."""
    port = profile.engine.args.get("port")
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65536:
        return None
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: TIME_WAIT is no obstacle
        try:
            probe.bind((LOOPBACK, port))
            free = True
        except OSError:
            free = False
    return PortUse(port, free, () if free else tuple(sorted(listeners(port))))
