"""Which checks there are, in the order in which they are shown, and those that a comparison makes first. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kvbench.doctor import budget, disk, engine, gpu, machine, memory, shared_memory
from kvbench.doctor.check import Check, skipped
from kvbench.doctor.host import Host
from kvbench.spec.profile import Profile

__all__ = ["essential", "examine"]

Examination = Callable[[Profile, Host], Check | None]

ESSENTIAL: tuple[Examination, ...] = (
    engine.emulated,
    engine.engine,
    memory.memory,
    memory.cgroup_memory,
    shared_memory.dev_shm,
    engine.port,
    disk.disk_path,
    disk.disk_space,
)
"""What would end a run before its first round."""

EVERYTHING: tuple[Examination, ...] = (
    engine.emulated,
    engine.engine,
    engine.engine_version,
    engine.model_files,
    engine.port,
    memory.memory,
    memory.cgroup_memory,
    memory.over_allocation,
    memory.huge_pages,
    memory.overcommit,
    memory.swap,
    shared_memory.dev_shm,
    shared_memory.dev_shm_leftovers,
    shared_memory.memlock,
    shared_memory.open_files,
    gpu.gpu,
    gpu.pcie,
    gpu.host_to_device,
    gpu.device_to_host,
    gpu.gpu_memory,
    gpu.gpu_load,
    machine.numa,
    machine.memory_copy,
    disk.disk_path,
    disk.disk_filesystem,
    disk.disk_space,
    disk.disk_growth,
    disk.disk_inodes,
    disk.disk_direct,
    disk.disk_write,
    disk.disk_read,
    disk.disk_endurance,
    machine.clock,
    machine.governor,
    machine.load,
    budget.budget_host,
    budget.budget_disk,
)

OF_EMULATED: tuple[Examination, ...] = (
    engine.emulated,
    engine.port,
    shared_memory.open_files,
    machine.clock,
    machine.governor,
    machine.load,
    budget.budget_host,
    budget.budget_disk,
)
"""It takes neither memory nor disk for its tiers."""

OF_ATTACHED: tuple[Examination, ...] = (
    engine.engine,
    shared_memory.open_files,
    machine.clock,
    machine.governor,
    machine.load,
    budget.budget_host,
    budget.budget_disk,
)
"""Only what concerns the client: the server's tiers lie elsewhere, or were sized by somebody else."""


def essential(profile: Profile, host: Host) -> list[Check]:
    """Whether this host has room for what `profile` launches; nothing for attached servers."""
    if profile.engine.kind == "attached":
        return []
    if profile.engine.kind == "emulated":
        return _carried_out((engine.emulated, engine.port), profile, host)
    return _carried_out(ESSENTIAL, profile, host)


def examine(profile: Profile, host: Host) -> list[Check]:
    """Every check that concerns this profile."""
    if profile.engine.kind == "emulated":
        return _carried_out(OF_EMULATED, profile, host)
    if profile.engine.kind == "attached":
        server = skipped(
            "server_host",
            "the server was started by somebody else: its memory, /dev/shm, disk and GPUs are not looked at",
            "run kvbench doctor on its host, with the profile of its engine",
        )
        return [server, *_carried_out(OF_ATTACHED, profile, host)]
    return _carried_out(EVERYTHING, profile, host)


def _carried_out(examinations: Iterable[Examination], profile: Profile, host: Host) -> list[Check]:
    checks = (examination(profile, host) for examination in examinations)
    return [check for check in checks if check is not None]
