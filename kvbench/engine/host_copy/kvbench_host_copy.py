"""A vLLM plugin: native KV offloading on vLLM's CPU platform, with host memory as the offload medium.

vLLM keeps every decision (scheduling, eviction, tiers, metrics); the specs here only replace its refusal of CPU
platforms by a worker that copies within this machine's memory. Written against vLLM 0.32.0.
"""

# vLLM is installed in the engine's environment only, so its classes are unknown to the type checker here.
# mypy: disable-error-code="import-not-found, misc, has-type"

from __future__ import annotations

from pathlib import Path

from kvbench_copy_worker import HostCopyWorker, release
from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingManager, OffloadingWorker
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec, _all_workers_barrier
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

HOST_BANDWIDTH_KEY = "kvbench_host_bandwidth_bytes_per_s"
"""In `kv_connector_extra_config`: holds loads from the host to a bandwidth, to make the tier bad on purpose."""


class HostCopySpec(CPUOffloadingSpec):
    """Host tier alone. As vLLM does for GPUs, the shared region loses its name once every worker has mapped it."""

    def _uses_shared_region(self) -> bool:
        return True

    def _map_region(self) -> SharedOffloadRegion:
        return SharedOffloadRegion(
            engine_id=self.config.engine_id,
            num_chunks=self.num_chunks,
            rank=_slot(self),
            kv_bytes_per_chunk=self.kv_bytes_per_chunk,
            cpu_page_size=self.cpu_page_size_per_worker,
            barrier=_all_workers_barrier,
        )

    def get_manager(self) -> OffloadingManager:
        _check(self)
        return super().get_manager()

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if self._worker is None:
            _check(self)
            self._worker = _make_worker(self, kv_caches, self._map_region())
        return self._worker


class HostCopyTieringSpec(TieringOffloadingSpec):
    """Host tier and secondary tiers behind it, whose threads in the scheduler read and write the same region."""

    def get_manager(self) -> OffloadingManager:
        _check(self)
        manager = super().get_manager()
        region = self._scheduler_mmap
        # Workers map the region before the scheduler does (vLLM initialises their KV caches first), so from here on
        # its name is of no use; without it nothing is left in /dev/shm however the processes end.
        if region is not None and not region._creator:
            Path(region.mmap_path).unlink(missing_ok=True)
        return manager

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if self._worker is None:
            _check(self)
            region = SharedOffloadRegion(
                engine_id=self.config.engine_id,
                num_chunks=self.num_chunks,
                rank=_slot(self),
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            self._worker = _make_worker(self, kv_caches, region)
        return self._worker


def _slot(spec: CPUOffloadingSpec) -> int:
    """This worker's place in each chunk; ranks that hold the same bytes share the first."""
    return 0 if spec.replicated_layout else int(spec.config.parallel.rank)


def _check(spec: CPUOffloadingSpec) -> None:
    """Refuse what vLLM would accept in silence or what the copies here cannot do."""
    if spec.num_chunks == 0:
        raise ValueError(
            f"the host tier of {spec.extra_config.get('cpu_bytes_to_use')} bytes is smaller than one chunk of"
            f" {spec.kv_bytes_per_chunk} bytes: give it at least that"
        )
    if spec.config.canonical_layout:
        raise ValueError("canonical_layout is not served by kvbench_host_copy: leave it out")


def _make_worker(
    spec: CPUOffloadingSpec, kv_caches: CanonicalKVCaches, region: SharedOffloadRegion
) -> HostCopyWorker:
    bandwidth = spec.extra_config.get(HOST_BANDWIDTH_KEY)
    try:
        return HostCopyWorker(
            kv_caches, spec.blocks_per_chunk, region, None if bandwidth is None else float(bandwidth)
        )
    except Exception:
        release(region)
        raise
