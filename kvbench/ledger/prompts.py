"""The token ids of a round's prompts, made again from its schedule, as far as they are known beforehand."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kvbench.ledger.history import UNKNOWN, Prompt
from kvbench.workload.prompts import PromptWriter
from kvbench.workload.schedule import PlannedRequest, Schedule, Segment

__all__ = ["Prompts"]

KEPT_SEGMENTS = 512
"""Contents that are kept for the next prompt that begins with them."""


class Prompts:
    """Prompts by request id."""

    def __init__(self, schedule: Schedule, token_id_range: tuple[int, int], received: Mapping[int, int]) -> None:
        """`received`: how many tokens each answer had; what they were is not kept."""
        self._writer = PromptWriter(token_id_range)
        self._requests = {request.id: request for request in schedule.in_order()}
        self._received = received
        self._kept: dict[Segment, Prompt] = {}

    def tokens(self, id_: int, most: int) -> Prompt:
        """The first `most` tokens of a prompt; the tokens of an answer that it carries are `UNKNOWN`."""
        parts: list[Prompt] = []
        total = 0
        for part in self._parts(id_):
            ids = np.full(part, UNKNOWN, np.int32) if isinstance(part, int) else self._segment(part)
            parts.append(ids[: most - total])
            total += len(parts[-1])
            if total >= most:
                break
        return np.concatenate(parts) if parts else np.empty(0, np.int32)

    def _parts(self, id_: int) -> list[Segment | int]:
        """Contents and, for answers, lengths: all turns that the prompt carries, then its own."""
        turns: list[PlannedRequest] = []
        request: PlannedRequest | None = self._requests.get(id_)
        while request is not None:
            turns.append(request)
            carries = request.carries and request.continues is not None
            request = self._requests.get(request.continues) if carries and request.continues is not None else None
        parts: list[Segment | int] = []
        for turn in reversed(turns):
            parts += turn.segments
            if turn.id != id_:
                parts.append(self._received.get(turn.id, 0))
        return parts

    def _segment(self, segment: Segment) -> Prompt:
        ids = self._kept.get(segment)
        if ids is None:
            if len(self._kept) >= KEPT_SEGMENTS:
                self._kept.pop(next(iter(self._kept)))
            ids = self._kept[segment] = self._writer.segment_ids(segment)
        return ids
