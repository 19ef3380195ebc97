"""A slow, obvious tier under ARC as vLLM 0.32 has it: four lists, one request after the other. For tests."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

__all__ = ["SlowArc"]


class SlowArc:
    """Blocks seen once, blocks seen again, and ghosts of both; the oldest stand first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.target = 0.0
        self.once: list[Hashable] = []
        self.again: list[Hashable] = []
        self.once_ghosts: list[Hashable] = []
        self.again_ghosts: list[Hashable] = []
        self.writes = 0

    def __contains__(self, block: Hashable) -> bool:
        return block in self.once or block in self.again

    def use(self, path: Sequence[Hashable]) -> None:
        """A request's blocks from the head of its prompt to the tail; what is not here is stored, or nothing is."""
        blocks = [block for place, block in enumerate(path) if block not in path[:place]]
        here = [block for block in blocks if block in self]
        missing = [block for block in blocks if block not in self]
        for block in reversed(missing):
            self.adapt(block)
        stored = self.make_room(len(self.once) + len(self.again) + len(missing) - self.capacity, blocks)
        if stored:
            self.once += reversed(missing)
            self.writes += len(missing)
            for ghosts in (self.once_ghosts, self.again_ghosts):
                ghosts[:] = [block for block in ghosts if block not in missing]
        for block in reversed(blocks):  # a request counts as used from its tail to its head
            if block in here:
                (self.once if block in self.once else self.again).remove(block)
                self.again.append(block)

    def adapt(self, block: Hashable) -> None:
        """A block that was here before says which of the two lists was too short."""
        once, again = len(self.once_ghosts), len(self.again_ghosts)
        if block in self.once_ghosts:
            self.target = min(self.target + max(1, again / once), self.capacity)
            ghosts = self.once_ghosts
        elif block in self.again_ghosts:
            self.target = max(self.target - max(1, once / again), 0)
            ghosts = self.again_ghosts
        else:
            return
        ghosts.remove(block)
        ghosts.append(block)

    def make_room(self, surplus: int, used: Sequence[Hashable]) -> bool:
        """Let so many go that this request does not use; False, and none goes, where there are not as many."""
        once, again = list(self.once), list(self.again)
        gone: list[tuple[list[Hashable], Hashable]] = []
        for _ in range(surplus):
            from_once = next((block for block in once if block not in used), None)
            from_again = next((block for block in again if block not in used), None)
            if from_once is not None and (len(once) >= int(self.target) or from_again is None):
                once.remove(from_once)
                gone.append((self.once_ghosts, from_once))
            elif from_again is not None:
                again.remove(from_again)
                gone.append((self.again_ghosts, from_again))
            else:
                return False
        self.once, self.again = once, again
        for ghosts, block in gone:
            ghosts.append(block)
        if gone:
            for ghosts in (self.once_ghosts, self.again_ghosts):
                del ghosts[: max(0, len(ghosts) - self.capacity)]
        return True
