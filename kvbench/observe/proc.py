"""What Linux tells in /proc, as plain numbers. A file that is not there gives None or nothing, never zero."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "TICKS_PER_S",
    "CpuTimes",
    "Process",
    "Resident",
    "cpu_times",
    "disk_bytes",
    "disk_waits",
    "memory",
    "network_bytes",
    "pressure_totals",
    "processes",
    "resident",
    "swap_bytes",
]

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
SECTOR_BYTES = 512  # /proc/diskstats counts sectors of 512 bytes whatever the device's own are


class CpuTimes(NamedTuple):
    """Core-seconds since boot of the processors that this process may run on."""

    processes: float
    """user + nice + system: what can be charged to some process."""
    interrupts: float
    steal: float


@dataclass(frozen=True)
class Process:
    """One process at one moment; times in seconds of CPU."""

    pid: int
    parent: int
    started: float
    """Seconds after boot: tells a reused pid."""
    cpu_s: float
    """Its own, and that of the children it has waited for."""


def cpu_times(proc: Path = Path("/proc")) -> CpuTimes | None:
    """From /proc/stat; the columns are those of proc(5)."""
    ours = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    try:
        lines = [line.split() for line in (proc / "stat").read_text(encoding="ascii").splitlines()]
    except OSError:
        return None
    cores = [[int(ticks) / TICKS_PER_S for ticks in fields[1:]] for fields in lines if fields and fields[0] in ours]
    if not cores:
        return None
    user, nice, system, _, _, irq, softirq, steal = (sum(core[i] for core in cores) for i in range(8))
    return CpuTimes(user + nice + system, irq + softirq, steal)


def processes(proc: Path = Path("/proc")) -> dict[int, Process]:
    """Every process there is; those that end meanwhile are left out."""
    found: dict[int, Process] = {}
    for entry in proc.iterdir():
        if entry.name.isdigit() and (process := _process(entry)) is not None:
            found[process.pid] = process
    return found


def _process(entry: Path) -> Process | None:
    try:
        text = (entry / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text[text.rfind(")") + 2 :].split()  # the name in parentheses may hold anything
    ticks = sum(int(fields[i]) for i in (11, 12, 13, 14))  # utime, stime, cutime, cstime
    return Process(int(entry.name), int(fields[1]), int(fields[19]) / TICKS_PER_S, ticks / TICKS_PER_S)


class Resident(NamedTuple):
    """Memory of some processes, bytes."""

    total: int
    private: int
    shared: int
    """Shared memory is mapped by several of them: the largest mapping, not the sum."""


def resident(pids: Iterable[int], proc: Path = Path("/proc")) -> Resident | None:
    """From /proc/<pid>/status, cheap even for hundreds of gigabytes (smaps is not). None: no process is there."""
    sizes = [size for pid in pids if (size := _sizes(proc / str(pid) / "status")) is not None]
    if not sizes:
        return None
    return Resident(
        sum(size["VmRSS"] for size in sizes),
        sum(size["RssAnon"] for size in sizes),
        max(size["RssShmem"] for size in sizes),
    )


def _sizes(status: Path) -> dict[str, int] | None:
    try:
        lines = status.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    pairs = (line.partition(":") for line in lines)
    sizes = {
        key: 1024 * int(value.split()[0]) for key, _, value in pairs if key in ("VmRSS", "RssAnon", "RssShmem")
    }
    return sizes if len(sizes) == 3 else None  # a process that has ended has no memory


def memory(proc: Path = Path("/proc")) -> dict[str, int]:
    """Of the whole host, bytes: available, shmem, page cache apart from it, and swap in use."""
    try:
        lines = (proc / "meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    size = {key: 1024 * int(value.split()[0]) for key, _, value in (line.partition(":") for line in lines)}
    found = {
        "memory_available_bytes": size.get("MemAvailable"),
        "memory_shmem_bytes": size.get("Shmem"),
        # The kernel counts shared memory as cached.
        "memory_cache_bytes": size["Cached"] - size["Shmem"] if {"Cached", "Shmem"} <= set(size) else None,
        "swap_used_bytes": size["SwapTotal"] - size["SwapFree"] if "SwapFree" in size else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def swap_bytes(proc: Path = Path("/proc")) -> tuple[int, int] | None:
    """Bytes read from and written to swap since boot, whoever's they were (`pswpin` and `pswpout` of proc(5))."""
    try:
        lines = (proc / "vmstat").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    pages = {name: int(count) for name, _, count in (line.partition(" ") for line in lines)}
    if "pswpin" not in pages or "pswpout" not in pages:
        return None
    return pages["pswpin"] * PAGE_BYTES, pages["pswpout"] * PAGE_BYTES


def pressure_totals(proc: Path = Path("/proc")) -> dict[str, float]:
    """Seconds that tasks were stalled since boot: `cpu_some`, `memory_full`, `io_some`, ... (kernel's PSI)."""
    found: dict[str, float] = {}
    for resource in ("cpu", "memory", "io"):
        try:
            lines = (proc / "pressure" / resource).read_text(encoding="ascii").splitlines()
        except OSError:
            continue  # PSI is off, or the kernel is older
        for line in lines:
            share, *_, total = line.split()
            found[f"{resource}_{share}"] = int(total.partition("=")[2]) / 1e6
    return found


def disk_bytes(path: Path, proc: Path = Path("/proc")) -> tuple[int, int] | None:
    """Bytes read and written since boot by the device that holds `path`; None where it has no block device."""
    fields = _disk_fields(path, proc)
    return None if fields is None else (int(fields[5]) * SECTOR_BYTES, int(fields[9]) * SECTOR_BYTES)


def disk_waits(path: Path, proc: Path = Path("/proc")) -> tuple[int, float, int, float] | None:
    """Of the same device since boot: reads, seconds that they took together, queueing included; then of writes."""
    fields = _disk_fields(path, proc)
    return None if fields is None else (int(fields[3]), int(fields[6]) / 1e3, int(fields[7]), int(fields[10]) / 1e3)


def _disk_fields(path: Path, proc: Path) -> list[str] | None:
    try:
        while not path.exists() and path != path.parent:
            path = path.parent
        device = path.stat().st_dev
        lines = (proc / "diskstats").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for fields in map(str.split, lines):
        if (int(fields[0]), int(fields[1])) == (os.major(device), os.minor(device)):
            return fields
    return None


def network_bytes(proc: Path = Path("/proc"), interfaces: Path = Path("/sys/class/net")) -> tuple[int, int] | None:
    """Bytes received and sent since boot by the network devices; where there are none, as in a container, by all
    interfaces but the loopback. Bridges and tunnels count again what goes through a device."""
    try:
        lines = (proc / "net" / "dev").read_text(encoding="utf-8").splitlines()[2:]
    except OSError:
        return None
    counted = {name.strip(): counts.split() for name, _, counts in (line.rpartition(":") for line in lines)}
    counted.pop("lo", None)
    devices = [name for name in counted if (interfaces / name / "device").exists()]
    chosen = [counted[name] for name in devices or counted]
    return (sum(int(each[0]) for each in chosen), sum(int(each[8]) for each in chosen)) if chosen else None
