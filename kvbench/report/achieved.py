"""What the load really was: rate, lengths and reuse of each class, as against what the workload asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from kvbench.report.data import RoundTables
from kvbench.report.plain import plain
from kvbench.report.series import ANSWERED, measured
from kvbench.report.wording import MISSING, show_share

__all__ = ["Achieved", "achieved"]


@dataclass(frozen=True)
class Achieved:
    """One arm and class, all rounds together; lengths are medians in tokens."""

    arm: str
    class_: str
    requests: str
    failed: str
    rate: str
    prompt_tokens: str
    output_tokens: str
    cached: str


def achieved(arm: str, rounds: Sequence[RoundTables]) -> list[Achieved]:
    """One row a class, of measured requests; empty when the arm has no round."""
    if not rounds:
        return []
    each = [measured(tables.requests) for tables in rounds]
    rows = pd.concat(each, ignore_index=True)
    span_s = sum(float(part["intended_s"].max() - part["intended_s"].min()) for part in each if len(part) > 1)
    return [_row(arm, str(name), part, span_s) for name, part in rows.groupby("class", sort=True)]


def _row(arm: str, class_: str, rows: pd.DataFrame, span_s: float) -> Achieved:
    completed = rows[rows["status"] == "ok"]
    known = completed[completed["cached_tokens"].notna() & completed["prompt_tokens_engine"].notna()]
    prompt = float(known["prompt_tokens_engine"].sum())
    return Achieved(
        arm=plain(arm),
        class_=plain(class_),
        requests=f"{len(rows):,}",
        failed=f"{int((~rows['status'].isin(ANSWERED)).sum()):,}",
        rate=f"{len(rows) / span_s:.3g}/s" if span_s > 0 else MISSING,
        prompt_tokens=_median(completed["prompt_tokens_engine"]),
        output_tokens=_median(completed["output_tokens_received"]),
        cached=show_share(float(known["cached_tokens"].sum()) / prompt) if prompt > 0 else MISSING,
    )


def _median(values: pd.Series[int]) -> str:
    known = values.dropna()
    return f"{float(known.median()):,.0f}" if len(known) else MISSING
