"""What a question about the history is about: rows of the store, or an error that says what there is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from kvbench.errors import InputError
from kvbench.history.store import FOLDER, read
from kvbench.spec.spelling import did_you_mean

__all__ = ["selected"]


def selected(results: Path, rules: Sequence[str], candidate: str | None) -> pd.DataFrame:
    """Rows of `candidate` (all when None). InputError: nothing recorded, or an unknown rule or candidate."""
    rows = read(results)
    if rows.empty:
        raise InputError(
            f"nothing is recorded in {results / FOLDER}",
            do="record a comparison with `kvbench compare ... --record`, or name its results folder with --out",
        )
    if candidate is not None:
        _known("candidate", candidate, rows["candidate"])
        rows = rows[rows["candidate"] == candidate].reset_index(drop=True)
    for rule in rules:
        _known("rule", rule, rows["rule"])
    return rows


def _known(what: str, name: str, column: pd.Series) -> None:
    names = sorted(set(column.astype(str)))
    if name not in names:
        raise InputError(f"no recorded {what} is named '{name}'{did_you_mean(name, names, f'{what}s')}")
