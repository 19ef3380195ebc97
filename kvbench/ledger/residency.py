"""Splits what a request found cached over the tiers, from where its blocks lay when they were looked up. Tokens.

What the device holds is used where it lies. What a tier behind it holds is loaded, and the engine announces the
loaded blocks on the device, all of them together, before the first token: such an announcement inside a request's
time, ending where its cached tokens end, of blocks that lay in the host, is its load; what comes before it was on
the device. A block that reached the host from disk in that time was promoted for the request. Every announcement
and every promotion belongs to one request only, the one sent first: others waited for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvbench.ledger.history import Announcement, BlockHistory, Prompt

__all__ = ["Asked", "Residency", "Split"]


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """A request whose prompt was looked up. Seconds from the round's start."""

    sent_s: float
    first_token_s: float
    prompt: Prompt
    """At least the part that was cached."""
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Split:
    """Cached tokens by tier."""

    device: int
    host: int
    disk: int


@dataclass
class Residency:
    """To be asked for one request after the other, in the order of sending."""

    history: BlockHistory
    blocks_per_chunk: int = 1
    """Tiers behind the device keep chunks of so many blocks, each under the hash of its last."""
    has_disk: bool = True
    has_host: bool = True
    _claimed: set[int] = field(default_factory=set)
    """Places of device announcements that belong to a request already."""
    _promoted: set[tuple[int, bytes]] = field(default_factory=set)

    def split(self, asked: Asked) -> Split | None:
        """None: the events do not tell, because blocks were lost, never told of, or never seen where they must have
        been."""
        history = self.history
        width = history.block_tokens
        first, end = history.place_at(asked.sent_s), history.place_at(asked.first_token_s)
        if width == 0 or (history.lost_at is not None and history.lost_at < end):
            return None
        paths = history.paths(asked.prompt, -(-asked.cached_tokens // width))
        splits = (self._along(path, first, end, asked.cached_tokens) for path in paths)
        return next((split for split in splits if split is not None), None)

    def _along(self, path: tuple[bytes, ...], first: int, end: int, cached_tokens: int) -> Split | None:
        """The split if this was the way through the blocks; a hit may end inside the last of them."""
        for count in dict.fromkeys((len(path), cached_tokens // self.history.block_tokens)):
            load = self._load(path[:count], first, end)
            if load is not None:
                return self._with_load(path[:count], load, first, cached_tokens)
        if not all(self._on_device(block, first, end) for block in path):
            return None
        came = [index for index, block in enumerate(path) if not self.history.lies_in("device", block, first)]
        if came and self.has_host and not self.history.tells("host"):
            return None  # computed by another request, or loaded from a tier of which nothing is ever said
        for index in came:
            # It asked for the chunk, and then found it loaded for another.
            self._was_promoted(self._key(path, index) or path[index], first, end)
        return Split(cached_tokens, 0, 0)

    def _on_device(self, block: bytes, first: int, end: int) -> bool:
        """When the request was sent, or at some time before its first token."""
        history = self.history
        arrived = next(history.arrivals("device", block, first, end), None)
        return history.lies_in("device", block, first) or arrived is not None

    def _load(self, path: tuple[bytes, ...], first: int, end: int) -> Announcement | None:
        for found in self.history.announced(path[-1], first, end) if path else ():
            start = len(path) - len(found.blocks)
            if found.place in self._claimed or start < 0 or path[start:] != found.blocks:
                continue
            keys = {self._key(path, index) for index in range(start, len(path))}
            if all(key is not None and self.history.lies_in("host", key, found.place) for key in keys):
                self._claimed.add(found.place)
                return found
        return None

    def _key(self, path: tuple[bytes, ...], index: int) -> bytes | None:
        """The chunk in which a block is kept behind the device."""
        last = (index // self.blocks_per_chunk + 1) * self.blocks_per_chunk - 1
        return path[last] if last < len(path) else None

    def _with_load(self, path: tuple[bytes, ...], load: Announcement, first: int, cached_tokens: int) -> Split:
        width = self.history.block_tokens
        start = len(path) - len(load.blocks)
        tokens = {"host": 0, "disk": 0}
        promoted: dict[bytes, bool] = {}
        for index in range(start, len(path)):
            key = self._key(path, index) or path[index]
            if key not in promoted:
                promoted[key] = self._was_promoted(key, first, load.place)
            within = min(width, max(0, cached_tokens - index * width))
            tokens["disk" if promoted[key] else "host"] += within
        return Split(cached_tokens - sum(tokens.values()), tokens["host"], tokens["disk"])

    def _was_promoted(self, key: bytes, first: int, end: int) -> bool:
        """Whether this request had the chunk fetched from disk."""
        history = self.history
        if not self.has_disk:
            return False
        fetched = False
        for place in history.arrivals("host", key, first, end):
            on_disk = history.lies_in("disk", key, place) or not history.tells("disk")
            # What lies on the device at that moment was stored from there, and not fetched.
            if on_disk and not history.lies_in("device", key, place) and (place, key) not in self._promoted:
                # All of them: what is evicted before a request's turn comes is fetched for it again.
                self._promoted.add((place, key))
                fetched = True
        return fetched
