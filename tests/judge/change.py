"""Rounds with something changed: the fault that a test is about. Everything here gives copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from kvbench.judge.evidence import ArmRound, EngineEvent, RoundPair
from tests.judge.build import (
    good_pairs,
)

Edit = Callable[[pd.DataFrame], None]


def with_candidate(pairs: Sequence[RoundPair], place: int, **changes: Any) -> list[RoundPair]:
    """The same pairs, the candidate's round at `place` changed."""
    changed = list(pairs)
    changed[place] = replace(changed[place], candidate=replace(changed[place].candidate, **changes))
    return changed


def with_baseline(pairs: Sequence[RoundPair], place: int, **changes: Any) -> list[RoundPair]:
    changed = list(pairs)
    changed[place] = replace(changed[place], baseline=replace(changed[place].baseline, **changes))
    return changed


def edited(recorded: ArmRound, edit: Callable[[pd.DataFrame], None]) -> ArmRound:
    """The round with its table of requests changed in place by `edit`."""
    table = recorded.requests.copy()
    edit(table)
    return replace(recorded, requests=table)


def candidate_edited(edit: Edit, place: int = 1) -> list[RoundPair]:
    pairs = good_pairs()
    return with_candidate(pairs, place, requests=edited(pairs[place].candidate, edit).requests)


def both_edited(edit: Edit) -> list[RoundPair]:
    pairs = good_pairs()
    for change, side in ((with_baseline, "baseline"), (with_candidate, "candidate")):
        pairs = change(pairs, 1, requests=edited(getattr(pairs[1], side), edit).requests)
    return pairs


def fail(table: pd.DataFrame, which: Any, error: str = "timeout: no answer") -> pd.DataFrame:
    """The same requests, some of them failed before a token came."""
    changed = table.copy()
    places = changed.index[which]
    changed.loc[places, "status"] = "error"
    changed.loc[places, "error"] = error
    changed.loc[places, ["first_token_s", "last_token_s"]] = np.nan
    changed.loc[places, ["output_digest"]] = None
    changed.loc[places, ["output_tokens_received"]] = 0
    return changed


def primed(recorded: ArmRound, *, failed: int = 0, of: int = 8, error: str = "timeout: no answer") -> pd.DataFrame:
    """The round's requests, and before them some that fill the tiers, the first of which failed."""
    first = recorded.requests.iloc[:of].copy()
    first["id"] += 1_000_000
    first[["phase", "measured", "intended_basis"]] = ["prime", False, "previous turn"]
    times = [name for name in first.columns if name.endswith("_s")]
    first[times] -= 100.0
    return pd.concat([fail(first, slice(0, failed), error), recorded.requests], ignore_index=True)


def leave(table: pd.DataFrame, which: Any, after_s: float) -> pd.DataFrame:
    """The same requests, the users of some gone so long after the intended time, before a token came."""
    changed = fail(table, which).astype({"cached_tokens": float})
    places = changed.index[which]
    changed.loc[places, "status"] = "aborted"
    changed.loc[places, "error"] = None
    changed.loc[places, "ended_s"] = changed.loc[places, "intended_s"] + after_s
    changed.loc[places, "cached_tokens"] = np.nan
    return changed


def setting(column: str, values: object, rows: object = slice(None)) -> Edit:
    def edit(table: pd.DataFrame) -> None:
        if isinstance(values, float) and table[column].dtype == np.int64:
            table[column] = table[column].astype(float)
        table.loc[rows, column] = values

    return edit


def after_sending(column: str, seconds: float, rows: object) -> Edit:
    """A time of some requests, as seconds after they were sent."""

    def edit(table: pd.DataFrame) -> None:
        table.loc[rows, column] = table.loc[rows, "sent_s"] + seconds

    return edit


def after_intended(seconds: float, rows: object = slice(None)) -> Edit:
    """Send times of some requests, as seconds after the intended time."""

    def edit(table: pd.DataFrame) -> None:
        table.loc[rows, "sent_s"] = table.loc[rows, "intended_s"] + seconds

    return edit


def late(table: pd.DataFrame) -> None:
    table.loc[:9, "sent_s"] = table["intended_s"] + 0.05


def unsent(table: pd.DataFrame) -> None:
    table.loc[399, "status"] = "unsent"
    table.loc[399, ["measured", "intended_basis"]] = [False, None]


def died(t_s: float = 40.0) -> EngineEvent:
    return EngineEvent("died", t_s, "exit code 137")
