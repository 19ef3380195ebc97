"""Checks of `/dev/shm` and of the limits that an engine inherits. Pure. Sizes in bytes."""

from __future__ import annotations

from kvbench.doctor.check import Check, failed, passed, skipped, warned
from kvbench.doctor.host import Host
from kvbench.doctor.needs import embedded, region_bytes, shm_bytes
from kvbench.spec.profile import Profile
from kvbench.spec.quantity import show_bytes

__all__ = ["dev_shm", "dev_shm_leftovers", "memlock", "open_files"]

OWN_FILES = 512
"""Of an engine beside requests and the disk tier: libraries, model shards, sockets between its processes."""

DEFAULT_SEQUENCES = 1024
"""Connections at once where the profile does not limit sequences: vLLM's default for large GPUs."""

OF_CONTAINER = "the container gets limits of its own (engine.container.ulimits)"


def dev_shm(profile: Profile, host: Host) -> Check:
    """Room in the file system that the host tier is put into."""
    if profile.engine.image is not None:
        return _containers_shm(profile)
    needed, shm = shm_bytes(profile), host.shm
    if shm is None:
        if needed:
            return failed(
                "dev_shm", "there is no /dev/shm, and the engine puts its host tier there", "mount a tmpfs"
            )
        return skipped("dev_shm", "there is no /dev/shm, and the engine puts nothing there")
    text = f"{shm.path} has {show_bytes(shm.free)} free of {show_bytes(shm.total)}"
    text += f"; the engine puts {show_bytes(needed)} there" if needed else "; the tiers take nothing there"
    if shm.free < needed:
        left = sum(file.size for file in shm.leftovers or ())
        text += f"; {show_bytes(left)} of it are leftovers" if left else ""
        do = (
            f"make {shm.path} larger (mount -o remount,size=..., --shm-size, --ipc=host) or tiers.host.size smaller"
        )
        return failed("dev_shm", text, do, shm.free, "bytes", needed)
    return passed("dev_shm", text, shm.free, "bytes", needed)


def _containers_shm(profile: Profile) -> Check:
    """A container's own, which is made as large as the profile asks."""
    asked = profile.engine.container.shm_size if profile.engine.container is not None else None
    needed = region_bytes(profile)
    if asked is None:
        return passed("dev_shm", f"the container gets a /dev/shm that holds the {show_bytes(needed)} of its tiers")
    text = f"the container gets a /dev/shm of {show_bytes(asked)}; the engine puts {show_bytes(needed)} there"
    if asked < needed:
        do = "raise engine.container.shm_size, or leave it out"
        return failed("dev_shm", text, do, asked, "bytes", needed)
    return passed("dev_shm", text, asked, "bytes", needed)


def dev_shm_leftovers(_profile: Profile, host: Host) -> Check:
    """Files of engines that are gone: memory that nobody uses and nobody frees."""
    id_ = "dev_shm_leftovers"
    if host.shm is None or host.shm.leftovers is None:
        return skipped(id_, "the shared memory was not looked through")
    files = host.shm.leftovers
    if not files:
        return passed(id_, "no engine has left anything there", 0, "bytes", 0)
    size = sum(file.size for file in files)
    names = ", ".join(file.path for file in files[:3]) + (", ..." if len(files) > 3 else "")
    text = (
        f"{len(files)} file{'s' if len(files) > 1 else ''} of {show_bytes(size)} that no process visible here "
        f"maps: {names}"
    )
    do = "see that no engine is running in another container, then remove them"
    return warned(id_, text, do, size, "bytes", 0)


def memlock(profile: Profile, host: Host) -> Check:
    """What may be locked into memory."""
    id_, limits, tier = "memlock", host.limits, profile.tiers.host
    if profile.engine.image is not None:
        return skipped(id_, OF_CONTAINER)
    if limits is None:
        return skipped(id_, "the limits of this process cannot be read")
    if limits.memlock_soft is None:
        return passed(id_, "locked memory is not limited")
    text = f"{show_bytes(limits.memlock_soft)} may be locked into memory"
    if tier is None or embedded(profile) or profile.engine.kind == "emulated":
        return passed(id_, f"{text}; this profile locks none", limits.memlock_soft, "bytes", 0)
    if limits.memlock_soft >= tier.size:
        return passed(id_, text, limits.memlock_soft, "bytes", tier.size)
    text += (
        f", and the host tier is {show_bytes(tier.size)}: CUDA pins it all the same, but RDMA, NIXL and GPUDirect "
        "transfers from it are refused"
    )
    do = "ulimit -l unlimited (--ulimit memlock=-1, LimitMEMLOCK=infinity)"
    return warned(id_, text, do, limits.memlock_soft, "bytes", tier.size)


def open_files(profile: Profile, host: Host) -> Check:
    """Descriptors for connections, the disk tier's threads, and everything else."""
    id_, limits = "open_files", host.limits
    if profile.engine.image is not None:
        return skipped(id_, OF_CONTAINER)
    if limits is None:
        return skipped(id_, "the limits of this process cannot be read")
    disk = profile.tiers.disk
    sequences = profile.engine.args.get("max-num-seqs")
    at_once = sequences if isinstance(sequences, int) else DEFAULT_SEQUENCES
    needed = OWN_FILES + at_once + (disk.read_threads + disk.write_threads if disk is not None else 0)
    if limits.files_soft is None or limits.files_soft >= needed:
        shown = "any number of" if limits.files_soft is None else f"{limits.files_soft:,}"
        return passed(id_, f"{shown} files may be open", limits.files_soft, "files", needed)
    text = f"{limits.files_soft:,} files may be open, and {needed:,} may be needed at once"
    if limits.files_hard is None or limits.files_hard >= needed:
        return warned(id_, text, f"ulimit -n {max(65_536, needed)}", limits.files_soft, "files", needed)
    do = "raise the hard limit (LimitNOFILE=, --ulimit nofile=..., /etc/security/limits.conf)"
    return failed(id_, f"{text}; the hard limit is {limits.files_hard:,}", do, limits.files_soft, "files", needed)
