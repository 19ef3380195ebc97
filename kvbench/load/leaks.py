"""Looks for the canary text of other tenants in an answer. Needs the answer's token ids, or text of known words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from kvbench.load.plan import LoadPlan
from kvbench.load.stream import Completion
from kvbench.workload.canaries import CANARY_TOKENS
from kvbench.workload.prompts import PromptWriter
from kvbench.workload.schedule import Segment

__all__ = ["NO_CANARY", "CanaryFinder"]

NO_CANARY = -1
"""The answer was looked through and has no other tenant's canary in it."""
FEWEST_TOKENS = 8
CERTAIN_BITS = 64
"""So many consecutive tokens of a canary count as it, and at least `FEWEST_TOKENS`: by chance they stand at a given
place of an answer less than once in 2**64 (of a small vocabulary, as seldom as a whole canary)."""


class CanaryFinder:
    """Knows the canaries of one round as the arm's server would repeat them."""

    def __init__(self, canaries: Sequence[int], plan: LoadPlan) -> None:
        low, high = plan.token_id_range
        bits = math.log2(high - low + 1)
        self.window = min(CANARY_TOKENS, max(FEWEST_TOKENS, math.ceil(CERTAIN_BITS / bits)))
        """Tokens that count as a canary."""
        self._owners: dict[tuple[int, ...], int] = {}
        self._texts: list[tuple[str, int]] = []
        if not canaries:
            return
        writer = PromptWriter(plan.token_id_range)
        words = np.array(plan.words, object) if plan.words else None
        for tenant, identity in enumerate(canaries):
            ids = writer.segment_ids(Segment(identity, CANARY_TOKENS))
            for part in _windows(ids.tolist(), self.window):
                if words is None:
                    self._owners.setdefault(part, tenant)
                else:
                    self._texts.append(("".join(words[list(part)]), tenant))

    def foreign(self, tenant: int | None, completion: Completion) -> int | None:
        """The tenant, other than this one, whose canary is in the answer; `NO_CANARY`: none is. None: it cannot be
        told, because the answer is too short to hold one or its tokens are not known."""
        if tenant is None or len(completion.placed.times_ns) < self.window:
            return None
        if self._texts:
            found = (owner for text, owner in self._texts if owner != tenant and text in completion.text)
            return next(found, NO_CANARY)
        if not self._owners or completion.token_ids is None:
            return None
        owners = (self._owners.get(part, tenant) for part in _windows(completion.token_ids, self.window))
        return next((owner for owner in owners if owner != tenant), NO_CANARY)


def _windows(ids: Sequence[int], length: int) -> Iterator[tuple[int, ...]]:
    for start in range(len(ids) - length + 1):
        yield tuple(ids[start : start + length])
