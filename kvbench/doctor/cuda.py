"""Measures copies between pinned host memory and a GPU, through the driver's own library. Bytes per second.

Nothing has to be installed for it: the driver brings libcuda. Everything that is taken is given back.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

__all__ = ["COPY_BYTES", "CudaError", "GpuCopies", "load_driver", "measure_copies"]

COPY_BYTES = 256 * 2**20
"""Large enough for a link's full speed; five milliseconds on a PCIe 5 link."""

WARM_COPIES = 3
COPIES = 9

HOST_ALLOC_PORTABLE = 1


class CudaError(Exception):
    """The driver refused; the text names the call and its code."""


@dataclass(frozen=True)
class GpuCopies:
    """Median speed of whole copies, and what was seen of the link meanwhile."""

    to_device_bytes_per_s: float
    from_device_bytes_per_s: float
    link: tuple[int | None, int | None]


def load_driver() -> Any:  # noqa: ANN401 (a C library)
    """CudaError where there is no driver."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise CudaError(f"the driver's library cannot be loaded: {error}") from None


def measure_copies(
    driver: Any,  # noqa: ANN401 (a C library)
    bus: str,
    look: Callable[[], tuple[int | None, int | None]],
    *,
    size: int = COPY_BYTES,
) -> GpuCopies:
    """Of the GPU at this PCI bus address. `look` reads its link once it is under load. CudaError when refused."""
    call = _Caller(driver)
    call("cuInit", 0)
    device = ctypes.c_int()
    call("cuDeviceGetByPCIBusId", ctypes.byref(device), bus.encode())
    with ExitStack() as stack:
        context = ctypes.c_void_p()
        call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        stack.callback(call, "cuDevicePrimaryCtxRelease_v2", device)
        call("cuCtxSetCurrent", context)
        there, here = ctypes.c_uint64(), ctypes.c_void_p()
        call("cuMemAlloc_v2", ctypes.byref(there), ctypes.c_size_t(size))
        stack.callback(call, "cuMemFree_v2", there)
        call("cuMemHostAlloc", ctypes.byref(here), ctypes.c_size_t(size), HOST_ALLOC_PORTABLE)
        stack.callback(call, "cuMemFreeHost", here)
        length = ctypes.c_size_t(size)
        to_device = _speed(lambda: call("cuMemcpyHtoD_v2", there, here, length), size)
        link = look()
        from_device = _speed(lambda: call("cuMemcpyDtoH_v2", here, there, length), size)
    return GpuCopies(to_device, from_device, link)


class _Caller:
    def __init__(self, driver: Any) -> None:  # noqa: ANN401 (a C library)
        self._driver = driver

    def __call__(self, name: str, *arguments: object) -> None:
        code = getattr(self._driver, name)(*arguments)
        if code != 0:
            raise CudaError(f"{name} answered {code}")


def _speed(copy: Callable[[], None], size: int) -> float:
    """Copies of pinned memory return when they are done."""
    took = []
    for _ in range(WARM_COPIES + COPIES):
        started = time.perf_counter()
        copy()
        took.append(time.perf_counter() - started)
    return size / statistics.median(took[WARM_COPIES:])
