"""From segments to token ids and their JSON. A token depends on its segment's identity and its position alone.

Counter-based and vectorised: the load driver makes prompts while it sends, and must not be late because of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvbench.errors import InputError
from kvbench.workload.canaries import CANARY_TOKENS, EVERY_TOKENS, OFFSET_TOKENS
from kvbench.workload.schedule import PlannedRequest, Segment

__all__ = ["Ids", "PromptWriter", "prompt_digest", "text_digest"]

Ids = NDArray[np.int32]
"""Token ids, one dimension."""

_FEWEST_IDS = 16
"""With 16 ids or more, two blocks of at least 16 tokens are equal by chance less than once in 2**64."""
_WEYL = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
"""SplitMix64 (Steele, Lea, Flood 2014): word n is the finaliser of seed + n * _WEYL, so any position is direct."""
_MASK = (1 << 64) - 1


class PromptWriter:
    """Writes prompts out of the ids from `token_id_range[0]` to `token_id_range[1]`, both included.

    InputError when the range has too few ids to tell blocks apart.
    """

    def __init__(self, token_id_range: tuple[int, int]) -> None:
        low, high = token_id_range
        if low < 0 or high - low + 1 < _FEWEST_IDS:
            raise InputError(
                f"token_id_range [{low}, {high}] has too few ids to make prompts that differ",
                do=f"give at least {_FEWEST_IDS} ids from 0, such as [32, 255]",
            )
        self._low = low
        self._size = high - low + 1
        self._steps = np.empty(0, np.uint64)
        self._json = _JsonTable(high)

    def segment_ids(self, segment: Segment) -> Ids:
        """The tokens of a segment; int32, `segment.tokens` of them."""
        pairs = (segment.tokens + 1) // 2
        words = self._words(_mixed(segment.identity), pairs)
        ids = np.empty(2 * pairs, np.int32)
        size, low = np.uint64(self._size), np.uint64(self._low)
        # One 64-bit word gives two tokens: each half, as a fraction of 2**32, times the size of the range.
        ids[0::2] = (((words & np.uint64(0xFFFFFFFF)) * size) >> np.uint64(32)) + low
        words >>= np.uint64(32)
        words *= size
        words >>= np.uint64(32)
        words += low
        ids[1::2] = words
        ids = ids[: segment.tokens]
        if segment.canary is not None and segment.tokens > OFFSET_TOKENS:
            for place, token in enumerate(self.segment_ids(Segment(segment.canary, CANARY_TOKENS)), OFFSET_TOKENS):
                ids[place::EVERY_TOKENS] = token
        return ids

    def prompt_ids(self, request: PlannedRequest, carried_tokens: Sequence[int] | Ids = ()) -> Ids:
        """The whole prompt: what the session carries (last prompt and what it returned), then its own segments."""
        parts = [self.segment_ids(segment) for segment in request.segments]
        return np.concatenate([np.asarray(carried_tokens, np.int32), *parts])

    def prompt_json(self, request: PlannedRequest, carried_tokens: Sequence[int] | Ids = ()) -> bytes:
        """The whole prompt as a JSON array of ids."""
        return self.ids_json(self.prompt_ids(request, carried_tokens))

    def ids_json(self, ids: Sequence[int] | Ids) -> bytes:
        """A JSON array of ids from 0, also beyond the range; shorter ids are padded with blanks."""
        array = np.asarray(ids, np.int32)
        highest = int(array.max(initial=0))
        if highest > self._json.highest:
            self._json = _JsonTable(highest)
        return self._json.encode(array)

    def _words(self, seed: int, count: int) -> NDArray[np.uint64]:
        """`count` words of SplitMix64 from `seed`."""
        if len(self._steps) < count:
            self._steps = np.arange(max(count, 2 * len(self._steps)), dtype=np.uint64) * np.uint64(_WEYL)
        words = self._steps[:count] + np.uint64(seed)
        shifted = np.empty_like(words)
        for shift, factor in ((30, _MIX_1), (27, _MIX_2)):
            np.right_shift(words, np.uint64(shift), out=shifted)
            words ^= shifted
            words *= np.uint64(factor)
        np.right_shift(words, np.uint64(31), out=shifted)
        words ^= shifted
        return words


def prompt_digest(ids: Sequence[int] | Ids) -> str:
    """32 hex digits (BLAKE2b) over the ids as little-endian 32-bit numbers."""
    return hashlib.blake2b(np.ascontiguousarray(ids, "<i4").tobytes(), digest_size=16).hexdigest()


def text_digest(text: bytes) -> str:
    """32 hex digits (BLAKE2b) over a prompt that is sent as text."""
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def _mixed(identity: int) -> int:
    """Identities that are close must not start close: the words of one would be those of the other, moved along."""
    word = (identity + _WEYL) & _MASK
    word = ((word ^ (word >> 30)) * _MIX_1) & _MASK
    word = ((word ^ (word >> 27)) * _MIX_2) & _MASK
    return word ^ (word >> 31)


class _JsonTable:
    """The text of every id from 0 to `highest`: a comma, then the number, padded in front to one width."""

    def __init__(self, highest: int) -> None:
        self.highest = highest
        width = len(str(highest))
        text = np.char.rjust(np.arange(highest + 1).astype(f"S{width}"), width)
        self._entries = np.char.add(b",", text).view(f"V{width + 1}")

    def encode(self, ids: Ids) -> bytes:
        if len(ids) == 0:
            return b"[]"
        text = bytearray(self._entries.take(ids).tobytes())
        text[0] = ord("[")
        text += b"]"
        return bytes(text)
