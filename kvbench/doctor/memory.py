"""Checks of host memory: what the tiers will take against what is really there. Pure."""

from __future__ import annotations

import re

from kvbench.doctor.check import Check, failed, passed, skipped, warned
from kvbench.doctor.host import Host
from kvbench.doctor.needs import Needs, embedded, needs_of
from kvbench.spec.profile import Profile
from kvbench.spec.quantity import show_bytes

__all__ = ["cgroup_memory", "huge_pages", "memory", "over_allocation", "overcommit", "swap"]

SMALLER = "make tiers.host.size smaller, or free memory"

ROUNDED_UP = 2.0
"""vLLM releases that pin each tensor by itself round every one up to a power of two: 1.92 times the size was
reported. From 0.32 on the tier is one region of exactly its size."""

EXACT_SINCE = (0, 32)

IDLE_HUGE_SHARE = 0.01
"""Of memory; less than that is not worth a word."""

SWAPPING_BYTES_PER_S = 2**20
"""More than this is not one forgotten process waking up."""


def memory(profile: Profile, host: Host) -> Check:
    """MemAvailable against everything that has to fit."""
    if host.memory is None:
        return skipped("memory", "this system does not tell how much memory is available")
    needs, seen = needs_of(profile, host.model), host.memory
    text = (
        f"{show_bytes(seen.available)} of {show_bytes(seen.total)} available ({show_bytes(seen.shmem)} of shared "
        f"memory in use is not among it); {_what(needs)}"
    )
    figures = (seen.available, "bytes", needs.total)
    if seen.available < needs.total:
        return failed("memory", text, SMALLER, *figures)
    return passed("memory", text, *figures)


def cgroup_memory(profile: Profile, host: Host) -> Check:
    """The control group's limit, which ends in an OOM kill however much the machine has."""
    group = host.cgroup
    if profile.engine.image is not None:
        return skipped("cgroup_memory", "the engine's container is not in this process's control group")
    if group is None:
        return skipped("cgroup_memory", "no control group limits the memory of this process")
    needs = needs_of(profile, host.model)
    text = (
        f"the control group (v{group.version}, {group.path}) leaves {show_bytes(group.room)} of its "
        f"{show_bytes(group.limit)}, shared memory and /dev/shm counted; {_what(needs)}"
    )
    if group.room < needs.total:
        do = "raise the group's memory limit (--memory, resources.limits.memory, MemoryMax=), or a smaller tier"
        return failed("cgroup_memory", text, do, group.room, "bytes", needs.total)
    return passed("cgroup_memory", text, group.room, "bytes", needs.total)


def _what(needs: Needs) -> str:
    parts = [f"{show_bytes(needs.engine)} for its processes"]
    if needs.weights:
        parts.append(f"{show_bytes(needs.weights)} for weights")
    if needs.device:
        parts.append(f"{show_bytes(needs.device)} for the device tier")
    if needs.tier:
        parts.append(f"{show_bytes(needs.tier)} for the host tier")
    return f"the engine needs about {show_bytes(needs.total)}: {', '.join(parts)}"


def over_allocation(profile: Profile, host: Host) -> Check:
    """Whether this engine version is known to take more for the host tier than was asked."""
    tier, id_ = profile.tiers.host, "over_allocation"
    if tier is None:
        return skipped(id_, "there is no host tier")
    if (
        profile.engine.kind != "vllm"
        or tier.via == "lmcache"
        or embedded(profile)
        or profile.tiers.disk is not None
    ):
        return passed(id_, "this engine takes the size that was asked for, in whole chunks", tier.size, "bytes")
    version = profile.engine.version or (host.engine.version if host.engine is not None else None)
    known = _numbers(version)
    if known is not None and known >= EXACT_SINCE:
        return passed(id_, f"vLLM {version} takes the size that was asked for", tier.size, "bytes")
    room = _room(profile, host)
    worst = round(tier.size * ROUNDED_UP) + needs_of(profile, host.model).engine
    which = f"vLLM {version}" if known is not None else "an unknown version of vLLM"
    text = (
        f"{which} may round each tensor of the host tier up to a power of two: up to {show_bytes(worst)} in all, "
        f"of memory that cannot be reclaimed"
    )
    do = "use vLLM 0.32 or later and pin its version, or leave room for twice the tier"
    if room is None or room >= worst:
        return passed(id_, f"{text}; there is room for that", worst, "bytes", room)
    make = failed if known is not None else warned
    return make(id_, text, do, worst, "bytes", room)


def _numbers(version: str | None) -> tuple[int, int] | None:
    match = re.match(r"(\d+)\.(\d+)", version or "")
    return (int(match[1]), int(match[2])) if match else None


def _room(profile: Profile, host: Host) -> int | None:
    rooms = [host.memory.available] if host.memory is not None else []
    rooms += [host.cgroup.room] if host.cgroup is not None and profile.engine.image is None else []
    return min(rooms, default=None)


def huge_pages(_profile: Profile, host: Host) -> Check:
    """Memory reserved for huge pages is lost to tiers: no engine here takes it."""
    seen, id_ = host.memory, "huge_pages"
    if seen is None:
        return skipped(id_, "this system does not tell about huge pages")
    allowed = round(seen.total * IDLE_HUGE_SHARE)
    if seen.huge_free <= allowed:
        return passed(
            id_, f"{show_bytes(seen.huge_total)} reserved for huge pages", seen.huge_free, "bytes", allowed
        )
    text = f"{show_bytes(seen.huge_free)} lie reserved for huge pages and unused; no tier can be put there"
    return warned(id_, text, "lower vm.nr_hugepages", seen.huge_free, "bytes", allowed)


def overcommit(profile: Profile, host: Host) -> Check:
    """With vm.overcommit_memory=2 the kernel refuses what was promised, not what is used."""
    seen, id_ = host.memory, "overcommit"
    if seen is None:
        return skipped(id_, "this system does not tell how it overcommits")
    if seen.overcommit != 2:
        return passed(id_, f"vm.overcommit_memory is {seen.overcommit}: memory is not promised ahead", 0, "bytes")
    left, needed = seen.commit_limit - seen.committed, needs_of(profile, host.model).total
    text = (
        f"vm.overcommit_memory is 2: {show_bytes(left)} may still be promised, and the engine wants "
        f"{show_bytes(needed)} and address space beside it"
    )
    do = "set vm.overcommit_memory=0, or raise vm.overcommit_ratio"
    make = failed if left < needed else warned
    return make(id_, text, do, left, "bytes", needed)


def swap(profile: Profile, host: Host) -> Check:
    """A tier that is swapped out is slower than computing again."""
    seen, id_ = host.memory, "swap"
    if seen is None:
        return skipped(id_, "this system does not tell about swap")
    used, tier = seen.swap_total - seen.swap_free, profile.tiers.host
    moving = host.load.swap_bytes_per_s if host.load is not None else None
    if moving is not None and moving > SWAPPING_BYTES_PER_S:
        text = f"the host is swapping now, {show_bytes(moving)}/s"
        return failed(id_, text, "free memory before anything is measured", used, "bytes", 0)
    if seen.swap_total and tier is not None:
        text = (
            f"{show_bytes(seen.swap_total)} of swap, {show_bytes(used)} in use: a host tier that is not pinned may "
            "be swapped out, and is then slower than computing again"
        )
        return warned(id_, text, "swapoff -a, or vm.swappiness=0", used, "bytes", 0)
    words = f"{show_bytes(seen.swap_total)} of swap, {show_bytes(used)} in use" if seen.swap_total else "no swap"
    return passed(id_, words, used, "bytes", 0)
