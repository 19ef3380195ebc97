"""What moved between the tiers of an arm, by the engine's counters over the measured parts, and what became of the
blocks in them, by its events over whole rounds. Bytes, blocks, seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd

from kvbench.judge.case import JudgedRound
from kvbench.judge.phases import measured_start
from kvbench.judge.quality import Movement, TierLives

__all__ = ["CASCADE", "lookup_wait", "moved_bytes", "movement", "preemptions", "tier_lives", "written_bytes"]

CASCADE = "host to disk (cascade)"
WAYS = {
    "device to host (store)": ("host_store_bytes", "host_store_seconds"),
    "host to device (load)": ("host_load_bytes", "host_load_seconds"),
    "disk to host (promotion)": ("disk_read_bytes", "disk_read_seconds"),
    CASCADE: ("disk_write_bytes", "disk_write_seconds"),
}
GIB = 2**30


def movement(rounds: Sequence[JudgedRound]) -> list[Movement]:
    """Every way that the engine counts and on which anything moved."""
    found = []
    for way, (size, time) in WAYS.items():
        amount, seconds = _total(rounds, size), _total(rounds, time)
        if amount:
            speed = amount / GIB / seconds if seconds else None
            found.append(Movement(way=way, gib=amount / GIB, seconds=seconds, gib_per_s=speed))
    return found


def tier_lives(rounds: Sequence[JudgedRound]) -> list[TierLives]:
    """Of every tier that the engine told of in every round."""
    tables = [judged.recorded.lives for judged in rounds]
    if not tables or any(table.empty for table in tables):
        return []
    rows = pd.concat(tables, ignore_index=True)
    return [_lives(str(tier), part) for tier, part in rows.groupby("tier", sort=False) if len(part) == len(tables)]


def _lives(tier: str, rows: pd.DataFrame) -> TierLives:
    medians = {
        name: None if rows[name].isna().all() else float(rows[name].median())
        for name in ("lifetime_p50_s", "reuse_gap_p50_s")
    }
    unread = rows["never_read"]
    return TierLives(
        tier=tier,
        stored=int(rows["stored"].sum()),
        removed=int(rows["removed"].sum()),
        never_read=None if unread.isna().any() else int(unread.sum()),
        **medians,
    )


def lookup_wait(rounds: Sequence[JudgedRound]) -> float | None:
    """Mean over the requests that waited; None: none did, or the engine does not tell."""
    seconds, count = _total(rounds, "host_lookup_time_sum"), _total(rounds, "host_lookup_time_count")
    return seconds / count if seconds is not None and count else None


def preemptions(rounds: Sequence[JudgedRound]) -> float | None:
    """In all rounds."""
    return _total(rounds, "preemptions")


def written_bytes(rounds: Sequence[JudgedRound]) -> float | None:
    """To disk, a round, its filling included: what the tier keeps at most. vLLM's file tier counts chunks whose
    file exists already, of which it writes nothing."""
    total = _sum(rounds, lambda judged: judged.recorded.counters.increase("disk_write_bytes"))
    return total / len(rounds) if total else None


def moved_bytes(rounds: Sequence[JudgedRound], tier: str, share: float) -> float | None:
    """Out of a tier, in whole chunks and used or not, as the engine counts; None: it does not count that.

    Loads to the device are counted whatever tier they came from: `share` of their tokens came from this one.
    """
    if tier == "disk":
        return _total(rounds, "disk_read_bytes")
    loaded = _total(rounds, "host_load_bytes")
    return None if loaded is None else share * loaded


def _total(rounds: Sequence[JudgedRound], name: str) -> float | None:
    return _sum(rounds, lambda judged: judged.recorded.counters.increase(name, measured_start(judged.workload)))


def _sum(rounds: Sequence[JudgedRound], of: Callable[[JudgedRound], float | None]) -> float | None:
    each = [of(judged) for judged in rounds]
    known = [value for value in each if value is not None]
    return sum(known) if known and len(known) == len(each) else None
