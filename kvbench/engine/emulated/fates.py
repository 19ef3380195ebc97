"""What the injected truths do to single requests; the same for virtual time and for the server."""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.spec.emulation import Injections

__all__ = ["LEAKED_FROM", "Fate", "Fates", "chosen"]

LEAKED_FROM = 48
"""A leaked answer is another prompt from this token on: from the fourth block of sixteen."""
_GOLDEN = 0.6180339887498949
"""Spreads the kinds of faults over the numbers, so that they seldom meet in one request."""


def chosen(share: float, number: int, kind: int) -> bool:
    """Whether the request of this number is one of a share: evenly spread, so the share is exact and not drawn."""
    phase = kind * _GOLDEN
    return int((number + 1) * share + phase) > int(number * share + phase)


@dataclass(frozen=True, slots=True)
class Fate:
    """How one request will go."""

    error: bool = False
    held_s: float = 0.0
    output_tokens: int = 0
    """How many will come."""
    dropped: bool = False
    """The answer ends without an end mark."""
    short: bool = False
    """It ends with one, and with finish_reason stop."""
    prompt_tokens: int = 0
    """As the server says."""


class Fates:
    """Decides by the number of the request since the launch, from 0."""

    def __init__(self, injections: Injections) -> None:
        self._injections = injections
        self._promoted = 0
        self._asked = 0

    def of(self, number: int, prompt_tokens: int, output_tokens: int) -> Fate:
        """The fate of a request that asks for so many tokens."""
        i = self._injections
        if i.errors is not None and chosen(i.errors.share, number, 1):
            return Fate(error=True)
        half = max(1, output_tokens // 2)
        dropped = i.dropped_streams is not None and chosen(i.dropped_streams.share, number, 2)
        short = i.short_outputs is not None and output_tokens > half and chosen(i.short_outputs.share, number, 3)
        tail = i.slower_tail
        held = tail is not None and number >= tail.after and chosen(tail.share, number, 4)
        more = i.miscounted_prompts.share if i.miscounted_prompts is not None else 0.0
        return Fate(
            held_s=tail.by if tail is not None and held else 0.0,
            output_tokens=half if dropped or short else output_tokens,
            dropped=dropped,
            short=short and not dropped,
            prompt_tokens=prompt_tokens + (max(1, round(more * prompt_tokens)) if more else 0),
        )

    def strikes(self, number: int) -> list[str]:
        """What happens to the engine as a whole just before the request of this number."""
        injected = self._injections
        events = {
            "counter_reset": injected.counter_reset,
            "restart": injected.restart,
            "death": injected.death,
            "freeze": injected.freeze,
        }
        return [name for name, event in events.items() if event is not None and event.after == number]

    def corrupts(self, promoted_tokens: int) -> bool:
        """Whether this answer has other tokens; asked once for each that a tier behind the device served."""
        if self._injections.corrupt_outputs is None or promoted_tokens == 0:
            return False
        self._promoted += 1
        return chosen(self._injections.corrupt_outputs.share, self._promoted - 1, 5)

    def leaks(self, promoted_tokens: int) -> bool:
        """Whether this answer is a passage of another prompt; asked once for each that such a tier served."""
        if self._injections.leaked_outputs is None or promoted_tokens == 0:
            return False
        self._asked += 1
        return chosen(self._injections.leaked_outputs.share, self._asked - 1, 6)
