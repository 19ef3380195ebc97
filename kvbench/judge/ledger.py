"""The sums of an arm's ledgers beside what its engine counted over the same time. Tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from kvbench.judge.columns import numbers
from kvbench.judge.evidence import ArmRound
from kvbench.judge.quality import LedgerTotals
from kvbench.judge.round_ledger import UNATTRIBUTED
from kvbench.judge.sources import SOURCES

__all__ = ["arm_totals"]

COLUMNS = (*SOURCES, UNATTRIBUTED)
MOST_OFF = 2.0
"""Points of prompt tokens by which a ledger may differ from the counters. On vLLM 0.32 it was 0.00 over thousands
of requests at once and one by one; what two points hide shifts no median of a source."""


def arm_totals(arm: str, rounds: Sequence[ArmRound]) -> LedgerTotals | None:
    """Of one arm; None unless every round has a ledger."""
    if not rounds or any(recorded.ledger.empty for recorded in rounds):
        return None
    tables = [recorded.ledger for recorded in rounds]
    tokens = {name: int(_sum(tables, name)) for name in COLUMNS}
    counters = {source: _counted(rounds, source) for source in SOURCES}
    prompt = _sum(tables, "prompt_tokens")
    off = {
        source: None if counted is None or not prompt else 100 * (tokens[source] - counted) / prompt
        for source, counted in counters.items()
    }
    evidence: Counter[str] = Counter()
    for table in tables:
        evidence.update({str(name): int(count) for name, count in table["evidence"].value_counts().items()})
    return LedgerTotals(
        arm=arm,
        requests=sum(map(len, tables)),
        evidence=dict(sorted(evidence.items())),
        tokens=tokens,
        counters=counters,
        mismatch_points=off,
        distrusted=_distrusted(arm, off, 100 * tokens[UNATTRIBUTED] / prompt if prompt else 0.0),
    )


def _distrusted(arm: str, off: Mapping[str, float | None], open_points: float) -> str | None:
    """What is unattributed may be of any source, so that much may be missing from each."""
    for source, points in off.items():
        if points is not None and not -MOST_OFF - open_points <= points <= MOST_OFF:
            more = "more" if points > 0 else "fewer"
            return (
                f"the ledger of {arm} has {abs(points):.1f} points {more} prompt tokens from {source} than the "
                f"engine counted (at most {MOST_OFF:g} are let pass), so nothing is told by request"
            )
    return None


def _sum(tables: Sequence[pd.DataFrame], column: str) -> float:
    return sum(float(np.nansum(numbers(table, column))) for table in tables)


def _counted(rounds: Sequence[ArmRound], source: str) -> float | None:
    """What the engine counted from the first scrape of each round to the last."""
    each = [_increase(recorded, source) for recorded in rounds]
    known = [value for value in each if value is not None]
    return sum(known) if len(known) == len(each) else None


def _increase(recorded: ArmRound, source: str) -> float | None:
    times = recorded.counters.source_times()
    return recorded.counters.by_source(float(times[0]))[source] if len(times) else None
