"""The limits of the control group that this process lives in, and what is used of them. Bytes, cores, seconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kvbench.doctor.cgroup import memory_limit

__all__ = ["cgroup_limits", "cgroup_throttled_s"]

MOUNT = Path("/sys/fs/cgroup")


def cgroup_limits(proc: Path = Path("/proc"), mount: Path = MOUNT) -> dict[str, float]:
    """Memory and CPU, each by the tightest limit of the group and of those around it; without a limit, nothing."""
    found: dict[str, float] = {}
    memory = memory_limit(proc)
    if memory is not None:
        found["cgroup_memory_limit_bytes"] = memory.limit
        found["cgroup_memory_used_bytes"] = memory.used
    quotas = [quota for folder in _folders(proc, mount) if (quota := _quota(folder)) is not None]
    if quotas:
        found["cgroup_cpu_limit_cores"] = min(quotas)
    return found


def cgroup_throttled_s(proc: Path = Path("/proc"), mount: Path = MOUNT) -> float | None:
    """Seconds so far in which the CPU limit held the group back; None: no limit is told."""
    for folder in _folders(proc, mount):
        if _quota(folder) is None:
            continue
        for line in _text(folder / "cpu.stat").splitlines():
            name, _, value = line.partition(" ")
            if name in ("throttled_usec", "throttled_time"):
                return int(value) / (1e6 if name == "throttled_usec" else 1e9)  # version 1 counts nanoseconds
    return None


def _folders(proc: Path, mount: Path) -> Iterator[Path]:
    """The group and those around it, the innermost first: version 2, then the CPU controller of version 1."""
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = mount / "cpu" if controllers else mount
        # In a container the group's own path often lies outside of what is mounted: the mount is then the group.
        group = top / path.lstrip("/")
        group = group if group.is_dir() else top
        while True:
            yield group
            if group == top:
                break
            group = group.parent


def _quota(folder: Path) -> float | None:
    """Cores, by `cpu.max` or by version 1's two files; None: no limit."""
    words = _text(folder / "cpu.max").split() or [
        _text(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")
    ]
    if len(words) != 2 or not all(word.isdigit() for word in words) or not int(words[1]):
        return None  # "max", "-1", or not told
    return int(words[0]) / int(words[1])


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
