"""The sums of both arms' ledgers beside what their engines counted over the same time. Tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pandas as pd

from kvbench.judge.case import Case
from kvbench.judge.columns import numbers
from kvbench.judge.evidence import ArmRound
from kvbench.judge.quality import LedgerTotals
from kvbench.judge.round_ledger import UNATTRIBUTED
from kvbench.judge.sources import SOURCES

__all__ = ["arm_totals", "ledger_totals"]

COLUMNS = (*SOURCES, UNATTRIBUTED)


def ledger_totals(case: Case) -> list[LedgerTotals]:
    """Of both arms, over whole rounds; nothing of an arm without a ledger."""
    arms = (
        (case.comparison.baseline.name, [pair.baseline.recorded for pair in case.pairs]),
        (case.comparison.candidate.name, [pair.candidate.recorded for pair in case.pairs]),
    )
    return [totals for arm, rounds in arms if (totals := arm_totals(arm, rounds)) is not None]


def arm_totals(arm: str, rounds: Sequence[ArmRound]) -> LedgerTotals | None:
    """Of one arm; None unless every round has a ledger."""
    if not rounds or any(recorded.ledger.empty for recorded in rounds):
        return None
    tables = [recorded.ledger for recorded in rounds]
    tokens = {name: int(_sum(tables, name)) for name in COLUMNS}
    counters = {source: _counted(rounds, source) for source in SOURCES}
    prompt = _sum(tables, "prompt_tokens")
    evidence: Counter[str] = Counter()
    for table in tables:
        evidence.update({str(name): int(count) for name, count in table["evidence"].value_counts().items()})
    return LedgerTotals(
        arm=arm,
        requests=sum(map(len, tables)),
        evidence=dict(sorted(evidence.items())),
        tokens=tokens,
        counters=counters,
        mismatch_points={
            source: None if counted is None or not prompt else 100 * (tokens[source] - counted) / prompt
            for source, counted in counters.items()
        },
    )


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
