"""Reads what a path lies on: file system, space, files, block devices. Changes nothing. Sizes in bytes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from kvbench.doctor.host import Disk
from kvbench.doctor.mounts import mount_of, mounts
from kvbench.doctor.nvme import read_endurance

__all__ = ["block_devices", "read_disk", "read_wear", "rotates"]

SYS_BLOCK = Path("/sys/dev/block")


def read_disk(path: Path) -> Disk:
    """Of the nearest part of `path` that exists."""
    wanted = path.expanduser().absolute()
    place = wanted
    while not os.path.exists(place) and place != place.parent:  # noqa: PTH110 - where one may not look, nothing is
        place = place.parent
    mount = mount_of(place.resolve(), mounts())
    seen = os.statvfs(place)
    devices = block_devices(place.stat().st_dev)
    return Disk(
        path=str(wanted),
        place=str(place),
        is_directory=place.is_dir(),
        writable=os.access(place, os.W_OK | os.X_OK),
        read_only=bool(seen.f_flag & os.ST_RDONLY) or (mount is not None and mount.read_only),
        filesystem=mount.filesystem if mount is not None else "an unknown file system",
        free=seen.f_bavail * seen.f_frsize,
        files_total=seen.f_files,
        files_free=seen.f_favail,
        devices=devices,
        rotational=bool(devices) and all(rotates(device) for device in devices),
    )


def read_wear(disk: Disk) -> Disk:
    """The same with what its first device that tells says of its wear."""
    worn = next((found for device in disk.devices if (found := read_endurance(device)) is not None), None)
    return replace(disk, endurance=worn)


def block_devices(number: int, sys_block: Path = SYS_BLOCK) -> tuple[str, ...]:
    """Names of the devices under a file system's device number; through partitions, LVM, RAID and encryption."""
    entry = sys_block / f"{os.major(number)}:{os.minor(number)}"
    return tuple(sorted(_under(entry.resolve()))) if entry.exists() else ()


def _under(device: Path) -> set[str]:
    slaves = [slave.resolve() for slave in (device / "slaves").glob("*")]
    if slaves:
        return {name for slave in slaves for name in _under(slave)}
    return {(device.parent if (device / "partition").exists() else device).name}


def rotates(device: str, folder: Path = Path("/sys/block")) -> bool:
    """Virtual disks often say so whatever lies under them, so their word is not taken."""
    if device.startswith(("vd", "xvd", "loop", "nbd")):
        return False
    try:
        return (folder / device / "queue" / "rotational").read_text(encoding="ascii").strip() == "1"
    except OSError:
        return False
