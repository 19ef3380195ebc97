"""What an engine has in it that was not empty when it was handed over: one prompt that somebody else sent."""

from __future__ import annotations

from kvbench.engine.emulated.request import Request
from kvbench.engine.emulated.scheduler import EmulatedCore

__all__ = ["leave_residue"]

PROMPT_TOKENS = 128
LONG_AGO_S = -3600.0
"""On the core's clock: it is over when the first request of a round comes."""


def leave_residue(core: EmulatedCore) -> None:
    """Play the prompt: its blocks lie in the tiers, no later prompt has them, and the counters have counted it."""
    blocks = PROMPT_TOKENS // core.sizes.block_tokens
    core.submit(Request(-1, PROMPT_TOKENS, 1, [-1 - block for block in range(blocks)]), LONG_AGO_S)
    core.advance(LONG_AGO_S / 2)
    core.take_finished()
