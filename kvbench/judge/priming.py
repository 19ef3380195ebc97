"""Whether the requests that fill the tiers before a round were answered, so that the round began as planned."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvbench.judge import wording
from kvbench.judge.evidence import ArmRound

__all__ = ["Priming", "priming"]

_LONGEST_CAUSE = 80
"""Characters of an error, which may carry a server's own words."""
_NO_FAULT_OF_THE_ENGINE = ("short_output", "client_limit")
"""The KV of a prompt with a short answer was made; what the client lacked is a finding of its own."""


@dataclass(frozen=True)
class Priming:
    """Requests that the engine failed before time zero and in the measured part."""

    failed: int
    sent: int
    such_as: str
    """Why one of them failed."""
    failed_later: int
    measured: int

    @property
    def goes_on(self) -> bool:
        """Whether at least as many of the measured requests failed: the engine fails requests whenever it is asked,
        which rules on errors see, and its tiers are as they would be at any time."""
        return 0 < self.failed <= self.failed_later

    @property
    def text(self) -> str:
        """A clause without its full stop."""
        such_as = f", such as {self.such_as!r}" if self.such_as else ""
        return f"{self.failed:,} of {wording.count(self.sent, 'request')} that fill the tiers failed{such_as}"

    @property
    def text_later(self) -> str:
        """The same, and what became of the measured ones."""
        later = wording.count(self.measured, "measured request")
        return f"{self.text}, and {self.failed_later:,} of {later} as well"


def priming(recorded: ArmRound) -> Priming:
    """What one round of one arm says."""
    table = recorded.requests
    filling = (table["phase"] == "prime").to_numpy(dtype=bool)
    measured = table["measured"].to_numpy(dtype=bool)
    failed = np.array(table["status"] == "error", dtype=bool)
    errors = table["error"][failed].astype("string").fillna("")
    failed[failed] = ~errors.str.startswith(_NO_FAULT_OF_THE_ENGINE).to_numpy(dtype=bool)
    before = table["error"][failed & filling]
    return Priming(
        failed=len(before),
        sent=int(filling.sum()),
        such_as=str(before.iloc[0])[:_LONGEST_CAUSE] if len(before) else "",
        failed_later=int((failed & measured).sum()),
        measured=int(measured.sum()),
    )
