"""What promotions did to everybody else: requests without any, while others were promoted and while none was.

A request is promoted from its send to its first token. Requests of the same kind are compared by what is left of
their TTFT when the fitted cost of their own prompt is taken off. Seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kvbench.judge.case import Case, JudgedRound
from kvbench.judge.columns import Bools, Floats, median
from kvbench.judge.latency import CARRIES_BEYOND
from kvbench.judge.paired import Levels, estimate
from kvbench.judge.quality import Neighbours

__all__ = ["neighbours"]

FEWEST = 2 * CARRIES_BEYOND
"""Requests on either side of a round that carry a median."""


class _Round:
    """One round's requests without promotions, on both sides."""

    def __init__(self, judged: JudgedRound, own_cost_s: Floats) -> None:
        latencies, ledger = judged.latencies, judged.ledger
        first, sent = latencies.column("first_token_s"), latencies.column("sent_s")
        behind = ledger.promoted
        promoted = ledger.split & (behind > 0)
        others = ledger.split & (behind == 0) & ~np.isnan(first)
        self._spans = _merged(sent[promoted], first[promoted])
        during = _overlaps(self._spans, sent, first)
        self.service = latencies.per_request("ttft_service")
        self.left = self.service - own_cost_s
        self.sides: tuple[Bools, Bools] = (others & during, others & ~during)
        gaps, ends = latencies.gaps, latencies.gap_ends()
        of_others = gaps.of(others)
        lengths, ends = gaps.values[of_others], ends[of_others]
        in_gap = _overlaps(self._spans, ends - lengths, ends)
        self.gaps = (lengths[in_gap], lengths[~in_gap])

    @property
    def carried(self) -> bool:
        return all(int(side.sum()) >= FEWEST for side in self.sides)

    @property
    def effect_s(self) -> float:
        during, quiet = (median(self.left[side]) for side in self.sides)
        return during - quiet


def neighbours(case: Case, own_costs_s: Sequence[Floats]) -> Neighbours | None:
    """`own_costs_s`: of each pair what every request of the candidate costs by the fitted line, or zeros. None: no
    round has enough requests on both sides."""
    rounds = [_Round(pair.candidate, cost) for pair, cost in zip(case.pairs, own_costs_s, strict=True)]
    carried = {place: found for place, found in enumerate(rounds) if found.carried}
    if not carried:
        return None
    units = case.units.only(list(carried))
    found = estimate(
        units.average({place: each.effect_s for place, each in carried.items()}),
        units.look,
        confidence=case.confidence,
        levels=Levels(case.alpha, case.alpha),
    )
    every = carried.values()
    during, quiet = (np.concatenate([each.service[each.sides[side]] for each in every]) for side in (0, 1))
    itl = [_itl(np.concatenate([each.gaps[side] for each in every])) for side in (0, 1)]
    return Neighbours(
        during=len(during),
        quiet=len(quiet),
        ttft_service_during_s=median(during),
        ttft_service_quiet_s=median(quiet),
        effect_s=found.mean,
        effect_ci=found.ci,
        itl_during_p50_s=itl[0][0],
        itl_during_p99_s=itl[0][1],
        itl_quiet_p50_s=itl[1][0],
        itl_quiet_p99_s=itl[1][1],
    )


def _itl(gaps: Floats) -> list[float | None]:
    """p50 and p99, as far as the gaps carry them."""
    wanted = (0.5, 0.99)
    figures = np.quantile(gaps, wanted).tolist() if len(gaps) else [math.nan, math.nan]
    carried = [len(gaps) * (1 - quantile) >= CARRIES_BEYOND for quantile in wanted]
    return [figure if enough else None for figure, enough in zip(figures, carried, strict=True)]


def _merged(starts: Floats, ends: Floats) -> tuple[Floats, Floats]:
    """Intervals that overlap as one; in order."""
    order = np.argsort(starts)
    starts, ends = starts[order], np.maximum.accumulate(ends[order]) if len(ends) else ends
    opens = np.ones(len(starts), dtype=bool)
    opens[1:] = starts[1:] > ends[:-1]
    closes = np.append(opens[1:], True) if len(opens) else opens
    return starts[opens], ends[closes]


def _overlaps(spans: tuple[Floats, Floats], starts: Floats, ends: Floats) -> npt.NDArray[np.bool_]:
    """Whether each interval shares a moment with any of the spans."""
    begins, over = spans
    if not len(begins):
        return np.zeros(len(starts), dtype=bool)
    at = np.searchsorted(over, starts, side="left")
    inside = at < len(begins)
    return np.asarray(inside & (begins[np.minimum(at, len(begins) - 1)] <= ends))
