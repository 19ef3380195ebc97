"""How scraping went: whose fault a missing scrape is. Pure; times in seconds on the monotonic clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from kvbench.judge.evidence import ScrapeSummary

__all__ = ["Attempt", "Result", "summarise"]

VANISHED_AFTER = 3
"""So many answers without metrics in a row, up to the end, are no hiccup of a proxy."""


class Result(StrEnum):
    """What became of one scrape."""

    OK = "ok"
    NO_METRICS = "no metrics"
    """The server answered, but not with metrics (404, or a page)."""
    UNREACHABLE = "unreachable"
    """Nothing listens there."""
    STALLED = "stalled"
    """The server did not answer in time, or with a failure of its own (5xx)."""


@dataclass(frozen=True)
class Attempt:
    """One scrape, from sending the request to the last byte or the failure."""

    started: float
    ended: float
    result: Result


def summarise(
    attempts: Sequence[Attempt],
    *,
    span: tuple[float, float],
    period_s: float,
    answered_until: float | None = None,
) -> ScrapeSummary:
    """Coverage of `span` (the measured part) and the longest gap that is ours.

    While we wait for the server, the beats that pass are the engine's: they count as `engine_stalled`. A gap is
    ours when nobody was asking. `answered_until` is when requests were last seen to be answered: metrics that
    nothing serves before that have vanished; without it, refused connections may mean an engine that died.
    """
    inside = [attempt for attempt in attempts if span[0] <= attempt.started < span[1]]
    stalled = sum(attempt.result in (Result.STALLED, Result.UNREACHABLE) for attempt in inside)
    waited = sum(int((attempt.ended - attempt.started) / period_s) for attempt in inside)
    return ScrapeSummary(
        expected=max(1, int((span[1] - span[0]) / period_s)),
        succeeded=sum(attempt.result is Result.OK for attempt in inside),
        longest_gap_ours_s=_longest_gap(attempts, span, period_s),
        engine_stalled=stalled + waited,
        supported=any(attempt.result is Result.OK for attempt in attempts),
        vanished=_vanished(attempts, answered_until),
    )


def _longest_gap(attempts: Sequence[Attempt], span: tuple[float, float], period_s: float) -> float:
    """Two scrapes that nothing held up lie one period apart; waiting for an answer counts for no more than that."""
    asked_until = max([span[0], *(a.ended for a in attempts if a.started < span[0])])
    edges = [Attempt(asked_until, asked_until, Result.OK)]
    edges += [a for a in attempts if span[0] <= a.started < span[1]]
    edges += [Attempt(span[1], span[1], Result.OK)]
    gaps = [b.started - a.ended + min(a.ended - a.started, period_s) for a, b in pairwise(edges)]
    return max(gaps, default=0.0)


def _vanished(attempts: Sequence[Attempt], answered_until: float | None) -> bool:
    last_ok = max((i for i, attempt in enumerate(attempts) if attempt.result is Result.OK), default=None)
    if last_ok is None:
        return False
    after = attempts[last_ok + 1 :]
    gone = [a for a in after if a.result is Result.NO_METRICS]
    if answered_until is not None:
        gone += [a for a in after if a.result is Result.UNREACHABLE and a.ended < answered_until]
    return len(gone) >= VANISHED_AFTER
