"""What a stopped run still has: whether it is the run that was begun, and which rounds must be recorded again."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from kvbench.errors import InputError, Where
from kvbench.record.content import edited
from kvbench.record.journal import Journal
from kvbench.record.manifest import Manifest, RoundRecord
from kvbench.record.run_directory import RunDirectory

__all__ = ["missing", "take_up"]

TABLES = ("requests", "tokens", "metrics", "host")


def take_up(run: RunDirectory) -> Journal:
    """The journal of a stopped run, without the rounds whose tables are gone or damaged.

    InputError when run.json was edited: a run that goes on under other rules, or with another workload, than it
    began with is no run.
    """
    manifest = run.read_manifest()
    changed = edited(manifest)
    if changed:
        raise InputError(
            f"changed since the run began: {', '.join(changed)}",
            where=Where(run.manifest_path),
            do="begin a new run with `kvbench compare`; rules are written down before a run",
        )
    journal = Journal(run, manifest)
    for record in _lost(run, manifest):
        journal.mark_lost(record)
    return journal


def missing(run: RunDirectory, manifest: Manifest) -> list[tuple[str, int]]:
    """(arm, round) of everything that a resumption may record; a verdict that is certain needs less."""
    lost = [(record.arm, record.index) for record in _lost(run, manifest)]
    wanted = [(arm.name, index) for index in range(1, manifest.rounds_planned + 1) for arm in manifest.arms]
    return [key for key in wanted if key in lost or manifest.done(*key) is None]


def _lost(run: RunDirectory, manifest: Manifest) -> list[RoundRecord]:
    """A round that only proved the engine has no tables, and no figures of the client either."""
    driven = [record for record in manifest.rounds if record.state == "done" and record.load]
    return [record for record in driven if not all(_is_whole(run, record, table) for table in TABLES)]


def _is_whole(run: RunDirectory, record: RoundRecord, table: str) -> bool:
    try:
        pq.read_metadata(run.round_directory(record.arm, record.index) / f"{table}.parquet")
    except (OSError, pa.ArrowException):
        return False
    return True
