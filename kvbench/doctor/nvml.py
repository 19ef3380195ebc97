"""Reads GPUs and their links through NVML (the optional package nvidia-ml-py). Bytes; None: it does not tell."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from kvbench.doctor.host import Gpu
from kvbench.observe.gpu import Told, unread
from kvbench.spec.host_figures import NO_GPU

__all__ = ["link_now", "read_gpus"]


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
    return NO_GPU[unread(root)]


def _gpu(nvml: ModuleType, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    bus = str(_text(nvml.nvmlDeviceGetPciInfo(handle).busId))
    told = Told(nvml)
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
        uuid=told(lambda: str(_text(nvml.nvmlDeviceGetUUID(handle)))),
    )


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
        told = Told(pynvml)
        return (
            told(lambda: int(pynvml.nvmlDeviceGetCurrPcieLinkGeneration(handle))),
            told(lambda: int(pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle))),
        )
    finally:
        pynvml.nvmlShutdown()
