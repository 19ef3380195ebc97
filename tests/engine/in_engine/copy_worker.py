"""Runs in the engine's environment: random transfers through the copy worker against a model of their bytes.

Usage: python copy_worker.py SEED CASES. Prints one JSON object: what was checked. Any difference is an assertion.
"""

from __future__ import annotations

import json
import random
import sys
import uuid
from pathlib import Path

import torch
from kvbench_copy_worker import HostCopyWorker
from vllm.v1.kv_offload.base import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    GPULoadStoreSpec,
)
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion

PAGE_BYTES = (4096, 512)  # rows of the device tensors
USED_BYTES = (4096, 500)  # what a layer uses of them; the rest is padding that no copy may touch
DEVICE_BLOCKS, CHUNKS = 40, 12


class Case:
    """One worker over random bytes, beside plain copies of everything it can reach."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.blocks_per_chunk = rng.choice((1, 2, 3, 4, 5, 8))
        self.groups = rng.choice(([[0, 1]], [[0], [1]], [[0, 1], [0]]))  # tensors of each KV cache group
        self.device = [torch.randint(-128, 128, (DEVICE_BLOCKS, page), dtype=torch.int8) for page in PAGE_BYTES]
        used = sum(PAGE_BYTES) * self.blocks_per_chunk
        row = -(-used // SharedOffloadRegion.BLOCK_SIZE_ALIGNMENT) * SharedOffloadRegion.BLOCK_SIZE_ALIGNMENT
        self.region = SharedOffloadRegion(f"kvbench-test-{uuid.uuid4().hex}", CHUNKS, 0, row, used)
        self.path = Path(self.region.mmap_path)
        refs = [[CanonicalKVCacheRef(t, USED_BYTES[t]) for t in group] for group in self.groups]
        tensors = [CanonicalKVCacheTensor(t, page) for t, page in zip(self.device, PAGE_BYTES, strict=True)]
        self.worker = HostCopyWorker(CanonicalKVCaches(tensors, refs), self.blocks_per_chunk, self.region)
        # An own view of the region: tensors follow each other within a chunk, sub-blocks within a tensor.
        self.host = self.region.base_tensor.view(CHUNKS, row)
        self.host.copy_(torch.randint(-128, 128, self.host.shape, dtype=torch.int8))

    def transfer(self) -> tuple[GPULoadStoreSpec, CPULoadStoreSpec, list[tuple[int, int, int, int]]]:
        """Specs of a random transfer, and every (group, device block, chunk, sub-block) that it pairs."""
        blocks = self.rng.sample(range(DEVICE_BLOCKS), DEVICE_BLOCKS)
        chunks = self.rng.sample(range(CHUNKS), CHUNKS)
        ids, sizes, indices, host, pairs = [], [], [], [], []
        for group in range(len(self.groups)):
            first = self.rng.randrange(64)
            skipped = first % self.blocks_per_chunk
            room = len(chunks) // (len(self.groups) - group) * self.blocks_per_chunk - skipped
            size = self.rng.randint(0, max(0, min(room, len(blocks) // 2)))
            for position in range(skipped, skipped + size):
                if position == skipped or position % self.blocks_per_chunk == 0:
                    host.append(chunks.pop())
                ids.append(blocks.pop())
                pairs.append((group, ids[-1], host[-1], position % self.blocks_per_chunk))
            sizes.append(size)
            indices.append(first)
        return GPULoadStoreSpec(ids, sizes, indices), CPULoadStoreSpec(host), pairs

    def apply(self, device, host, pairs, *, to_host: bool) -> int:
        """The same transfer on plain copies, one layer of one block at a time; the number of bytes."""
        moved = 0
        for group, block, chunk, sub in pairs:
            for t in self.groups[group]:
                start = sum(PAGE_BYTES[:t]) * self.blocks_per_chunk + sub * PAGE_BYTES[t]
                on_device = device[t][block, : USED_BYTES[t]]
                on_host = host[chunk, start : start + USED_BYTES[t]]
                on_host.copy_(on_device) if to_host else on_device.copy_(on_host)
                moved += USED_BYTES[t]
        return moved

    def run(self, jobs: int) -> int:
        """Submit jobs of one direction at a time, as vLLM orders dependent ones; returns the bytes moved."""
        device, host = [t.clone() for t in self.device], self.host.clone()
        total = job_id = 0
        while job_id < jobs:
            to_host = self.rng.random() < 0.5
            expected = {}
            for _ in range(self.rng.randint(1, 3)):
                device_spec, host_spec, pairs = self.transfer()
                expected[job_id] = self.apply(device, host, pairs, to_host=to_host)
                if to_host:
                    assert self.worker.submit_store(job_id, device_spec, host_spec)
                else:
                    assert self.worker.submit_load(job_id, host_spec, device_spec)
                job_id += 1
            self.worker.wait({*expected, 10**9})  # ids that it does not know are not waited for
            results = self.worker.get_finished()
            assert [r.job_id for r in results] == list(expected), "finished in the order of submission"
            assert all(r.success and r.transfer_time >= 0 for r in results)
            assert {r.job_id: r.transfer_size for r in results} == expected
            assert self.worker.get_finished() == []
            total += sum(expected.values())
        assert all(torch.equal(a, b) for a, b in zip(device, self.device, strict=True)), "device bytes"
        assert torch.equal(host, self.host), "host bytes"
        return total

    def close(self) -> None:
        del self.host
        self.worker.shutdown()
        self.worker.shutdown()  # idempotent
        assert not self.path.exists(), "the region's name is gone"


def refuses_mismatched_specs(case: Case) -> None:
    """More blocks than chunks, and a chunk that no block belongs to."""
    groups = len(case.groups)
    none = [0] * groups
    too_few = (GPULoadStoreSpec([1, 2], [2, *none[1:]], none), CPULoadStoreSpec([]))
    left_over = (GPULoadStoreSpec([], none, none), CPULoadStoreSpec([3]))
    for device_spec, host_spec in (too_few, left_over):
        try:
            case.worker.submit_store(0, device_spec, host_spec)
        except ValueError:
            continue
        raise AssertionError("a transfer that does not fit was accepted")


def main() -> None:
    rng = random.Random(int(sys.argv[1]))
    torch.manual_seed(int(sys.argv[1]))
    total, chunk_sizes = 0, set()
    for _ in range(int(sys.argv[2])):
        case = Case(rng)
        refuses_mismatched_specs(case)
        total += case.run(jobs=12)
        chunk_sizes.add(case.blocks_per_chunk)
        case.close()
    print(json.dumps({"bytes": total, "blocks_per_chunk": sorted(chunk_sizes)}))


if __name__ == "__main__":
    main()
