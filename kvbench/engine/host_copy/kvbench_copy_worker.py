"""Moves KV bytes between device blocks and host chunks on one thread per direction, as a GPU's copy engines would.

Runs inside the server's worker process and imports nothing but vLLM, numpy and the standard library. What is copied
when is vLLM's decision. Written against vLLM 0.32.0. Sizes in bytes, times in seconds.
"""

# vLLM is installed in the engine's environment only, so its classes are unknown to the type checker here.
# mypy: disable-error-code="import-not-found, misc, has-type"

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from kvbench_pace import Pace
from numpy.typing import NDArray
from vllm.logger import init_logger
from vllm.v1.kv_offload.base import (
    BlockIDsLoadStoreSpec,
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion

logger = init_logger(f"vllm.{__name__}")

Indices = NDArray[np.int64]
Pages = NDArray[np.int8]


class BlockPairs(NamedTuple):
    """Which device block pairs with which part of which host chunk; three arrays of one length."""

    device_blocks: Indices
    host_chunks: Indices
    sub_blocks: Indices


def pair_blocks(
    device_blocks: Indices, first_block_index: int, host_chunks: Indices, blocks_per_chunk: int
) -> tuple[BlockPairs, int]:
    """Pair one group's device blocks with the sub-blocks of its host chunks; also the number of chunks used.

    ``first_block_index`` is the logical index of the first block within the request. Chunks are aligned to
    multiples of ``blocks_per_chunk`` there, so the first and the last chunk may be used in part.
    """
    position = first_block_index % blocks_per_chunk + np.arange(len(device_blocks), dtype=np.int64)
    chunks_used = int(position[-1]) // blocks_per_chunk + 1 if len(position) else 0
    if chunks_used > len(host_chunks):
        raise ValueError(f"{len(device_blocks)} blocks need {chunks_used} host chunks, got {len(host_chunks)}")
    return (
        BlockPairs(device_blocks, host_chunks[position // blocks_per_chunk], position % blocks_per_chunk),
        chunks_used,
    )


class PageTable:
    """The bytes of all KV tensors on both sides, as arrays (device block, byte) and (chunk, sub-block, byte)."""

    def __init__(
        self,
        device: list[Pages],
        host: list[Pages],
        refs_per_group: list[list[CanonicalKVCacheRef]],
        blocks_per_chunk: int,
    ) -> None:
        self._device = device
        self._host = [pages.reshape(len(pages), blocks_per_chunk, -1) for pages in host]
        for original, reshaped in zip(host, self._host, strict=True):
            if not np.shares_memory(original, reshaped):
                raise ValueError("host pages cannot be addressed in place: their bytes are not contiguous")
        self._refs_per_group = refs_per_group
        self._blocks_per_chunk = blocks_per_chunk

    def plan(self, device_spec: GPULoadStoreSpec, host_spec: BlockIDsLoadStoreSpec) -> list[BlockPairs]:
        """One :class:`BlockPairs` a group, in the order of the groups; every id of both specs is used once."""
        device_blocks = np.asarray(device_spec.block_ids, dtype=np.int64)
        host_chunks = np.asarray(host_spec.block_ids, dtype=np.int64)
        groups = zip(device_spec.group_sizes, device_spec.block_indices, strict=True)
        pairs: list[BlockPairs] = []
        for size, first_block_index in groups:
            group_pairs, used = pair_blocks(
                device_blocks[:size], first_block_index, host_chunks, self._blocks_per_chunk
            )
            pairs.append(group_pairs)
            device_blocks, host_chunks = device_blocks[size:], host_chunks[used:]
        if len(pairs) != len(self._refs_per_group) or len(device_blocks) or len(host_chunks):
            raise ValueError("a transfer does not match the KV cache groups or leaves ids over")
        return pairs

    def bytes_of(self, pairs: list[BlockPairs]) -> int:
        """What a transfer moves, without padding."""
        return sum(
            len(group_pairs.device_blocks) * ref.page_size_bytes
            for group_pairs, refs in zip(pairs, self._refs_per_group, strict=True)
            for ref in refs
        )

    def copy(self, pairs: list[BlockPairs], *, to_host: bool) -> None:
        """Move the bytes. One numpy call each way per tensor: it releases the GIL for the whole of it."""
        for (device_blocks, host_chunks, sub_blocks), refs in zip(pairs, self._refs_per_group, strict=True):
            for ref in refs:
                device = self._device[ref.tensor_idx][:, : ref.page_size_bytes]
                host = self._host[ref.tensor_idx][:, :, : ref.page_size_bytes]
                if to_host:
                    host[host_chunks, sub_blocks] = device[device_blocks]
                else:
                    device[device_blocks] = host[host_chunks, sub_blocks]

    def release(self) -> None:
        """Drop the arrays, so that the memory under them can be unmapped."""
        self._device.clear()
        self._host.clear()


@dataclass(frozen=True)
class Copy:
    """One submitted transfer."""

    job_id: int
    pairs: list[BlockPairs]
    n_bytes: int


class CopyThread:
    """Runs transfers of one direction in the order of their submission, away from the engine's step."""

    def __init__(self, name: str, copy: Callable[[list[BlockPairs]], None], pace: Pace) -> None:
        self._copy = copy
        self._pace = pace
        self._changed = threading.Condition()
        self._queue: deque[Copy] = deque()
        self._pending: set[int] = set()
        self._finished: list[TransferResult] = []
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, copy: Copy) -> None:
        with self._changed:
            self._queue.append(copy)
            self._pending.add(copy.job_id)
            self._changed.notify_all()

    def take_finished(self) -> list[TransferResult]:
        """Results since the last call, in the order of submission."""
        with self._changed:
            finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """Return when none of these jobs is queued or running; ids of other directions are not waited for."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending.isdisjoint(job_ids))

    def stop(self) -> None:
        """Finish the running copy, drop the queued ones, end the thread. Idempotent."""
        with self._changed:
            self._stopping = True
            for copy in self._queue:
                self._pending.discard(copy.job_id)
            self._queue.clear()
            self._changed.notify_all()
        self._pace.close()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or bool(self._queue))
                if self._stopping:
                    return
                copy = self._queue.popleft()
            result = self._transfer(copy)
            with self._changed:
                self._finished.append(result)
                self._pending.discard(copy.job_id)
                self._changed.notify_all()

    def _transfer(self, copy: Copy) -> TransferResult:
        started_at = time.monotonic()
        success = True
        try:
            self._copy(copy.pairs)
            self._pace.pay(copy.n_bytes, started_at)
        except Exception:
            # Reported through the result: vLLM stops the engine on a failed copy, so the cause must be in its log.
            logger.exception("copy of job %d failed", copy.job_id)
            success = False
        return TransferResult(
            job_id=copy.job_id,
            success=success,
            transfer_size=copy.n_bytes,
            transfer_time=time.monotonic() - started_at,
        )


class HostCopyWorker(OffloadingWorker):
    """vLLM's worker-side transfers between device blocks and host chunks, both in this machine's memory.

    A store reads blocks that the previous step has finished writing: on the CPU platform a step is over when its
    call returns, and vLLM submits stores after that and fences the reuse of their blocks.
    """

    def __init__(
        self,
        kv_caches: CanonicalKVCaches,
        blocks_per_chunk: int,
        region: SharedOffloadRegion,
        load_bytes_per_s: float | None = None,
    ) -> None:
        self._region: SharedOffloadRegion | None = region
        device: list[Pages] = []
        host: list[Pages] = []
        for kv in kv_caches.tensors:
            device.append(kv.tensor.numpy())
            host.append(region.create_next_worker_view(kv.page_size_bytes * blocks_per_chunk).numpy())
        self._pages = PageTable(device, host, kv_caches.group_data_refs, blocks_per_chunk)
        self._stores = CopyThread("kvbench-store", lambda pairs: self._pages.copy(pairs, to_host=True), Pace(None))
        self._loads = CopyThread(
            "kvbench-load", lambda pairs: self._pages.copy(pairs, to_host=False), Pace(load_bytes_per_s)
        )

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        self._submit(self._stores, job_id, src_spec, dst_spec)
        return True

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        self._submit(self._loads, job_id, dst_spec, src_spec)
        return True

    def _submit(
        self, thread: CopyThread, job_id: int, device_spec: GPULoadStoreSpec, host_spec: LoadStoreSpec
    ) -> None:
        pairs = self._pages.plan(device_spec, host_spec)
        thread.submit(Copy(job_id, pairs, self._pages.bytes_of(pairs)))

    def get_finished(self) -> list[TransferResult]:
        return self._stores.take_finished() + self._loads.take_finished()

    def wait(self, job_ids: set[int]) -> None:
        self._stores.wait(job_ids)
        self._loads.wait(job_ids)

    def shutdown(self) -> None:
        self._stores.stop()
        self._loads.stop()
        self._pages.release()
        if self._region is not None:
            release(self._region)
            self._region = None


def release(region: SharedOffloadRegion) -> None:
    """Unmap a region, and remove its name where that has not happened yet."""
    # The scheduler side has usually removed it; vLLM's clean-up would then log its absence as a failure.
    if not Path(region.mmap_path).exists():
        region._creator = False
    region.cleanup()
