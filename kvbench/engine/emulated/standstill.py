"""Whether an engine in virtual time stands still, as `kvbench.compare.watch` tells it of a real one. Seconds."""

from __future__ import annotations

import math

from kvbench.engine.emulated.scheduler import EmulatedCore

__all__ = ["FROZEN_AFTER_S", "Standstill"]

FROZEN_AFTER_S = 60.0
"""Requests under way and no token for so long, or for as long as requests may take where that is shorter."""


class Standstill:
    """Looks at the core, once a second."""

    def __init__(self, core: EmulatedCore, request_timeout_s: float) -> None:
        self.patience_s = min(FROZEN_AFTER_S, request_timeout_s)
        self._core = core
        self._tokens = -1
        self._moved_s = -math.inf

    @property
    def text(self) -> str:
        """What it does, for a sentence about the engine."""
        return f"requests under way and no token for {self.patience_s:.0f} s"

    def look(self, now_s: float) -> bool:
        """Whether something is under way and has not moved for too long."""
        seen = self._core.read_gauges()
        tokens = seen.prompt_tokens + seen.generation_tokens
        if tokens != self._tokens or not seen.running + seen.waiting:
            self._tokens, self._moved_s = tokens, now_s
        return now_s - self._moved_s > self.patience_s
