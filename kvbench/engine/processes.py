"""What Linux says about processes and the `/dev/shm` files they map.

Standard library only and quick to import, because the keeper uses it. CPU times in seconds, sizes in bytes. A
process is named by its pid together with its start time, since pids are used again.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "Process",
    "ProcessStat",
    "ShmFile",
    "World",
    "cpu_seconds",
    "descendants",
    "identify",
    "is_running",
    "listeners",
    "mapped_shm",
    "process_stat",
    "processes_with",
    "send_signal",
    "shm_files",
    "this_world",
]

SHM = Path("/dev/shm")  # noqa: S108 (the engine's own place for shared memory)
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_LISTEN = "0A"  # TCP_LISTEN in the state column of /proc/net/tcp
_MAPPING = re.compile(
    r"(?P<start>[0-9a-f]+)-(?P<end>[0-9a-f]+) \S+ [0-9a-f]+ \S+ (?P<inode>\d+)\s+/dev/shm/(?P<name>.*)"
)


class World(NamedTuple):
    """Where a pid means something: another host, boot or pid namespace has pids of its own."""

    host: str
    boot_id: str
    pid_namespace: str


class Process(NamedTuple):
    """One process, never another one that got the same pid later. `start` in clock ticks after boot."""

    pid: int
    start: int


class ProcessStat(NamedTuple):
    """The fields of `/proc/<pid>/stat` that are used here."""

    pid: int
    parent: int
    state: str
    start: int
    cpu_s: float


class ShmFile(NamedTuple):
    """A file in `/dev/shm`; another one of the same name has another inode."""

    name: str
    inode: int


def this_world() -> World:
    """The host, boot and pid namespace of the caller."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return World(os.uname().nodename, boot, str(Path("/proc/self/ns/pid").readlink()))


def process_stat(pid: int) -> ProcessStat | None:
    """What the kernel says about a pid; None when it is gone."""
    stat = _stat(pid)
    return stat if stat is not None and stat.state not in "ZX" else None


def _stat(pid: int) -> ProcessStat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the command before it may hold spaces and brackets; proc(5)
    cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    return ProcessStat(pid, int(fields[1]), fields[0], int(fields[19]), cpu_s)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 (a third of the time)


def identify(pid: int) -> Process | None:
    """The process that has this pid now; None when there is none or only its exit code is left."""
    stat = _stat(pid)
    return Process(pid, stat.start) if stat is not None and stat.state not in "ZX" else None


def is_running(process: Process) -> bool:
    """Whether this very process is still there (a zombie is not)."""
    return identify(process.pid) == process


def descendants(root: int) -> list[ProcessStat]:
    """Children, their children and so on of a pid, without zombies; the root is not among them."""
    children: dict[int, list[ProcessStat]] = {}
    for pid in _pids():
        stat = _stat(pid)
        if stat is not None:
            children.setdefault(stat.parent, []).append(stat)
    found: list[ProcessStat] = []
    queue = [root]
    while queue:
        for stat in children.get(queue.pop(), []):
            queue.append(stat.pid)
            if stat.state not in "ZX":
                found.append(stat)
    return found


def cpu_seconds(stats: Iterable[ProcessStat]) -> float:
    """User and system time that these processes have used by themselves."""
    return sum(stat.cpu_s for stat in stats)


def processes_with(variable: str, value: str) -> list[Process]:
    """Every process whose environment holds `variable=value`; those that may not be read are not among them."""
    marker = f"{variable}={value}".encode()
    found = []
    for pid in _pids():
        process = identify(pid)
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if process is not None and marker in environment and is_running(process):
            found.append(process)
    return found


def send_signal(process: Process, number: signal.Signals) -> None:
    """Signal this very process; nothing happens when it is gone, even if its pid is in use again."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        if is_running(process):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, number)
    finally:
        os.close(handle)


def shm_files() -> set[ShmFile]:
    """What lies in `/dev/shm` now."""
    try:
        return {ShmFile(entry.name, entry.inode()) for entry in os.scandir(SHM) if entry.is_file()}
    except OSError:
        return set()


def mapped_shm(pid: int) -> dict[ShmFile, int]:
    """The `/dev/shm` files that a process maps, with the mapped bytes; those without a name any more too."""
    try:
        text = Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except OSError:
        return {}
    sizes: dict[ShmFile, int] = {}
    for match in _MAPPING.finditer(text):
        file = ShmFile(match["name"].removesuffix(" (deleted)"), int(match["inode"]))
        sizes[file] = sizes.get(file, 0) + int(match["end"], 16) - int(match["start"], 16)
    return sizes


def _listening_inodes(port: int) -> set[str]:
    inodes = set()
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(fields[9])
    return inodes


def listeners(port: int) -> set[int]:
    """The processes that listen on a TCP port of this host, as far as they may be read."""
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    found: set[int] = set()
    for pid in _pids() if sockets else []:
        with contextlib.suppress(OSError):
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(entry.path) in sockets:  # noqa: PTH115 (one call for each open file)
                        found.add(pid)
                        break
    return found
