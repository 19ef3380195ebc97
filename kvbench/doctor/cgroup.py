"""The memory limit of the control group that a process lives in, version 1 or 2. Sizes in bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kvbench.doctor.host import CgroupMemory
from kvbench.doctor.mounts import Mount, mounts

__all__ = ["memory_limit"]

_UNLIMITED = 2**62
"""Version 1 says "no limit" as the largest multiple of a page below 2**63."""


def memory_limit(proc: Path = Path("/proc")) -> CgroupMemory | None:
    """The limit that leaves the least room, of this process's group or of any group around it; None: no limit."""
    found = list(_limits(proc))
    return min(found, key=lambda limit: limit.room, default=None)


def _limits(proc: Path) -> Iterator[CgroupMemory]:
    for version, mount, path in _groups(proc):
        top = Path(mount.point)
        # In a container the group's own path often lies outside of what is mounted: the mount is then the group.
        group = top / path.removeprefix(mount.root.rstrip("/")).lstrip("/")
        if not group.is_dir():
            group = top
        for folder in (group, *group.parents):
            if (limit := _limit(version, folder)) is not None:
                yield limit
            if folder == top:
                break


def _groups(proc: Path) -> Iterator[tuple[int, Mount, str]]:
    """Version, mount and path within the hierarchy that carries the memory controller."""
    try:
        lines = (proc / "self" / "cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    table = mounts(proc)
    for line in lines:
        _number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            version, of = 1, [m for m in table if m.filesystem == "cgroup" and "memory" in m.super_options]
        elif controllers == "":
            version, of = 2, [m for m in table if m.filesystem == "cgroup2"]
        else:
            continue
        if of:
            yield version, of[-1], path


def _limit(version: int, folder: Path) -> CgroupMemory | None:
    names = (
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file")
        if version == 1
        else ("memory.max", "memory.current", "inactive_file", "active_file")
    )
    limit, used = (_number(folder / name) for name in names[:2])
    if limit is None or used is None or limit >= _UNLIMITED:
        return None
    stat = _stat(folder / "memory.stat")
    # Both lists of page cache are given up before a process is killed; shared memory is on neither.
    return CgroupMemory(version, str(folder), limit, used, stat.get(names[2], 0) + stat.get(names[3], 0))


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):  # not there, or "max"
        return None


def _stat(file: Path) -> dict[str, int]:
    try:
        lines = file.read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    return {name: int(value) for name, _, value in (line.partition(" ") for line in lines) if value.isdigit()}
