"""GPUs are read through NVML and measured through the driver; both are stood in for where there is no GPU."""

from __future__ import annotations

import builtins
import ctypes
import sys
from contextlib import closing
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kvbench.doctor import nvml
from kvbench.doctor.cuda import CudaError, measure_copies
from kvbench.doctor.nvml import read_gpus
from kvbench.observe.gpu import GpuReader
from kvbench.spec.host_figures import NO_GPU, host_figure

GIB = 2**30


class NVMLError(Exception):
    pass


def stand_in(count: int = 2, *, no_links: bool = False, broken: bool = False) -> ModuleType:
    """The functions of pynvml that are used; handles are indexes."""

    def link(value: int) -> Any:
        def ask(handle: int) -> int:
            if no_links:
                raise NVMLError("Not Supported")
            return value

        return ask

    def begin() -> None:
        if broken:
            raise NVMLError("Driver Not Loaded")

    module = ModuleType("pynvml")
    module.__dict__.update(
        NVMLError=NVMLError,
        nvmlInit=begin,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: count,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetHandleByPciBusId=lambda bus: 0,
        nvmlDeviceGetUUID=lambda handle: f"GPU-{handle}0000000-1111-2222-3333-444444444444".encode(),
        nvmlDeviceGetName=lambda handle: b"NVIDIA L4" if handle else "NVIDIA L4",
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=24 * GIB, free=20 * GIB),
        nvmlDeviceGetPciInfo=lambda handle: SimpleNamespace(busId=f"00000000:0{handle}:00.0".encode()),
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=7),
        NVML_CLOCK_SM=1,
        NVML_PCIE_UTIL_TX_BYTES=0,
        NVML_PCIE_UTIL_RX_BYTES=1,
        nvmlDeviceGetClockInfo=lambda handle, clock: 2040 * clock,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0x21 if handle else 0x1,
        nvmlDeviceGetPcieThroughput=lambda handle, way: link(7_000_000 if way else 3_000)(handle),
        nvmlDeviceGetCurrPcieLinkGeneration=link(1),
        nvmlDeviceGetMaxPcieLinkGeneration=link(4),
        nvmlDeviceGetCurrPcieLinkWidth=link(8),
        nvmlDeviceGetMaxPcieLinkWidth=link(16),
    )
    return module


def test_every_gpu_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", stand_in())
    found, absent = read_gpus()
    assert absent is None
    assert [(gpu.index, gpu.name, gpu.bus) for gpu in found] == [
        (0, "NVIDIA L4", "00000000:00:00.0"),
        (1, "NVIDIA L4", "00000000:01:00.0"),
    ]
    assert found[1].uuid == "GPU-10000000-1111-2222-3333-444444444444"
    assert {(g.generation, g.generation_max, g.lanes, g.lanes_max, g.busy) for g in found} == {(1, 4, 8, 16, 0.07)}
    assert nvml.link_now(found[0].bus) == (1, 8)


def test_what_a_gpu_does_not_tell_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", stand_in(1, no_links=True))
    found, _absent = read_gpus()
    assert (found[0].generation, found[0].lanes_max) == (None, None)


def test_every_gpu_is_sampled_while_a_round_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", stand_in())
    with closing(GpuReader()) as reader:
        found = reader.read()
    of_first = {name: value for name, value in found.items() if name.startswith("gpu0_")}
    assert of_first == {
        "gpu0_memory_used_bytes": 4 * GIB,
        "gpu0_busy_share": 0.07,
        "gpu0_clock_hz": 2040e6,
        "gpu0_throttled_share": 0.0,
        "gpu0_pcie_received_bytes_per_s": 7e9,
        "gpu0_pcie_sent_bytes_per_s": 3e6,
        "gpu0_pcie_generation": 1,
        "gpu0_pcie_lanes": 8,
    }
    assert found["gpu1_throttled_share"] == 1.0, "by heat; being idle is no throttling"
    assert all(host_figure(name) is not None for name in found)


def test_what_a_gpu_does_not_tell_is_absent_from_its_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", stand_in(1, no_links=True))
    with closing(GpuReader()) as reader:
        assert not any("pcie" in name for name in reader.read())


@pytest.mark.parametrize("module", [stand_in(broken=True), stand_in(0)])
def test_a_sample_without_gpu_says_why(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", module)
    with closing(GpuReader()) as reader:
        assert {NO_GPU[int(code)] for code in reader.read().values()} == {
            "no GPU: its driver does not answer, or shows none"
        }


def test_no_gpu_is_said_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", stand_in(broken=True))
    assert read_gpus() == ((), "no GPU: Driver Not Loaded")
    monkeypatch.setitem(sys.modules, "pynvml", stand_in(0))
    assert read_gpus() == ((), "no GPU: the driver shows none")


def test_without_the_package_the_drivers_traces_decide(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = builtins.__import__

    def refusing(name: str, *rest: Any) -> Any:
        if name == "pynvml":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refusing)
    found, absent = read_gpus()
    assert found == ()
    assert absent is not None
    assert nvml._without_package(tmp_path) == "no GPU: this host has no driver of one"
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "kfd").touch()
    assert "AMD" in nvml._without_package(tmp_path)
    (tmp_path / "dev" / "nvidia0").touch()
    assert "pip install 'kvbench[gpu]'" in nvml._without_package(tmp_path)


def test_the_node_of_a_gpu_is_found_under_the_kernels_spelling(tmp_path: Path) -> None:
    (tmp_path / "0000:18:00.0").mkdir()
    (tmp_path / "0000:18:00.0" / "numa_node").write_text("1\n")
    assert nvml._node("00000000:18:00.0", tmp_path) == 1
    (tmp_path / "0000:18:00.0" / "numa_node").write_text("-1\n")
    assert nvml._node("00000000:18:00.0", tmp_path) is None
    assert nvml._node("00000000:19:00.0", tmp_path) is None


class StandInDriver:
    """Keeps account of what is taken and given back; copies really copy."""

    def __init__(self, refuses: str | None = None) -> None:
        self.refuses = refuses
        self.held: list[str] = []
        self.copies: list[str] = []
        self.memory: dict[int, Any] = {}

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            if name == self.refuses:
                return 2
            return self._carry_out(name, arguments)

        return call

    def _carry_out(self, name: str, arguments: Any) -> int:
        given_back = {"cuMemFree_v2": "device", "cuMemFreeHost": "host", "cuDevicePrimaryCtxRelease_v2": "context"}
        if name == "cuDeviceGetByPCIBusId":
            assert arguments[1] == b"0000:18:00.0"
        elif name == "cuDevicePrimaryCtxRetain":
            self.held.append("context")
        elif name in ("cuMemAlloc_v2", "cuMemHostAlloc"):
            self.held.append("device" if name == "cuMemAlloc_v2" else "host")
            buffer = (ctypes.c_char * arguments[1].value)()
            arguments[0]._obj.value = address = ctypes.addressof(buffer)
            self.memory[address] = buffer
        elif name in ("cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2"):
            self.copies.append(name)
            ctypes.memmove(arguments[0].value, arguments[1].value, arguments[2].value)
        elif name in given_back:
            self.held.remove(given_back[name])
        return 0


def test_copies_are_timed_and_everything_is_given_back() -> None:
    driver, looked = StandInDriver(), []

    def look() -> tuple[int, int]:
        looked.append(len(driver.copies))
        return 5, 16

    found = measure_copies(driver, "0000:18:00.0", look, size=2**20)
    assert found.to_device_bytes_per_s > 0
    assert found.from_device_bytes_per_s > 0
    assert found.link == (5, 16)
    assert looked == [12]  # once the link was under load
    assert driver.copies == ["cuMemcpyHtoD_v2"] * 12 + ["cuMemcpyDtoH_v2"] * 12
    assert driver.held == []


@pytest.mark.parametrize("refuses", ["cuInit", "cuMemAlloc_v2", "cuMemHostAlloc", "cuMemcpyDtoH_v2"])
def test_a_refusal_is_named_and_nothing_is_kept(refuses: str) -> None:
    driver = StandInDriver(refuses)
    with pytest.raises(CudaError, match=f"{refuses} answered 2"):
        measure_copies(driver, "0000:18:00.0", lambda: (None, None), size=2**20)
    assert driver.held == []
