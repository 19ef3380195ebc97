"""How long steps take: costs of what is in them, times the moment's noise, and stalls. Seconds."""

from __future__ import annotations

import math
from typing import NamedTuple

from kvbench.engine.emulated.noise import Variation
from kvbench.engine.emulated.request import Request
from kvbench.spec.emulation import Costs, Injections

__all__ = ["LONGEST_STRETCH", "Begun", "Pace", "Scheduled"]

LONGEST_STRETCH = 64
"""Decode steps taken together at most; the wandering level of the costs is looked up once for them."""

Scheduled = list[tuple[Request, int]]
"""Requests with the tokens that a step computes for each."""


class Begun(NamedTuple):
    """A step that has begun."""

    work_s: float
    """Without its own noise; equal steps after it take as much."""
    end_s: float
    streams: bool
    """Whether it decodes for anybody."""
    computes: bool
    """Whether it computes prompt tokens for anybody."""


class Pace:
    """One for a launch: what varies goes on over a restart."""

    def __init__(self, costs: Costs, injections: Injections, variation: Variation) -> None:
        slow = injections.slow_steps.factor if injections.slow_steps else 1.0
        self._step_s, self._sequence_s = costs.step * slow, costs.sequence * slow
        self._token_s, self._context_s = costs.token * slow, costs.token_context * slow
        self._cached_s = costs.cached_context * slow
        self._stalls = injections.stalls
        self._stall_at_s = math.inf
        self._variation = variation

    def arrived(self, now_s: float) -> None:
        """A request has come; the first stall is due from the first one on."""
        if self._stalls is not None and self._stall_at_s == math.inf:
            self._stall_at_s = now_s + self._stalls.every

    def begin(self, step: Scheduled, now_s: float) -> Begun:
        """A step that begins now."""
        work_s, streams, computes = self._step_s, False, False
        for request, count in step:
            if count == 1 and request.computed >= request.prompt_tokens:
                work_s += self._sequence_s
                streams = True
            else:
                computes = True
                computed = count + request.useless_tokens
                request.useless_tokens = 0
                work_s += computed * (self._token_s + self._context_s * (request.computed + count / 2))
                if request.computed == request.cached_tokens:
                    work_s += self._cached_s * request.computed
        work_s *= self._variation.factor(now_s)
        end_s = self._after(now_s, work_s, self._variation.single(), streams=streams)
        return Begun(work_s, end_s, streams, computes)

    def go_on(self, begun: Begun, most: int, until_s: float) -> list[float]:
        """Ends of up to `most` equal steps after it, as far as they end by `until_s`."""
        if self._stalls is None or not begun.streams:
            return self._variation.stretch(begun.end_s, begun.work_s, most, until_s)
        ends_s: list[float] = []
        end_s = begun.end_s
        for _ in range(most):
            end_s = self._after(end_s, begun.work_s, self._variation.single(), streams=True, until_s=until_s)
            if end_s > until_s:
                self._variation.put_back()
                break
            ends_s.append(end_s)
        return ends_s

    def _after(
        self, now_s: float, work_s: float, single: float, *, streams: bool, until_s: float = math.inf
    ) -> float:
        """The end of a step; only one in which a stream is under way stalls. Beyond `until_s` it is not taken."""
        end_s = now_s + work_s * single
        if streams and end_s >= self._stall_at_s and self._stalls is not None:
            end_s += self._stalls.by
            if end_s <= until_s:
                self._stall_at_s = end_s + self._stalls.every
        return end_s
