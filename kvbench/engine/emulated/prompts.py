"""A schedule's prompts as the core takes them: keys of blocks. The tokens themselves are never made."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Sequence

from kvbench.engine.emulated.request import Request
from kvbench.workload.blocks import RequestBlocks, block_paths
from kvbench.workload.schedule import PlannedRequest, Schedule

__all__ = ["Prompts"]

REMEMBERED = 16
"""Prompts that an answer may leak."""

_paths = functools.lru_cache(maxsize=4)(block_paths)
"""The arms of a pair play the same schedule."""


class Prompts:
    """Every block of a schedule has a number, its key; prompts that share blocks share keys."""

    def __init__(self, schedule: Schedule, block_tokens: int) -> None:
        paths = _paths(schedule, block_tokens)
        self._blocks = {blocks.request.id: blocks for blocks in paths.requests}
        self._runs: list[Sequence[int]] = []
        first = 0
        for count in paths.run_blocks:
            self._runs.append(range(first, first + count))
            first += count
        self._sent: deque[RequestBlocks] = deque(maxlen=REMEMBERED)

    def tokens(self, planned: PlannedRequest) -> int:
        """Of the whole prompt."""
        return self._blocks[planned.id].prompt_tokens

    def request(self, planned: PlannedRequest, output_tokens: int) -> Request:
        """The request as it reaches the engine."""
        blocks = self._blocks[planned.id]
        self._sent.appendleft(blocks)
        keys: list[int] = []
        for run in blocks.sequence:
            numbers = self._runs[run]
            if isinstance(numbers, range):  # once: the same objects are found faster than equal ones
                self._runs[run] = numbers = list(numbers)
            keys += numbers
        return Request(planned.id, blocks.prompt_tokens, output_tokens, keys, past_secondary=planned.holdout)

    def other_than(self, planned: PlannedRequest) -> PlannedRequest | None:
        """The newest prompt that begins with another block; of sessions, first turns only."""
        head = self._blocks[planned.id].sequence[:1]
        others = (sent.request for sent in self._sent if sent.sequence[:1] != head)
        return next((other for other in others if other.continues is None), None)
