"""Reads GPUs while a round runs, through NVML (the optional package nvidia-ml-py); says why where it cannot.

Figures by name, as `kvbench.spec.host_figures` has them; what a GPU does not tell is absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from kvbench.spec.host_figures import GPU_ABSENT

__all__ = ["GpuReader", "Told", "unread"]

Value = TypeVar("Value")
_SILENT = 4
_HARMFUL = 0x4 | 0x8 | 0x20 | 0x40 | 0x80
"""Of NVML's reasons for a lower clock: power cap, hardware slowdown, heat by software and by hardware, power brake.
Idleness and clocks that somebody set are none."""


class Told:
    """Asks; None for what this GPU does not support."""

    def __init__(self, nvml: ModuleType) -> None:
        self._nvml = nvml

    def __call__(self, ask: Callable[[], Value]) -> Value | None:
        try:
            return ask()
        except self._nvml.NVMLError:
            return None


def unread(root: Path = Path("/")) -> int:
    """Without the package the driver's own traces tell a host without GPU from one whose GPU cannot be asked: a key
    of `NO_GPU`."""
    if (root / "proc/driver/nvidia/gpus").is_dir() or list(root.glob("dev/nvidia[0-9]*")):
        return 2
    return 3 if (root / "dev/kfd").exists() else 1


class GpuReader:
    """Open from the first `read` until `close`. Each costs some 40 ms a GPU, most of it NVML's look at the link."""

    def __init__(self) -> None:
        self._nvml: ModuleType | None = None
        self._absent: int | None = None
        self._handles: dict[int, object] = {}

    def _open(self) -> None:
        try:
            import pynvml
        except ImportError:
            self._absent = unread()
            return
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            self._absent = _SILENT
            return
        self._nvml = pynvml
        told = Told(pynvml)
        for index in range(told(pynvml.nvmlDeviceGetCount) or 0):
            handle = told(partial(pynvml.nvmlDeviceGetHandleByIndex, index))
            if handle is not None:
                self._handles[index] = handle
        if not self._handles:
            self._absent = _SILENT

    def read(self) -> dict[str, float]:
        """Every GPU now; instead of any the code of why there is none."""
        if self._nvml is None and self._absent is None:
            self._open()
        if self._nvml is None or self._absent is not None:
            return {GPU_ABSENT: float(self._absent or _SILENT)}
        told = Told(self._nvml)
        return {
            f"gpu{index}_{name}": value
            for index, handle in self._handles.items()
            for name, ask in _figures(self._nvml, handle)
            if (value := told(ask)) is not None
        }

    def close(self) -> None:
        """Let go of the driver."""
        if self._nvml is not None:
            Told(self._nvml)(self._nvml.nvmlShutdown)
            self._nvml = None


def _figures(nvml: ModuleType, handle: object) -> Iterator[tuple[str, Callable[[], float]]]:
    def memory() -> float:
        found = nvml.nvmlDeviceGetMemoryInfo(handle)
        return float(found.total - found.free)

    yield "memory_used_bytes", memory
    yield "busy_share", lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
    yield "clock_hz", lambda: 1e6 * nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)
    yield (
        "throttled_share",
        lambda: float(bool(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle) & _HARMFUL)),
    )
    # In KB/s, over NVML's last 20 ms.
    yield (
        "pcie_received_bytes_per_s",
        lambda: 1e3 * nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_RX_BYTES),
    )
    yield (
        "pcie_sent_bytes_per_s",
        lambda: 1e3 * nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_TX_BYTES),
    )
    yield "pcie_generation", lambda: float(nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle))
    yield "pcie_lanes", lambda: float(nvml.nvmlDeviceGetCurrPcieLinkWidth(handle))
