"""A host on which everything is well, and profiles to look at it for; tests change what they are about."""

from __future__ import annotations

from typing import Any

from kvbench.doctor.host import (
    CgroupMemory,
    Clock,
    CopySpeed,
    Disk,
    DiskTrial,
    Endurance,
    EngineFound,
    Gpu,
    Host,
    Limits,
    Load,
    Memory,
    ModelFiles,
    Nic,
    NumaNode,
    PortUse,
    Shm,
    Spread,
)
from kvbench.spec.profile import Profile

GIB = 2**30
KIB = 2**10


def profile(*, host: dict[str, Any] | None = None, disk: dict[str, Any] | None = None, **engine: Any) -> Profile:
    """vLLM on one GPU, with a host tier of 16 GiB unless `host` says otherwise ({} for none), and a disk tier."""
    tiers: dict[str, Any] = {"device": {"memory_utilization": 0.85}}
    if host is None or host:
        tiers["host"] = {"size": 16 * GIB} | (host or {})
        tiers["disk"] = {"path": "/mnt/kv", "size_limit": 200 * GIB} | (disk or {})
    said = {
        "kind": "vllm",
        "command": ["vllm", "serve"],
        "version": "0.32.0",
        "model": "/models/8b",
        "args": {"max-model-len": 8192, "port": 8000, "max-num-seqs": 256},
    }
    return Profile.model_validate({"name": "arm", "engine": said | engine, "tiers": tiers})


def without_disk(**engine: Any) -> Profile:
    """The same without its disk tier."""
    whole = profile(**engine)
    return whole.model_copy(update={"tiers": whole.tiers.model_copy(update={"disk": None})})


def embedded(size: int = 64 * 2**20, **tiers: Any) -> Profile:
    """The embedded engine with a host tier."""
    return Profile.model_validate(
        {
            "name": "arm",
            "engine": {"kind": "vllm", "environment": "vllm-cpu", "model": "tiny", "version": "0.32.0"},
            "tiers": {"device": {"blocks": 130}, "host": {"size": size}, **tiers},
        }
    )


MEMORY = Memory(
    total=256 * GIB,
    available=200 * GIB,
    shmem=GIB,
    swap_total=0,
    swap_free=0,
    huge_total=0,
    huge_free=0,
    overcommit=0,
    commit_limit=128 * GIB,
    committed=10 * GIB,
)
TRIAL = DiskTrial(
    chunk_bytes=2 * 2**20,
    write_threads=16,
    read_threads=16,
    files=64,
    direct=True,
    write_bytes_per_s=4e9,
    write=Spread(1e-3, 3e-3),
    read_bytes_per_s=6e9,
    read=Spread(0.5e-3, 2e-3),
)
DISK = Disk(
    path="/mnt/kv",
    place="/mnt/kv",
    is_directory=True,
    writable=True,
    read_only=False,
    filesystem="ext4",
    free=1000 * GIB,
    files_total=10**8,
    files_free=10**8,
    devices=("nvme0n1",),
    endurance=Endurance("nvme0n1", 0.05, 1.0, critical=False, written=10**14),
    trial=TRIAL,
)
GPU = Gpu(
    index=0,
    name="NVIDIA H100 80GB HBM3",
    bus="0000:18:00.0",
    node=0,
    generation=5,
    generation_max=5,
    lanes=16,
    lanes_max=16,
    memory_total=80 * GIB,
    memory_free=79 * GIB,
    busy=0.0,
    to_device_bytes_per_s=55e9,
    from_device_bytes_per_s=54e9,
)
NODES = tuple(NumaNode(n, 128 * GIB, 100 * GIB, {n: 10, 1 - n: 21}, allowed=True) for n in (0, 1))
HOST = Host(
    memory=MEMORY,
    cgroup=CgroupMemory(2, "/sys/fs/cgroup/slice", 128 * GIB, 20 * GIB, 5 * GIB),
    shm=Shm("/dev/shm", 128 * GIB, 120 * GIB, leftovers=()),
    limits=Limits(None, None, 65_536, 65_536),
    numa=NODES,
    nics=(Nic("eth0", 0, 1e11),),
    gpus=(GPU,),
    disk=DISK,
    port=PortUse(8000, True, ()),
    engine=EngineFound("command vllm", True, "0.32.0", "", ""),
    model=ModelFiles("/models/8b", True, False, (), 16 * GIB, 8_000_000_000, 128 * KIB),
    clock=Clock("tsc", 1e-9, 1e-7),
    governors=("performance",) * 16,
    load=Load(16, 0.05, 0.0, 0.0, 0.0, 0.0, 0.3),
    copy=CopySpeed(10e9, 60e9, 16, 128 * 2**20),
)
