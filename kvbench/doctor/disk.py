"""Checks of what the disk tier lies on. Pure. Sizes in bytes, times in seconds."""

from __future__ import annotations

from kvbench.doctor.budget import break_even_bytes_per_s
from kvbench.doctor.check import Check, failed, passed, skipped, warned
from kvbench.doctor.host import Disk, DiskTrial, Host, Spread
from kvbench.doctor.needs import chunk_bytes
from kvbench.spec.profile import Profile
from kvbench.spec.quantity import show_bytes, show_seconds

__all__ = [
    "disk_direct",
    "disk_endurance",
    "disk_filesystem",
    "disk_growth",
    "disk_inodes",
    "disk_path",
    "disk_read",
    "disk_space",
    "disk_write",
]

UNLIMITED_BYTES = 2**30
"""Least free space where the profile sets no limit."""

HASHED_DIRECTORIES = 4096 + 4096 * 256
"""vLLM spreads chunks over three and then two hexadecimal digits."""

IN_MEMORY = ("tmpfs", "ramfs", "rootfs")
LAYERED = ("overlay", "aufs")
REMOTE = ("nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "beegfs", "gpfs", "glusterfs", "9p", "virtiofs", "afs")

WORN = 0.8
"""Share of rated writes from which a device is worth replacing before it is written to around the clock."""

NO_TIER = "the profile has no disk tier"


def disk_path(profile: Profile, host: Host) -> Check:
    """Whether a directory can be there, and written to."""
    id_, tier, disk = "disk_path", profile.tiers.disk, host.disk
    if tier is None or disk is None:
        return skipped(id_, NO_TIER)
    if not disk.is_directory:
        text = f"the disk tier's path {disk.path} lies under {disk.place}, which is a file"
        return failed(id_, text, "name a folder in tiers.disk.path")
    if disk.read_only:
        return failed(id_, f"{disk.place} is mounted read-only", "mount it for writing, or name another folder")
    if not disk.writable:
        text = f"this user may not write to {disk.place}"
        return failed(id_, text, "change its owner or mode, or name another folder in tiers.disk.path")
    made = "" if disk.place == disk.path else f"; {disk.path} will be made"
    return passed(id_, f"{disk.place} can be written to{made}")


def disk_filesystem(profile: Profile, host: Host) -> Check:
    """What kind of file system holds the tier."""
    id_, disk = "disk_filesystem", host.disk
    if profile.tiers.disk is None or disk is None:
        return skipped(id_, NO_TIER)
    kind = disk.filesystem
    if kind in IN_MEMORY:
        text = f"{disk.place} is {kind}: the disk tier would lie in memory, and take what the host tier needs"
        return warned(id_, text, "name a folder on a disk")
    if kind in LAYERED:
        text = f"{disk.place} is {kind}, a container's own layer: slow to write, and gone with the container"
        return warned(id_, text, "mount a volume, and name a folder on it")
    if kind in REMOTE or kind.startswith("fuse"):
        text = f"{disk.place} is {kind}: every chunk crosses a network or another process"
        return warned(id_, text, "judge by the measured latency below; local NVMe is the usual choice")
    on = f" on {', '.join(disk.devices)}" if disk.devices else ""
    if disk.rotational:
        return warned(id_, f"{kind}{on}, which says that it rotates", "name a folder on an SSD or NVMe device")
    return passed(id_, f"{kind}{on}")


def disk_space(profile: Profile, host: Host) -> Check:
    """Free space against the tier's limit."""
    id_, tier, disk = "disk_space", profile.tiers.disk, host.disk
    if tier is None or disk is None or not disk.is_directory:
        return skipped(id_, NO_TIER if tier is None else "the path lies under a file")
    needed = tier.size_limit or UNLIMITED_BYTES
    text = f"{show_bytes(disk.free)} free under {tier.path}; the disk tier may take {show_bytes(needed)}"
    if disk.free < needed:
        do = "free space, or lower tiers.disk.size_limit"
        return failed(id_, text, do, disk.free, "bytes", needed)
    return passed(id_, text, disk.free, "bytes", needed)


def disk_growth(profile: Profile, host: Host) -> Check:
    """Whether anything stops the tier from filling the disk."""
    id_, tier = "disk_growth", profile.tiers.disk
    if tier is None:
        return skipped(id_, NO_TIER)
    if tier.size_limit is not None:
        return passed(id_, f"kvbench ends a run in which the tier exceeds {show_bytes(tier.size_limit)}")
    free = f" of {show_bytes(host.disk.free)}" if host.disk is not None else ""
    text = f"the engine's disk tier has no limit and evicts nothing: it grows until the disk{free} is full"
    return warned(id_, text, "set tiers.disk.size_limit, and give the tier a file system or quota of its own")


def disk_inodes(profile: Profile, host: Host) -> Check:
    """One file for each chunk, and directories that they are spread over."""
    id_, tier, disk = "disk_inodes", profile.tiers.disk, host.disk
    if tier is None or disk is None or not disk.is_directory:
        return skipped(id_, NO_TIER if tier is None else "the path lies under a file")
    if disk.files_total == 0:
        return skipped(id_, f"{disk.filesystem} has no fixed number of files")
    size = chunk_bytes(profile, host.model)
    if size is None:
        return passed(id_, f"{disk.files_free:,} more files fit", disk.files_free, "files")
    room = tier.size_limit or disk.free
    chunks = -(-room // size)
    needed = chunks + min(2 * chunks, HASHED_DIRECTORIES)
    text = (
        f"{disk.files_free:,} more files fit; {show_bytes(room)} are {chunks:,} chunks of {show_bytes(size)}, "
        f"with their directories at most {needed:,}"
    )
    if disk.files_free < needed:
        do = "larger chunks (tiers.host.blocks_per_chunk), or a file system made with more inodes"
        return failed(id_, text, do, disk.files_free, "files", needed)
    return passed(id_, text, disk.files_free, "files", needed)


def disk_direct(profile: Profile, host: Host) -> Check:
    """Whether reads and writes can go past the page cache."""
    id_, trial = "disk_direct", _trial(host)
    if profile.tiers.disk is None or trial is None:
        return _untried(id_, profile, host)
    if trial.direct:
        return passed(id_, "O_DIRECT works: chunks go past the page cache")
    text = (
        "O_DIRECT is refused here: chunks go through the page cache, which costs memory twice and hides what the "
        "disk can do until it is full"
    )
    return warned(id_, text, "use ext4 or xfs on a block device")


def disk_write(profile: Profile, host: Host) -> Check:
    """Measured writes against the speed at which prefill makes KV."""
    id_, trial = "disk_write", _trial(host)
    if profile.tiers.disk is None or trial is None:
        return _untried(id_, profile, host)
    text = _measured("write", trial.write_bytes_per_s, trial.write, trial.write_threads, trial)
    behind, figures = _against_prefill(trial.write_bytes_per_s, profile, host)
    if behind is None:
        return passed(id_, text, *figures)
    text += f"; full-speed prefill makes {behind}, so stores fall behind"
    do = "a faster device, tiers.host.store_threshold without a disk tier, or fewer new prefixes"
    return warned(id_, text, do, *figures)


def disk_read(profile: Profile, host: Host) -> Check:
    """Measured reads against the speed at which prefill would make the same KV again."""
    id_, trial = "disk_read", _trial(host)
    if profile.tiers.disk is None or trial is None:
        return _untried(id_, profile, host)
    text = _measured("read", trial.read_bytes_per_s, trial.read, trial.read_threads, trial)
    behind, figures = _against_prefill(trial.read_bytes_per_s, profile, host)
    if behind is None:
        return passed(id_, text, *figures)
    make = failed if host.probe is not None else warned
    text += f"; computing makes {behind}, so every promotion loses"
    return make(id_, text, "use a faster device, or leave the disk tier out", *figures)


def _against_prefill(
    rate: float, profile: Profile, host: Host
) -> tuple[str | None, tuple[float, str, float | None]]:
    """What prefill makes, in words where `rate` (bytes/s) is less; then the check's value, unit and limit."""
    made = break_even_bytes_per_s(profile, host)
    if made is None:
        return None, (rate, "bytes/s", None)
    speed, source = made
    return (f"{show_bytes(speed)}/s of KV ({source})" if rate < speed else None), (rate, "bytes/s", speed)


def _measured(verb: str, rate: float, spread: Spread, threads: int, trial: DiskTrial) -> str:
    how = "past the page cache" if trial.direct else "through the page cache"
    return (
        f"{show_bytes(rate)}/s {verb} by {threads} threads in {trial.files} chunks of "
        f"{show_bytes(trial.chunk_bytes)} {how}; one takes {show_seconds(spread.median_s)}, "
        f"p99 {show_seconds(spread.p99_s)}"
    )


def disk_endurance(profile: Profile, host: Host) -> Check:
    """What the device says of its own wear."""
    id_, disk = "disk_endurance", host.disk
    if profile.tiers.disk is None or disk is None:
        return skipped(id_, NO_TIER)
    worn = disk.endurance
    if worn is None:
        named = ", ".join(disk.devices) or "this file system"
        return skipped(id_, f"{named} does not tell its wear (NVMe devices do, to root)")
    spare = f", {worn.spare:.0%} of its spare blocks left" if worn.spare is not None else ""
    written = f", {show_bytes(worn.written)} written so far" if worn.written is not None else ""
    text = f"{worn.device} has used {worn.used:.0%} of its rated writes{spare}{written}"
    figures = (worn.used, "fraction", 1.0)
    if worn.critical or worn.used >= 1:
        return failed(id_, text, "replace the device before a tier writes to it", *figures)
    if worn.used >= WORN:
        return warned(id_, text, "plan its replacement: a tier writes around the clock", *figures)
    return passed(id_, text, *figures)


def _trial(host: Host) -> DiskTrial | None:
    return host.disk.trial if host.disk is not None else None


def _untried(id_: str, profile: Profile, host: Host) -> Check:
    disk: Disk | None = host.disk
    if profile.tiers.disk is None or disk is None:
        return skipped(id_, NO_TIER)
    return skipped(id_, f"not measured: {disk.not_tried or 'nothing was written'}")
