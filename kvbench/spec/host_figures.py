"""Names of what a round records about its host, with unit and words. Those of a GPU carry its number: `gpu0_...`.

Clocks and such have no words, as no report shows them. A figure that the host does not tell is absent. Rates are
per second since the sample before.
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["GPU_ABSENT", "HOST_FIGURES", "NO_GPU", "HostFigure", "host_figure"]


class HostFigure(NamedTuple):
    """`unit` is the base unit."""

    unit: str | None
    words: str


HOST_FIGURES: dict[str, HostFigure] = {
    "cpu_busy_cores": HostFigure("cores", "CPU in use"),
    "cpu_own_cores": HostFigure("cores", "CPU of kvbench and the engine"),
    "cpu_foreign_cores": HostFigure("cores", "CPU of others"),
    "steal_cores": HostFigure("cores", "CPU that the hypervisor took"),
    "cgroup_cpu_limit_cores": HostFigure("cores", "CPU limit of the control group"),
    "cgroup_cpu_throttled_share": HostFigure("fraction", "time throttled by that limit"),
    "pressure_cpu_some_share": HostFigure("fraction", "pressure: some wait for CPU"),
    "pressure_memory_some_share": HostFigure("fraction", "pressure: some wait for memory"),
    "pressure_memory_full_share": HostFigure("fraction", "pressure: all wait for memory"),
    "pressure_io_some_share": HostFigure("fraction", "pressure: some wait for disks"),
    "pressure_io_full_share": HostFigure("fraction", "pressure: all wait for disks"),
    "memory_available_bytes": HostFigure("bytes", "memory available"),
    "memory_cache_bytes": HostFigure("bytes", "page cache, without shared memory"),
    "memory_shmem_bytes": HostFigure("bytes", "shared memory"),
    "cgroup_memory_limit_bytes": HostFigure("bytes", "memory limit of the control group"),
    "cgroup_memory_used_bytes": HostFigure("bytes", "memory used of that limit, page cache included"),
    "engine_memory_bytes": HostFigure("bytes", "memory of the engine"),
    "engine_shmem_bytes": HostFigure("bytes", "shared memory of the engine that is filled"),
    "engine_shm_mapped_bytes": HostFigure("bytes", "mapped by the engine in /dev/shm"),
    "shm_used_bytes": HostFigure("bytes", "lies in /dev/shm"),
    "shm_size_bytes": HostFigure("bytes", "size of /dev/shm"),
    "swap_used_bytes": HostFigure("bytes", "swap in use"),
    "swap_read_bytes_per_s": HostFigure("bytes/s", "read from swap"),
    "swap_write_bytes_per_s": HostFigure("bytes/s", "written to swap"),
    "disk_read_bytes_per_s": HostFigure("bytes/s", "read from the tier's disk"),
    "disk_write_bytes_per_s": HostFigure("bytes/s", "written to the tier's disk"),
    "disk_read_latency_s": HostFigure("s", "latency of a read from the tier's disk"),
    "disk_write_latency_s": HostFigure("s", "latency of a write to the tier's disk"),
    "network_received_bytes_per_s": HostFigure("bytes/s", "network received"),
    "network_sent_bytes_per_s": HostFigure("bytes/s", "network sent"),
    "gpu_memory_used_bytes": HostFigure("bytes", "memory in use"),
    "gpu_busy_share": HostFigure("fraction", "utilisation"),
    "gpu_clock_hz": HostFigure("Hz", "SM clock"),
    "gpu_throttled_share": HostFigure("fraction", "throttled by heat or power"),
    "gpu_pcie_received_bytes_per_s": HostFigure("bytes/s", "PCIe to the GPU"),
    "gpu_pcie_sent_bytes_per_s": HostFigure("bytes/s", "PCIe from the GPU"),
    "gpu_pcie_generation": HostFigure(None, "PCIe generation"),
    "gpu_pcie_lanes": HostFigure(None, "PCIe lanes"),
}
"""In the order of reports."""

GPU_ABSENT = "gpu_absent_code"
"""Why no GPU is read: a key of `NO_GPU`."""

INSTALL = "pip install 'kvbench[gpu]'"

NO_GPU = {
    1: "no GPU: this host has no driver of one",
    2: f"there is an NVIDIA GPU, but nvidia-ml-py is not installed to read it: {INSTALL}",
    3: "there is an AMD GPU, which is not read",
    4: "no GPU: its driver does not answer, or shows none",
}

_NUMBERED = re.compile(r"gpu(\d+)_")


def host_figure(name: str) -> HostFigure | None:
    """What a recorded name stands for; None: nothing that a report shows."""
    numbered = _NUMBERED.match(name)
    if numbered is None:
        return HOST_FIGURES.get(name)
    figure = HOST_FIGURES.get("gpu_" + name[numbered.end() :])
    return None if figure is None else HostFigure(figure.unit, f"GPU {numbered[1]}: {figure.words}")
