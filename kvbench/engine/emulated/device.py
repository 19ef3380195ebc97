"""Device blocks with prefix hashing as vLLM's `BlockPool` keeps them: references and one queue of free blocks.

Keys are integers that stand for a block's content and everything before it. No tokens, no times.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import cast

__all__ = ["DeviceBlocks"]

_NULL_BLOCKS = 1
"""Of the blocks that vLLM states, one is its null block and never holds KV (`BlockPool.null_block`)."""


class DeviceBlocks:
    """Free blocks keep their content until they are handed out again, the one freed first goes first."""

    def __init__(self, stated_blocks: int) -> None:
        self.capacity = stated_blocks - _NULL_BLOCKS
        self.free_blocks = self.capacity
        """Blocks that can be handed out, those that still have content included."""
        self._keys: list[int | None] = [None] * self.capacity
        self._references = [0] * self.capacity
        self._blank = list(range(self.capacity - 1, -1, -1))
        """Free blocks without content; they are handed out before any other."""
        self._free: OrderedDict[int, int] = OrderedDict()
        """Free blocks with content and its key, the next to be handed out first."""
        self._cached: dict[int, int] = {}
        """Key to the block that serves hits on it."""
        self._doubles: dict[int, list[int]] = {}
        """Further blocks with the same key: two requests computed it at once."""

    @property
    def used_share(self) -> float:
        """vLLM's `kv_cache_usage_perc`."""
        return 1.0 - self.free_blocks / self.capacity if self.capacity else 0.0

    def leading(self, keys: Sequence[int], most: int) -> list[int]:
        """The blocks that hold the first keys, up to the first that is not there and to `most`."""
        cached = self._cached
        if most <= 0 or not keys or keys[0] not in cached:
            return []
        found = list(map(cached.get, keys[:most]))
        if None in found:
            del found[found.index(None) :]
        return cast(list[int], found)

    def idle(self, blocks: Sequence[int]) -> int:
        """How many of these count as free now, and no longer once they are taken."""
        references = self._references
        return [references[block] for block in blocks].count(0)

    def take(self, blocks: Sequence[int]) -> None:
        """Refer to blocks that hold what is needed."""
        references, free = self._references, self._free
        before = len(free)
        for block in blocks:
            users = references[block]
            if not users:
                del free[block]
            references[block] = users + 1
        self.free_blocks -= before - len(free)

    def allocate(self, count: int) -> list[int]:
        """Hand out blocks; their old content is gone. The caller has checked `free_blocks`."""
        blank = self._blank
        blocks = blank[: -count - 1 : -1]
        del blank[len(blank) - len(blocks) :]
        references = self._references
        for block in blocks:
            references[block] = 1
        pop, keys, cached = self._free.popitem, self._keys, self._cached
        self.free_blocks -= count
        for _ in range(count - len(blocks)):
            block, key = pop(False)
            keys[block] = None
            if self._doubles:
                self._forget(block, key)
            else:
                del cached[key]
            references[block] = 1
            blocks.append(block)
        return blocks

    def _forget(self, block: int, key: int) -> None:
        """The block no longer holds `key`; another one may."""
        doubles = self._doubles.get(key)
        if self._cached.get(key) == block:
            if doubles:
                self._cached[key] = doubles.pop(0)
            else:
                del self._cached[key]
        elif doubles:
            doubles.remove(block)
        if doubles is not None and not doubles:
            del self._doubles[key]

    def register(self, blocks: Sequence[int], keys: Sequence[int]) -> None:
        """From now on these blocks can be hit by these keys."""
        cached, content = self._cached, self._keys
        for block, key in zip(blocks, keys, strict=True):
            content[block] = key
            if cached.setdefault(key, block) != block:
                self._doubles.setdefault(key, []).append(block)

    def release(self, blocks: Sequence[int]) -> None:
        """A request gives up its blocks. The last goes into the queue first, so heads outlive tails."""
        references, free, content, blank = self._references, self._free, self._keys, self._blank
        for block in reversed(blocks):
            references[block] = left = references[block] - 1
            if not left:
                key = content[block]
                if key is None:
                    blank.append(block)
                else:
                    free[block] = key
        self.free_blocks = len(blank) + len(free)

    def reset(self) -> bool:
        """Forget all content; False, and nothing is done, while blocks are in use."""
        if self.free_blocks < self.capacity:
            return False
        self._keys = [None] * self.capacity
        self._blank = list(range(self.capacity - 1, -1, -1))
        self._free.clear()
        self._cached.clear()
        self._doubles.clear()
        return True
