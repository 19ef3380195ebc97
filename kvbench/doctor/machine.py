"""Checks of the machine itself: NUMA, memory copies, clock, governor, other load. Pure. Bytes, seconds, cores."""

from __future__ import annotations

from kvbench.doctor.check import Check, failed, passed, skipped, warned
from kvbench.doctor.devices import chosen_gpus
from kvbench.doctor.disk import REMOTE
from kvbench.doctor.host import Host
from kvbench.doctor.needs import embedded
from kvbench.spec.profile import Profile
from kvbench.spec.quantity import show_bytes, show_seconds
from kvbench.spec.rules import Validity

__all__ = ["clock", "governor", "load", "memory_copy", "numa"]

SLOW_COPY_BYTES_PER_S = 2**30
"""One thread of any server in use copies several GiB/s; less says that it does not get a core."""

FAST_CLOCKS = ("tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "timebase", "tod")
"""Read in user space, in tens of nanoseconds; the others take a trip into the kernel or to a chip."""

COARSE_S = 1e-3
"""A clock of this step cannot time gaps between tokens."""

SLOW_READ_S = 2e-6
"""Reading the clock through the interpreter takes about a tenth of a microsecond; a device register takes more
than one."""

STEADY_GOVERNORS = ("performance",)

BUSY_SHARE = 0.75
"""Of all cores: nothing that is measured beside that says anything."""

PRESSURE = 0.10
"""Share of time in which some task waited for memory or disk."""


def numa(profile: Profile, host: Host) -> Check:
    """Whether the host tier fits on the memory near the GPUs, and where the network card is."""
    if not host.numa:
        return skipped("numa", "this system does not tell its NUMA nodes")
    if len(host.numa) == 1:
        return passed("numa", "one NUMA node: all memory is equally near", 1, "nodes")
    allowed = [node for node in host.numa if node.allowed]
    tier = profile.tiers.host.size if profile.tiers.host is not None else 0
    room = sum(node.available for node in allowed)
    if room < tier:
        text = (
            f"this process may use {len(allowed)} of {len(host.numa)} NUMA nodes, with {show_bytes(room)} available"
        )
        return failed("numa", text, "widen the cpuset's mems, or make the host tier smaller", room, "bytes", tier)
    return _near_gpus(profile, host, tier)


def _near_gpus(profile: Profile, host: Host, tier: int) -> Check:
    homes = sorted({gpu.node for gpu in chosen_gpus(profile, host).used if gpu.node is not None})
    if not homes:
        text = f"{len(host.numa)} NUMA nodes, and no GPU whose node is known"
        if embedded(profile) and tier:
            text += ": copies between nodes are slower and vary from launch to launch"
            return warned(
                "numa", text, "run kvbench under numactl --cpunodebind=N --membind=N", len(host.numa), "nodes"
            )
        return passed("numa", text, len(host.numa), "nodes")
    near = sum(node.available for node in host.numa if node.id in homes and node.allowed)
    where = f"GPUs on node {', '.join(map(str, homes))}"
    far = max(node.distances.get(home, 10) for node in host.numa for home in homes)
    if near < tier:
        text = f"{where} with {show_bytes(near)} available; the rest of the host tier is {far / 10:g} times as far"
        do = "bind the engine to the GPUs' node (numactl), or keep the host tier within it"
        return warned("numa", text, do, near, "bytes", tier)
    return _near_network(host, homes, where, near, tier)


def _near_network(host: Host, homes: list[int], where: str, near: int, tier: int) -> Check:
    remote = host.disk is not None and (host.disk.filesystem in REMOTE or host.disk.filesystem.startswith("fuse"))
    cards = [nic for nic in host.nics if nic.node is not None]
    text = f"{where} with {show_bytes(near)} available"
    text += f"; {', '.join(f'{nic.name} on node {nic.node}' for nic in cards)}" if cards else ""
    if remote and cards and not any(nic.node in homes for nic in cards):
        do = "use a network card on the GPUs' node for the disk tier"
        return warned("numa", f"{text}: the disk tier's data crosses nodes", do, near, "bytes", tier)
    return passed("numa", text, near, "bytes", tier)


def memory_copy(_profile: Profile, host: Host) -> Check:
    """Measured: how fast one thread, and all of them, copy within memory."""
    copy = host.copy
    if copy is None:
        return skipped("memory_copy", f"not measured: {host.copy_not_measured or 'nothing was copied'}")
    text = (
        f"{show_bytes(copy.bytes_per_s)}/s copied by one thread, {show_bytes(copy.all_bytes_per_s)}/s by "
        f"{copy.threads}, in pieces of {show_bytes(copy.size)}"
    )
    if copy.bytes_per_s < SLOW_COPY_BYTES_PER_S:
        do = "look for other load, memory pressure or a throttled processor"
        return warned("memory_copy", text, do, copy.bytes_per_s, "bytes/s", SLOW_COPY_BYTES_PER_S)
    return passed("memory_copy", text, copy.bytes_per_s, "bytes/s", SLOW_COPY_BYTES_PER_S)


def clock(_profile: Profile, host: Host) -> Check:
    """Whether times can be trusted."""
    seen = host.clock
    if seen is None:
        return skipped("clock", "this system does not tell its clock source")
    text = f"{seen.source}, steps of {show_seconds(seen.resolution_s)}, {show_seconds(seen.read_s)} to read"
    do = "boot with clocksource=tsc where the kernel trusts it (dmesg | grep -i tsc says why it does not)"
    if seen.resolution_s > COARSE_S:
        return failed("clock", text, do, seen.resolution_s, "s", COARSE_S)
    if seen.source not in FAST_CLOCKS or seen.read_s > SLOW_READ_S:
        return warned(
            "clock", f"{text}: slow to read, which every time-stamp pays", do, seen.read_s, "s", SLOW_READ_S
        )
    return passed("clock", text, seen.read_s, "s", SLOW_READ_S)


def governor(_profile: Profile, host: Host) -> Check:
    """Whether processors change their speed by load."""
    if not host.governors:
        return skipped("governor", "no governor here: the processor's speed is the firmware's or the hypervisor's")
    named = sorted(set(host.governors))
    changing = sum(name not in STEADY_GOVERNORS for name in host.governors)
    if changing:
        text = f"{changing} of {len(host.governors)} processors run under {', '.join(named)}: speed follows load"
        return warned("governor", text, "cpupower frequency-set -g performance", changing, "cores", 0)
    return passed("governor", f"{', '.join(named)} on {len(host.governors)} processors", 0, "cores", 0)


def load(_profile: Profile, host: Host) -> Check:
    """What others do here; a comparison during which they take more than the limit is spoiled."""
    seen, budget = host.load, Validity().contention
    if seen is None or seen.foreign_cores is None:
        return skipped("load", "this system does not tell who uses its processors")
    taken = seen.foreign_cores + (seen.steal_cores or 0.0)
    text = f"others use {taken:.2f} of {seen.cores} cores (load average {seen.load_average:.1f})"
    waits = {"memory": seen.memory_pressure, "disk": seen.io_pressure}
    waiting = [f"{share:.0%} for {what}" for what, share in waits.items() if share is not None and share > PRESSURE]
    text += f"; tasks wait {' and '.join(waiting)}" if waiting else ""
    do = "stop what else runs here; a comparison needs a quiet host"
    if taken > max(budget, BUSY_SHARE * seen.cores):
        return failed("load", text, do, taken, "cores", budget)
    if taken > budget or waiting:
        return warned("load", text, do, taken, "cores", budget)
    return passed("load", text, taken, "cores", budget)
