"""Checks of this host before an engine is launched: memory, `/dev/shm`, port, disk path. Sizes in bytes.

A check is a value; whoever asked decides what to do with a failed one.
"""

from __future__ import annotations

import shutil
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from kvbench.engine.environment import find_or_none
from kvbench.spec.profile import Profile
from kvbench.spec.quantity import show_bytes

__all__ = ["Check", "check_profile"]

ENGINE_ROOM_BYTES = 3 * 2**30
"""What the embedded engine takes beside its tiers: about 1.9 GiB resident for all processes, plus a margin."""

SHM = Path("/dev/shm")  # noqa: S108 - the shared-memory file system that engines put the host tier in


@dataclass(frozen=True)
class Check:
    """One row of a preflight; the fields are those of `kvbench doctor --json`."""

    id: str
    status: Literal["ok", "warn", "fail", "skipped"]
    value: float | None
    unit: str
    limit: float | None
    text: str
    do: str


def check_profile(profile: Profile) -> list[Check]:
    """Whether this host has room for what `profile` launches; nothing for attached servers."""
    if profile.engine.kind == "attached":
        return []
    if profile.engine.kind == "emulated":  # takes neither memory nor disk for its tiers
        return [check for check in (_emulated(profile), _port(profile)) if check is not None]
    checks = [_environment(profile), _memory(profile), _shm(profile), _port(profile), _disk(profile)]
    return [check for check in checks if check is not None]


def _emulated(profile: Profile) -> Check:
    """So that every report of such a run says what its figures are."""
    injected = ", ".join(profile.engine.inject.named()) if profile.engine.inject is not None else ""
    return Check(
        "emulated",
        "warn",
        None,
        "",
        None,
        "the engine is emulated: its times come from a model of costs, not from hardware"
        + (f"; injected: {injected}" if injected else ""),
        "compare on the real engine before anything goes to production",
    )


def _environment(profile: Profile) -> Check | None:
    name = profile.engine.environment
    if name is None or find_or_none(name) is not None:
        return None
    return Check(
        "environment",
        "fail",
        None,
        "",
        None,
        f"the environment {name} is not installed",
        f"run `kvbench engine install {name}`",
    )


def _memory(profile: Profile) -> Check:
    host = profile.tiers.host.size if profile.tiers.host else 0
    needed = host + ENGINE_ROOM_BYTES
    available = psutil.virtual_memory().available
    return Check(
        "memory",
        "ok" if available >= needed else "fail",
        available,
        "bytes",
        needed,
        f"{show_bytes(available)} of memory available; the engine and its host tier of {show_bytes(host)} need "
        f"about {show_bytes(needed)}",
        "make tiers.host.size smaller, or free memory",
    )


def _shm(profile: Profile) -> Check | None:
    host = profile.tiers.host
    if host is None or not SHM.is_dir():
        return None
    free = shutil.disk_usage(SHM).free
    return Check(
        "dev_shm",
        "ok" if free >= host.size else "fail",
        free,
        "bytes",
        host.size,
        f"{SHM} has {show_bytes(free)} free; the host tier puts {show_bytes(host.size)} there",
        f"make {SHM} larger (mount -o remount,size=..., --shm-size, --ipc=host) or tiers.host.size smaller",
    )


def _port(profile: Profile) -> Check | None:
    port = profile.engine.args.get("port")
    if not isinstance(port, int):
        return None
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            free = True
        except OSError:
            free = False
    return Check(
        "port",
        "ok" if free else "fail",
        port,
        "",
        None,
        f"port {port} is {'free' if free else 'in use by another process'}",
        "stop that process, or leave `port` out of engine.args: kvbench then takes a free one",
    )


def _disk(profile: Profile) -> Check | None:
    disk = profile.tiers.disk
    if disk is None:
        return None
    place = disk.path.expanduser()
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        return Check(
            "disk_path",
            "fail",
            None,
            "",
            None,
            f"the disk tier's path {disk.path} lies under {place}, which is a file",
            "name a folder in tiers.disk.path",
        )
    free = shutil.disk_usage(place).free
    needed = disk.size_limit or 2**30
    return Check(
        "disk_space",
        "ok" if free >= needed else "fail",
        free,
        "bytes",
        needed,
        f"{show_bytes(free)} free under {disk.path}; the disk tier may take {show_bytes(needed)}",
        "free space, or lower tiers.disk.size_limit",
    )
