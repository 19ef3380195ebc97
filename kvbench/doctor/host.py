"""What a host is, as plain values: read once, then only looked at. Sizes in bytes, times in seconds.

None stands for what could not be read or was not measured; it is never taken for zero.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.doctor.probe_costs import ProbeCosts

__all__ = [
    "CgroupMemory",
    "Clock",
    "CopySpeed",
    "Disk",
    "DiskTrial",
    "Endurance",
    "EngineFound",
    "Gpu",
    "Host",
    "Leftover",
    "Limits",
    "Load",
    "Memory",
    "ModelFiles",
    "Nic",
    "NumaNode",
    "PortUse",
    "Shm",
    "Spread",
]


@dataclass(frozen=True)
class Memory:
    """`/proc/meminfo` and the overcommit setting of the kernel."""

    total: int
    available: int
    """MemAvailable: shared memory in use and huge pages are not part of it."""
    shmem: int
    swap_total: int
    swap_free: int
    huge_total: int
    """Reserved for huge pages; engines here do not use them."""
    huge_free: int
    overcommit: int
    """vm.overcommit_memory: 0 heuristic, 1 always, 2 never beyond the commit limit."""
    commit_limit: int
    committed: int


@dataclass(frozen=True)
class CgroupMemory:
    """The tightest memory limit that this process and its children live under."""

    version: int
    path: str
    limit: int
    used: int
    reclaimable: int
    """Page cache within `used`; shared memory is not part of it."""

    @property
    def room(self) -> int:
        """Bytes until the limit."""
        return self.limit - self.used + self.reclaimable


@dataclass(frozen=True)
class Leftover:
    """A file in `/dev/shm` that an engine made and no visible process maps."""

    path: str
    size: int


@dataclass(frozen=True)
class Shm:
    """The shared-memory file system."""

    path: str
    total: int
    free: int
    leftovers: tuple[Leftover, ...] | None = None


@dataclass(frozen=True)
class Limits:
    """Resource limits of this process, which the engine inherits; None: unlimited."""

    memlock_soft: int | None
    memlock_hard: int | None
    files_soft: int | None
    files_hard: int | None


@dataclass(frozen=True)
class NumaNode:
    """Memory and distances of one node."""

    id: int
    total: int
    available: int
    """Free, or page cache."""
    distances: dict[int, int]
    allowed: bool
    """Whether this process may take memory from it."""


@dataclass(frozen=True)
class Nic:
    """A network card on a bus."""

    name: str
    node: int | None
    speed_bits_per_s: float | None


@dataclass(frozen=True)
class Spread:
    """Of one operation, seconds."""

    median_s: float
    p99_s: float


@dataclass(frozen=True)
class Gpu:
    """One GPU and its link; `measured` values come from pinned copies."""

    index: int
    name: str
    bus: str
    node: int | None
    generation: int | None
    """Of its PCIe link, read while copies run where they were measured: an idle GPU slows its link."""
    generation_max: int | None
    lanes: int | None
    lanes_max: int | None
    memory_total: int
    memory_free: int
    busy: float | None
    """Share of time that kernels ran."""
    to_device_bytes_per_s: float | None = None
    from_device_bytes_per_s: float | None = None
    not_measured: str | None = None
    """Why there is no measured figure."""
    uuid: str | None = None


@dataclass(frozen=True)
class CopySpeed:
    """Measured copies within the host's memory, bytes copied per second."""

    bytes_per_s: float
    """One thread."""
    all_bytes_per_s: float
    """As many threads as cores."""
    threads: int
    size: int


@dataclass(frozen=True)
class DiskTrial:
    """Chunks written and read back as the disk tier does it."""

    chunk_bytes: int
    write_threads: int
    read_threads: int
    files: int
    direct: bool
    write_bytes_per_s: float
    write: Spread
    read_bytes_per_s: float
    read: Spread


@dataclass(frozen=True)
class Endurance:
    """What a device says of its own wear."""

    device: str
    used: float
    """Share of the rated writes; may exceed 1."""
    spare: float | None
    critical: bool
    written: int | None


@dataclass(frozen=True)
class Disk:
    """The file system that the disk tier's path lies, or would lie, on."""

    path: str
    place: str
    """The nearest part of `path` that exists."""
    is_directory: bool
    writable: bool
    read_only: bool
    filesystem: str
    free: int
    files_total: int
    files_free: int
    devices: tuple[str, ...] = ()
    rotational: bool = False
    endurance: Endurance | None = None
    trial: DiskTrial | None = None
    not_tried: str | None = None
    """Why there is no trial."""


@dataclass(frozen=True)
class PortUse:
    """A port that the profile asks for."""

    port: int
    free: bool
    holders: tuple[int, ...]


@dataclass(frozen=True)
class EngineFound:
    """What of the profile's engine is on this host."""

    what: str
    """`environment vllm-cpu`, `command vllm`, `image ...`, `server http://...`."""
    found: bool
    version: str | None
    detail: str
    """What to say when it is not found."""
    do: str
    got_on_use: bool = False
    """An image that the first start pulls."""


@dataclass(frozen=True)
class ModelFiles:
    """What of the profile's model is on this host."""

    where: str
    present: bool
    made_on_use: bool
    """A built-in model that the first start makes, or a hub id that it downloads."""
    missing: tuple[str, ...]
    weights_bytes: int
    parameters: int | None
    """That one token meets: of experts, those that are chosen."""
    kv_bytes_per_token: int | None
    """Over all layers and ranks."""


@dataclass(frozen=True)
class Clock:
    """The kernel's source of time."""

    source: str
    resolution_s: float
    read_s: float
    """One reading of the monotonic clock, the interpreter's own share included."""


@dataclass(frozen=True)
class Load:
    """What others did on this host during a short look."""

    cores: int
    foreign_cores: float | None
    steal_cores: float | None
    swap_bytes_per_s: float | None
    memory_pressure: float | None
    """Share of time that some task waited for memory."""
    io_pressure: float | None
    load_average: float


@dataclass(frozen=True)
class Host:
    """Everything that the checks look at."""

    memory: Memory | None = None
    cgroup: CgroupMemory | None = None
    shm: Shm | None = None
    limits: Limits | None = None
    numa: tuple[NumaNode, ...] = ()
    nics: tuple[Nic, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    gpu_absent: str | None = None
    """Why there is no GPU in `gpus`, in words."""
    visible_devices: str | None = None
    """CUDA_VISIBLE_DEVICES of this process, which engines inherit."""
    disk: Disk | None = None
    port: PortUse | None = None
    engine: EngineFound | None = None
    model: ModelFiles | None = None
    clock: Clock | None = None
    governors: tuple[str, ...] = ()
    load: Load | None = None
    copy: CopySpeed | None = None
    copy_not_measured: str | None = None
    probe: ProbeCosts | None = None
    """What `kvbench probe` found for this profile, where it was given."""
