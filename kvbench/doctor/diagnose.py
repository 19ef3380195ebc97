"""`kvbench doctor`, end to end: read the host, measure what has to be measured, look at it all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kvbench.doctor.check import Check
from kvbench.doctor.copying import measure_memory_copy
from kvbench.doctor.cuda import CudaError, load_driver, measure_copies
from kvbench.doctor.devices import chosen_gpus
from kvbench.doctor.disk_trial import try_disk
from kvbench.doctor.examine import examine
from kvbench.doctor.host import Disk, Gpu, Host
from kvbench.doctor.needs import chunk_bytes
from kvbench.doctor.nvml import link_now, read_gpus
from kvbench.doctor.probe_costs import ProbeCosts
from kvbench.doctor.reading import read_essentials, read_leftovers, read_machine
from kvbench.doctor.storage import read_wear
from kvbench.spec.profile import Profile

__all__ = ["diagnose", "measured", "read_host"]

Progress = Callable[[str], None]

GUESSED_CHUNK_BYTES = 2 * 2**20
"""Where the model's geometry is not known: 16 tokens of an 8-billion-parameter model with grouped queries."""

NOT_ASKED = "measuring was not asked for"


def diagnose(
    profile: Profile, progress: Progress, *, probe: ProbeCosts | None = None, measure: bool = True
) -> list[Check]:
    """Every check of this host for this profile. Takes a few seconds; without measuring about one."""
    host = replace(read_host(profile), probe=probe)
    return examine(profile, measured(profile, host, progress) if measure else _unmeasured(host))


def read_host(profile: Profile) -> Host:
    """Everything that can be read without burdening the host."""
    first, machine = read_essentials(profile), read_machine()
    gpus, absent = read_gpus()
    return replace(
        machine,
        memory=first.memory,
        cgroup=first.cgroup,
        shm=replace(first.shm, leftovers=read_leftovers()) if first.shm is not None else None,
        port=first.port,
        disk=read_wear(first.disk) if first.disk is not None else None,
        engine=first.engine,
        model=first.model,
        gpus=gpus,
        gpu_absent=absent,
    )


def _unmeasured(host: Host) -> Host:
    return replace(
        host,
        disk=replace(host.disk, not_tried=NOT_ASKED) if host.disk is not None else None,
        gpus=tuple(replace(gpu, not_measured=NOT_ASKED) for gpu in host.gpus),
        copy_not_measured=NOT_ASKED,
    )


def measured(profile: Profile, host: Host, progress: Progress) -> Host:
    """The same host with memory, GPUs and disk measured, one after the other."""
    if profile.engine.kind in ("attached", "emulated"):
        return host
    progress("measuring memory copies")
    copy = measure_memory_copy(host.memory.available if host.memory is not None else 0)
    host = replace(host, copy_not_measured=copy) if isinstance(copy, str) else replace(host, copy=copy)
    used = {gpu.index for gpu in chosen_gpus(profile, host).used}
    if used:
        progress("measuring copies to and from the GPUs")
        host = replace(host, gpus=tuple(_measured_gpu(gpu) if gpu.index in used else gpu for gpu in host.gpus))
    if host.disk is not None:
        progress(f"measuring {host.disk.path}: writing at most 128 MiB there, and removing it")
        host = replace(host, disk=_tried(profile, host, host.disk))
    return host


def _measured_gpu(gpu: Gpu) -> Gpu:
    try:
        found = measure_copies(load_driver(), gpu.bus, lambda: link_now(gpu.bus))
    except CudaError as error:
        return replace(gpu, not_measured=str(error))
    generation, lanes = found.link
    return replace(
        gpu,
        generation=generation or gpu.generation,
        lanes=lanes or gpu.lanes,
        to_device_bytes_per_s=found.to_device_bytes_per_s,
        from_device_bytes_per_s=found.from_device_bytes_per_s,
    )


def _tried(profile: Profile, host: Host, disk: Disk) -> Disk:
    tier = profile.tiers.disk
    if tier is None or not disk.is_directory or disk.read_only or not disk.writable:
        return replace(disk, not_tried="the path cannot be written to")
    chunk = chunk_bytes(profile, host.model) or GUESSED_CHUNK_BYTES
    trial = try_disk(disk, chunk, tier.write_threads, tier.read_threads)
    return replace(disk, not_tried=trial) if isinstance(trial, str) else replace(disk, trial=trial)
