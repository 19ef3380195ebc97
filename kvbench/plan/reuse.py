"""Where a schedule's prompt tokens would come from at given tier sizes: a serial replay with vLLM's caching rules.

Answers in tokens by source. Serial and instantaneous: no request overlaps another, every copy is done at once.
"""

from __future__ import annotations

from kvbench.plan.managed_tier import ManagedTier
from kvbench.workload.blocks import BlockPaths, Path, RequestBlocks, block_paths
from kvbench.workload.schedule import Schedule

__all__ = ["expected_sources"]

_NULL_BLOCKS = 1
"""Of the device blocks that vLLM states, one is its null block and never holds KV (`BlockPool.null_block`)."""


def expected_sources(
    schedule: Schedule,
    *,
    block_tokens: int,
    device_blocks: int,
    host_blocks: int = 0,
    disk: bool = False,
    host_policy: str = "lru",
) -> dict[str, int]:
    """Prompt tokens of measured requests by source: `device`, `host`, `disk`, `computed`; everything is replayed.

    `device_blocks` is what the engine states, `host_blocks` the host tier's size in blocks of the same
    `block_tokens`; a disk without a host tier in front of it serves nothing. The rules, as read in vLLM 0.32:

    - contiguous leading whole blocks hit; at least the last token of a prompt is recomputed. (vLLM loads the last
      block of a prompt that ends on a block's edge from a tier, but not from the device; here neither, so that
      promotions are never expected from this alone.)
    - device: LRU by block, a request's blocks touched last block first; whole blocks of its output stay as well.
    - host: gets every whole block of a prompt, LRU in the same order (`offload_prompt_only`: no output). With
      `host_policy` `arc` it evicts as vLLM's ARC does; a prompt that has no room there is not stored.
    - disk: gets everything that the host gets, without limit; a hit goes through the host, so that no more than
      fits there can come from the tiers at once.
    """
    paths = block_paths(schedule, block_tokens)
    replay = _Replay(paths, device_blocks - _NULL_BLOCKS, host_blocks, disk, host_policy)
    blocks = {"device": 0, "host": 0, "disk": 0}
    prompt_tokens = 0
    for request in paths.requests:
        hits = replay.serve(request, block_tokens)
        if request.request.measured:
            prompt_tokens += request.prompt_tokens
            for source, count in zip(blocks, hits, strict=True):
                blocks[source] += count
    tokens = {source: count * block_tokens for source, count in blocks.items()}
    return {**tokens, "computed": prompt_tokens - sum(tokens.values())}


class _Lru:
    """Blocks in one tier. Of each run the leading ones stay longest, since runs are touched last block first."""

    def __init__(self, run_blocks: tuple[int, ...]) -> None:
        self.held: dict[int, int] = {}
        """Leading blocks held of each run, the run touched longest ago first."""
        self._run_blocks = run_blocks
        self._blocks = 0

    def reach(self, run: int, block: int) -> int:
        """How far from this block on a run is held; `block` itself when that one is not."""
        return max(self.held.get(run, 0), block)

    def begins(self, run: int, block: int, end: int) -> int:
        """Where between two blocks the next held one is: nowhere, since only leading ones are."""
        return end

    def touch(self, path: Path, capacity: int) -> None:
        """Put in or renew all of `path`, then drop the blocks touched longest ago until `capacity` are left."""
        for run in reversed(path):
            count = self._run_blocks[run]
            self._blocks += count - self.held.pop(run, 0)
            self.held[run] = count
        capacity = max(capacity, 0)
        while self._blocks > capacity:
            oldest = next(iter(self.held))
            surplus = self._blocks - capacity
            if self.held[oldest] > surplus:
                self.held[oldest] -= surplus
                self._blocks = capacity
            else:
                self._blocks -= self.held.pop(oldest)


class _Replay:
    """The tiers' state from request to request."""

    def __init__(self, paths: BlockPaths, device_blocks: int, host_blocks: int, disk: bool, policy: str) -> None:
        self._paths = paths
        self._device_blocks = device_blocks
        self._host_blocks = host_blocks
        self._device = _Lru(paths.run_blocks)
        self._host: _Lru | ManagedTier = _Lru(paths.run_blocks)
        if policy == "arc" and host_blocks:
            self._host = ManagedTier(host_blocks, policy, paths.run_blocks)
        self._disk: dict[int, int] | None = {} if disk and host_blocks else None

    def serve(self, request: RequestBlocks, block_tokens: int) -> tuple[int, int, int]:
        """Blocks hit on device, host and disk; then the request's own blocks are in all of them."""
        most = max(0, request.prompt_tokens - 1) // block_tokens
        device = min(most, self._paths.leading(request.prompt, self._device.held))
        host, disk = self._beyond(request.prompt, device, min(most, device + self._host_blocks))
        unfinished = request.sequence_tokens % block_tokens != 0  # takes a block, but cannot hit
        self._device.touch(request.sequence, self._device_blocks - unfinished)
        if isinstance(self._host, ManagedTier):
            self._host.use([(run, 0, self._paths.run_blocks[run]) for run in reversed(request.prompt)])
        elif self._host_blocks:
            self._host.touch(request.prompt, self._host_blocks)
        if self._disk is not None:
            self._disk.update((run, self._paths.run_blocks[run]) for run in request.prompt)
        return device, host, disk

    def _beyond(self, path: Path, start: int, end: int) -> tuple[int, int]:
        """Of the blocks from `start` to `end`, how many come from host and disk, up to the first in neither."""
        host = disk = position = 0
        for run in path:
            first, last = max(start - position, 0), min(end - position, self._paths.run_blocks[run])
            position += self._paths.run_blocks[run]
            if first >= last:
                continue
            on_disk = min(self._disk.get(run, 0), last) if self._disk is not None else 0
            block = first
            while block < last:
                reached = min(self._host.reach(run, block), last)
                if reached > block:
                    host += reached - block
                elif block < on_disk:
                    reached = self._host.begins(run, block, on_disk)
                    disk += reached - block
                else:
                    return host, disk
                block = reached
        return host, disk
