"""Whether both arms were offered what the schedule says. Requests whose time the schedule fixes are compared; later
turns and closed loops follow the server and cannot be."""

from __future__ import annotations

import numpy as np
import pandas as pd

from kvbench.judge import wording
from kvbench.judge.columns import Bools, Rows, numbers, rows
from kvbench.judge.evidence import ArmRound
from kvbench.spec.workload import Workload

__all__ = ["load_differences", "never_sent", "prompt_differences"]

SAME_TIME_S = 1e-3
"""Intended times come from one schedule; this allows for their way through a table and a change of zero."""


def never_sent(recorded: ArmRound, workload: Workload) -> list[str]:
    """Requests whose time the schedule fixes and that were still never sent."""
    table = recorded.requests
    if workload.arrivals.process == "closed" or not len(table):
        return []
    phases = [phase.name for phase in workload.phases if phase.measured]
    first_turn = table["session"].isna() | (table["turn"] <= table["turn"].min())
    lost = int(((table["status"] == "unsent") & first_turn & table["phase"].isin(phases)).sum())
    return [f"{lost:,} of {wording.count(len(table), 'scheduled request')}"] if lost else []


def prompt_differences(recorded: ArmRound, tolerated: float) -> list[str]:
    """Completed requests whose prompt the engine counted differently from the plan."""
    table = recorded.requests
    engine, planned = numbers(table, "prompt_tokens_engine"), numbers(table, "prompt_tokens_planned")
    told = (table["status"] == "ok").to_numpy(dtype=bool) & ~np.isnan(engine) & ~np.isnan(planned)
    wrong = np.flatnonzero(told & (engine != planned))
    if len(wrong) <= tolerated * told.sum():
        return []
    one = wrong[0]
    return [
        f"{len(wrong):,} of {wording.count(int(told.sum()), 'completed request')}, such as {engine[one]:.0f} "
        f"instead of {planned[one]:.0f} tokens in request {int(table['id'].iloc[one])}"
    ]


def load_differences(baseline: ArmRound, candidate: ArmRound, workload: Workload) -> list[str]:
    """How the requests whose time the schedule fixes differ between the arms of a pair."""
    if workload.arrivals.process == "closed":
        return []
    one, other = (_scheduled(side.requests) for side in (baseline, candidate))
    if not np.array_equal(one.ids, other.ids):
        only_one, only_other = np.setdiff1d(one.ids, other.ids), np.setdiff1d(other.ids, one.ids)
        return [
            f"{len(only_one):,} requests went to {baseline.arm} alone, {len(only_other):,} to {candidate.arm} alone"
        ]
    differences = []
    for name, differ in (
        ("intended time", ~np.isclose(one.intended_s, other.intended_s, rtol=0, atol=SAME_TIME_S, equal_nan=True)),
        ("class", one.differs(other, "class")),
        ("prompt length", one.lengths != other.lengths),
        ("prompt", one.differs(other, "prompt_digest")),
    ):
        if differ.any():
            differences.append(f"{wording.count(int(differ.sum()), 'request')} with another {name}")
    return differences


class _Scheduled:
    """Requests of a table whose time the schedule fixes, in order of id."""

    def __init__(self, table: pd.DataFrame, chosen: Rows) -> None:
        self._table = table
        self._chosen = chosen
        self.ids = table["id"].to_numpy(dtype=np.int64)[chosen]
        self.intended_s = numbers(table, "intended_s")[chosen]
        self.lengths = np.nan_to_num(numbers(table, "prompt_tokens_planned")[chosen], nan=-1)

    def differs(self, other: _Scheduled, column: str) -> Bools:
        """Where both tables have a value and it is not the same."""
        ours, theirs = (side._table[column].iloc[side._chosen].reset_index(drop=True) for side in (self, other))
        both = (ours.notna() & theirs.notna()).to_numpy(dtype=bool)
        return both & ~(ours == theirs).to_numpy(dtype=bool, na_value=False)


def _scheduled(table: pd.DataFrame) -> _Scheduled:
    ids = table["id"].to_numpy(dtype=np.int64)
    scheduled = (table["intended_basis"] == "schedule").to_numpy(dtype=bool)
    if np.any(np.diff(ids[scheduled]) < 0):
        places = np.flatnonzero(scheduled)
        return _Scheduled(table, places[np.argsort(ids[places], kind="stable")])
    return _Scheduled(table, rows(scheduled))
