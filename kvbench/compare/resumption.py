"""What a stopped run still has: whether it is the run that was begun, and which rounds must be recorded again."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from kvbench.compare.stored import read_round
from kvbench.errors import InputError, Where
from kvbench.judge.validity import unforgiven_alone
from kvbench.load.plan import PLAN_FILE
from kvbench.record.content import edited
from kvbench.record.journal import Journal
from kvbench.record.manifest import Manifest, RoundRecord
from kvbench.record.run_directory import RunDirectory

__all__ = ["missing", "take_up"]

TABLES = ("requests", "tokens", "metrics", "host")


def take_up(run: RunDirectory) -> Journal:
    """The journal of a stopped run, without the rounds whose tables are gone or damaged, and without those that are
    to be begun anew.

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
    lost = _lost(run, manifest)
    anew = _to_begin_anew(run, manifest, lost)
    journal = Journal(run, manifest)
    for record in lost:
        journal.mark_lost(record)
    for index, kept in anew.items():
        journal.begin_anew(index, kept)
    return journal


def missing(run: RunDirectory, manifest: Manifest) -> list[tuple[str, int]]:
    """(arm, round) of everything that a resumption may record; a verdict that is certain needs less."""
    lost = _lost(run, manifest)
    anew = _to_begin_anew(run, manifest, lost)
    there = {
        (record.arm, record.index) for record in manifest.rounds if record.state == "done" and record not in lost
    }
    there -= {(arm, index) for arm, index in there if index in anew and arm not in anew[index]}
    wanted = [(arm.name, index) for index in range(1, manifest.rounds_planned + 1) for arm in manifest.arms]
    return [key for key in wanted if key not in there]


def _to_begin_anew(run: RunDirectory, manifest: Manifest, lost: list[RoundRecord]) -> dict[int, set[str]]:
    """Rounds that an attached server was sent, whole or in part, without a recording that counts. It may still hold
    their prompts, so nobody plays them again: the second time would be faster, or have more hits, for that alone.

    With each, the arms whose recording stays nevertheless, since it shows what a repeat would hide.
    """
    there = {(r.arm, r.index): r for r in manifest.rounds if r.state == "done" and r not in lost}
    sent = {(r.arm, r.index) for r in lost}
    attached = [arm.name for arm in manifest.arms if arm.profile.engine.kind == "attached"]
    anew: dict[int, set[str]] = {}
    for index in range(1, manifest.rounds_planned + 1):
        without = [(arm, index) for arm in attached if (arm, index) not in there]
        if any(key in sent or _was_driven(run, *key) for key in without):
            records = [record for (_, at), record in there.items() if at == index]
            anew[index] = {record.arm for record in records if _shows_a_fault(run, manifest, record)}
    return anew


def _was_driven(run: RunDirectory, arm: str, index: int) -> bool:
    """Whether requests of a round may have been sent, whatever came of them."""
    return (run.round_directory(arm, index) / PLAN_FILE).exists()


def _shows_a_fault(run: RunDirectory, manifest: Manifest, record: RoundRecord) -> bool:
    return unforgiven_alone(read_round(run, record), manifest.rules, manifest.workload)


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
