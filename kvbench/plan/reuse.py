"""Where a schedule's prompt tokens would come from at given tier sizes: a serial replay with vLLM's caching rules.

Answers in tokens by source. Serial and instantaneous: no request overlaps another, every copy is done at once.
"""

from __future__ import annotations

from kvbench.plan.host_rules import HostRules
from kvbench.plan.managed_tier import ManagedTier
from kvbench.workload.blocks import BlockPaths, Path, RequestBlocks, block_paths
from kvbench.workload.schedule import Schedule

__all__ = ["expected_sources"]

_USUAL = HostRules()
_NULL_BLOCKS = 1
"""Of the device blocks that vLLM states, one is its null block and never holds KV (`BlockPool.null_block`)."""


def expected_sources(
    schedule: Schedule,
    *,
    block_tokens: int,
    device_blocks: int,
    host_blocks: int = 0,
    disk: bool = False,
    host_rules: HostRules = _USUAL,
) -> dict[str, int]:
    """Prompt tokens of measured requests by source: `device`, `host`, `disk`, `computed`; everything is replayed.

    `device_blocks` is what the engine states, `host_blocks` the host tier's size in blocks of the same
    `block_tokens`; a disk without a host tier in front of it serves nothing. The rules, as read in vLLM 0.32:

    - contiguous leading whole blocks hit; at least the last token of a prompt is recomputed. (vLLM loads the last
      block of a prompt that ends on a block's edge from a tier, but not from the device; here neither, so that
      promotions are never expected from this alone.)
    - device: LRU by block, a request's blocks touched last block first; whole blocks of its output stay as well.
    - host: gets every whole chunk of a prompt, LRU in the same order (unless `prompt_only`: and of its output). By
      the policy `arc` it evicts as vLLM's ARC does, and with a threshold of 2 or more it stores what has been
      offered so often; then a prompt that has no room there is not stored. Whole chunks hit: where the device holds
      the beginning of one, its rest is loaded, but nothing is for less than a chunk in all.
    - disk: gets everything that the host gets, without limit; a hit goes through the host, so that no more than
      fits there can come from the tiers at once.
    """
    paths = block_paths(schedule, block_tokens)
    chunk_tokens = host_rules.chunk_tokens or block_tokens
    chunks = paths if chunk_tokens == block_tokens else block_paths(schedule, chunk_tokens)
    device = _Device(paths, block_tokens, device_blocks - _NULL_BLOCKS)
    behind = _Behind(chunks, chunk_tokens, host_blocks * block_tokens // chunk_tokens, host_rules, disk=disk)
    tokens = {"device": 0, "host": 0, "disk": 0}
    prompt_tokens = 0
    for in_blocks, in_chunks in zip(paths.requests, chunks.requests, strict=True):
        here = device.hit(in_blocks)
        found = (here, *behind.hit(in_chunks, here))
        device.keep(in_blocks)
        behind.keep(in_chunks)
        if in_blocks.request.measured:
            prompt_tokens += in_blocks.prompt_tokens
            for source, count in zip(tokens, found, strict=True):
                tokens[source] += count
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


class _Device:
    """The device's state from request to request. `blocks` without the null block."""

    def __init__(self, paths: BlockPaths, block_tokens: int, blocks: int) -> None:
        self._paths = paths
        self._block_tokens = block_tokens
        self._blocks = blocks
        self._lru = _Lru(paths.run_blocks)

    def hit(self, request: RequestBlocks) -> int:
        """Tokens of the prompt that are here."""
        most = max(0, request.prompt_tokens - 1) // self._block_tokens
        return min(most, self._paths.leading(request.prompt, self._lru.held)) * self._block_tokens

    def keep(self, request: RequestBlocks) -> None:
        """The request's own blocks; the unfinished one takes its place, but cannot hit."""
        unfinished = request.sequence_tokens % self._block_tokens != 0
        self._lru.touch(request.sequence, self._blocks - unfinished)


class _Behind:
    """The state of host and disk from request to request. Counts in chunks."""

    def __init__(self, chunks: BlockPaths, chunk_tokens: int, size: int, rules: HostRules, *, disk: bool) -> None:
        self._run_chunks = chunks.run_blocks
        self._chunk_tokens = chunk_tokens
        self._size = size
        self._rules = rules
        self._host: _Lru | ManagedTier = _Lru(chunks.run_blocks)
        if size and (rules.policy != "lru" or rules.store_threshold >= 2):
            self._host = ManagedTier(
                size,
                rules.policy,
                chunks.run_blocks,
                store_threshold=rules.store_threshold,
                most_tracked=rules.most_tracked,
            )
        self._disk: dict[int, int] | None = {} if disk and size else None
        """Leading chunks in files, of each run."""

    def hit(self, request: RequestBlocks, here: int) -> tuple[int, int]:
        """Tokens from host and disk, behind the first `here`, which the device holds."""
        size = self._chunk_tokens
        start, end = here // size, max(0, request.prompt_tokens - 1) // size
        host, disk = self._found(request.prompt, start, min(end, start + self._size))
        inside = here - start * size
        if (host + disk) * size - inside < size:
            return 0, 0
        first_on_disk = inside > 0 and self._found(request.prompt, start, start + 1) == (0, 1)
        return (host * size, disk * size - inside) if first_on_disk else (host * size - inside, disk * size)

    def _found(self, path: Path, start: int, end: int) -> tuple[int, int]:
        """Of the chunks from `start` to `end`, how many come from host and disk, up to the first in neither."""
        host = disk = position = 0
        for run in path:
            first, last = max(start - position, 0), min(end - position, self._run_chunks[run])
            position += self._run_chunks[run]
            if first >= last:
                continue
            on_disk = min(self._disk.get(run, 0), last) if self._disk is not None else 0
            chunk = first
            while chunk < last:
                reached = min(self._host.reach(run, chunk), last)
                if reached > chunk:
                    host += reached - chunk
                elif chunk < on_disk:
                    reached = self._host.begins(run, chunk, on_disk)
                    disk += reached - chunk
                else:
                    return host, disk
                chunk = reached
        return host, disk

    def keep(self, request: RequestBlocks) -> None:
        """The request's own chunks."""
        path = request.prompt if self._rules.prompt_only else request.sequence
        if isinstance(self._host, ManagedTier):
            self._host.use([(run, 0, self._run_chunks[run]) for run in reversed(path)])
        elif self._size:
            self._host.touch(path, self._size)
        if self._disk is None:
            return
        for run in path:
            stored = self._run_chunks[run] if self._rules.store_threshold < 2 else self._host.reach(run, 0)
            self._disk[run] = max(self._disk.get(run, 0), stored)
