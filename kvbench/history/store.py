"""The history on disk: Parquet files in `<results>/history/`, one a recorded run, written once and never changed.

A file's name carries the digest of what it says, and it appears whole or not at all. So any number of kvbenchs may
write at the same time, on one machine or on a shared file system, and recording a run again changes nothing.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from kvbench.errors import RecordError
from kvbench.history.rows import HISTORY, content_digest, rows_of
from kvbench.judge.verdict import Verdict
from kvbench.record.atomic import write_table
from kvbench.record.manifest import Manifest

__all__ = ["FOLDER", "append", "read"]

FOLDER = "history"
NEEDED = ("run", "run_digest", "created", "recorded", "candidate", "rule", "status")
"""Columns that every version writes."""
FILE = pa.field("file", pa.string())


def append(results: Path, manifest: Manifest, verdict: Verdict) -> Path:
    """Record the verdict on a run in the history of `results`; the file that holds it. RecordError: refused."""
    table = rows_of(manifest, verdict, datetime.now(UTC))
    folder = results / FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordError(f"cannot make {folder}: {error.strerror or error}") from error
    path = folder / f"{_file_name(manifest.run_id)}.{content_digest(table)[:16]}.parquet"
    if not path.exists():
        write_table(path, table)
    return path


def _file_name(run: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", run)[:150].lstrip(".") or "run"


def read(results: Path) -> pd.DataFrame:
    """All rows, oldest run first; of a run that was recorded more than once, the last verdict.

    Columns as in `HISTORY`. Empty when nothing was recorded yet. RecordError names a file that cannot be read.
    """
    empty = HISTORY.append(FILE).empty_table()
    files = sorted((results / FOLDER).glob("*.parquet"))
    rows: pd.DataFrame = pa.concat_tables([empty, *map(_table, files)]).to_pandas()
    rows = rows.sort_values(["recorded", "file"], kind="stable")
    kept = rows[rows["file"] == rows.groupby("run_digest")["file"].transform("last")]
    kept = kept.sort_values(["created", "run", "candidate"], kind="stable")
    return kept.drop(columns="file").reset_index(drop=True)


def _table(file: Path) -> pa.Table:
    """One file in this version's columns: what an older one lacks is null, what a newer one adds is left out."""
    try:
        with pq.ParquetFile(file) as opened:
            table = opened.read()
        lacking = [name for name in NEEDED if name not in table.column_names]
        if lacking:
            raise pa.ArrowInvalid(f"it lacks {', '.join(lacking)}")
        columns = [
            table.column(field.name).cast(field.type)
            if field.name in table.column_names
            else pa.nulls(len(table), field.type)
            for field in HISTORY
        ]
        return pa.table([*columns, pa.array([file.name] * len(table))], schema=HISTORY.append(FILE))
    except (OSError, pa.ArrowException) as error:
        raise RecordError(
            f"cannot read {file}: {(str(error).splitlines() or [''])[0]}",
            do="it is damaged or no history of kvbench; move it out of that folder",
        ) from error
