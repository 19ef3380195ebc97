"""The ledger of a recorded round: made from what lies in the round's directory, and written beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from kvbench.engine.lmcache import via_lmcache
from kvbench.engine.vllm import blocks_per_chunk
from kvbench.errors import RecordError
from kvbench.ledger.account import RoundEvidence, Splits, account
from kvbench.ledger.lives import lives
from kvbench.record.atomic import write_table, write_text
from kvbench.record.manifest import Manifest, RoundRecord
from kvbench.record.run_directory import RunDirectory
from kvbench.record.tables import KV_EVENTS, METRICS, REQUESTS
from kvbench.spec.profile import Profile
from kvbench.workload.storage import read_schedule

__all__ = ["keep_told", "rebuild_ledgers", "write_ledger"]

TOLD_NAME = "engine_sources.json"
"""Of an engine that tells the sources of each request: request id → cached tokens by tier."""
EVERY_TIER = ("device", "host", "disk")


def keep_told(directory: Path, told: Splits) -> None:
    """Store what an engine told about single requests."""
    write_text(directory / TOLD_NAME, json.dumps({str(id_): split for id_, split in told.items()}) + "\n")


def write_ledger(run: RunDirectory, profile: Profile, record: RoundRecord) -> None:
    """Make `ledger.parquet` of a round anew. RecordError when what it is made from is damaged."""
    directory = run.round_directory(record.arm, record.index)
    schedule = run.schedule_path(record.index)
    if not (directory / "requests.parquet").exists():
        return
    events = run.read_table(record.arm, record.index, "kv_events", KV_EVENTS)
    evidence = RoundEvidence(
        requests=run.read_table(record.arm, record.index, "requests", REQUESTS),
        metrics=run.read_table(record.arm, record.index, "metrics", METRICS),
        tiers=_tiers(profile, record),
        kv_events=None if events.empty else events,
        told=_told(directory / TOLD_NAME),
        schedule=read_schedule(schedule) if schedule.exists() and not events.empty else None,
        token_id_range=record.token_id_range,
        blocks_per_chunk=blocks_per_chunk(profile),
        events_tell_tiers=not via_lmcache(profile),
    )
    write_table(directory / "ledger.parquet", account(evidence))
    if evidence.history is not None:
        write_table(directory / "lives.parquet", lives(evidence.history))


def rebuild_ledgers(run: RunDirectory, manifest: Manifest) -> None:
    """Of every round that counts."""
    for record in manifest.rounds:
        if record.state == "done":
            write_ledger(run, manifest.arm(record.arm).profile, record)


def _tiers(profile: Profile, record: RoundRecord) -> tuple[str, ...]:
    """What the engine has; of a server that was running, what cannot be excluded."""
    if record.capacities.get("host_bytes") == 0:
        return ("device",)
    return EVERY_TIER if profile.engine.kind == "attached" else profile.tier_names


def _told(path: Path) -> Splits | None:
    if not path.exists():
        return None
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
        return {int(id_): _split(split) for id_, split in read.items()}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise RecordError(f"cannot read {path}: {error}", do="the file is damaged; record the run again") from error


def _split(told: Mapping[str, object]) -> dict[str, int]:
    return {tier: int(str(told[tier])) for tier in EVERY_TIER if tier in told}
