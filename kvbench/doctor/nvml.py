"""Reads GPUs and their links through NVML (the optional package nvidia-ml-py). Bytes; None: it does not tell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from kvbench.doctor.host import Gpu

__all__ = ["link_now", "read_gpus"]

Value = TypeVar("Value")

INSTALL = "pip install 'kvbench[gpu]'"


def read_gpus() -> tuple[tuple[Gpu, ...], str | None]:
    """All GPUs, and why there is none."""
    try:
        import pynvml
    except ImportError:
        return (), _without_package()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return (), f"no GPU: {error}"
    try:
        count = pynvml.nvmlDeviceGetCount()
        found = tuple(_gpu(pynvml, index) for index in range(count))
    except pynvml.NVMLError as error:
        return (), f"no GPU can be read: {error}"
    finally:
        pynvml.nvmlShutdown()
    return found, None if found else "no GPU: the driver shows none"


def _without_package(root: Path = Path("/")) -> str:
    """The driver's own traces tell a host without GPU from one whose GPU cannot be asked."""
    if (root / "proc/driver/nvidia/gpus").is_dir() or list(root.glob("dev/nvidia[0-9]*")):
        return f"there is an NVIDIA GPU, but nvidia-ml-py is not installed to read it: {INSTALL}"
    if (root / "dev/kfd").exists():
        return "there is an AMD GPU, which is not read"
    return "no GPU: this host has no driver of one"


def _gpu(nvml: ModuleType, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    bus = str(_text(nvml.nvmlDeviceGetPciInfo(handle).busId))
    told = _Told(nvml)
    busy = told(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    return Gpu(
        index=index,
        name=str(_text(nvml.nvmlDeviceGetName(handle))),
        bus=bus,
        node=_node(bus),
        generation=told(lambda: int(nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle))),
        generation_max=told(lambda: int(nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle))),
        lanes=told(lambda: int(nvml.nvmlDeviceGetCurrPcieLinkWidth(handle))),
        lanes_max=told(lambda: int(nvml.nvmlDeviceGetMaxPcieLinkWidth(handle))),
        memory_total=int(memory.total),
        memory_free=int(memory.free),
        busy=busy / 100 if busy is not None else None,
    )


class _Told:
    """Asks; None for what this GPU does not support."""

    def __init__(self, nvml: ModuleType) -> None:
        self._nvml = nvml

    def __call__(self, ask: Callable[[], Value]) -> Value | None:
        try:
            return ask()
        except self._nvml.NVMLError:
            return None


def _text(value: str | bytes) -> str:
    """Older releases of the package answer in bytes."""
    return value.decode() if isinstance(value, bytes) else value


def _node(bus: str, devices: Path = Path("/sys/bus/pci/devices")) -> int | None:
    """NVML writes the domain with eight digits, the kernel with four."""
    domain, _, rest = bus.lower().partition(":")
    try:
        node = int((devices / f"{domain[-4:]}:{rest}" / "numa_node").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def link_now(bus: str) -> tuple[int | None, int | None]:
    """Generation and lanes of a GPU's link at this moment; meant to be asked while copies run."""
    import pynvml

    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByPciBusId(bus.encode())
        told = _Told(pynvml)
        return (
            told(lambda: int(pynvml.nvmlDeviceGetCurrPcieLinkGeneration(handle))),
            told(lambda: int(pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle))),
        )
    finally:
        pynvml.nvmlShutdown()
