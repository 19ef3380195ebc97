"""What a disk tier would write, against what a drive is rated for. Bytes, bytes per day, years."""

from __future__ import annotations

from collections import Counter

from kvbench.plan.planned_arm import PlannedArm
from kvbench.workload.blocks import block_paths
from kvbench.workload.schedule import Schedule

__all__ = ["RATED_DRIVE_WRITES_A_DAY", "endurance", "written_bytes"]

RATED_DRIVE_WRITES_A_DAY = 1.0
"""Of data-centre drives for mixed use; read-intensive ones are rated at a third, write-intensive at three."""
_RATED_YEARS = 5.0


def written_bytes(schedule: Schedule, arm: PlannedArm) -> int:
    """Every different whole chunk that the host tier takes in, once: what a disk without eviction writes.

    By the profile's rules: prompts, or answers as well, and what has been offered as often as its threshold asks.
    """
    rules = arm.host_rules
    chunk_tokens = rules.chunk_tokens or arm.block_tokens
    paths = block_paths(schedule, chunk_tokens)
    offers = Counter(
        run for request in paths.requests for run in set(request.prompt if rules.prompt_only else request.sequence)
    )
    stored = (run for run, count in offers.items() if count >= rules.store_threshold)
    return sum(paths.run_blocks[run] for run in stored) * chunk_tokens * arm.token_bytes


def endurance(schedule: Schedule, arm: PlannedArm, written: int) -> dict[str, object]:
    """Writes of a day at the rate of this traffic. A disk that holds less than `written` writes again what comes
    back after it was evicted, so that the figures are the least then.
    """
    a_day = written * 86_400 / schedule.duration_s
    disk = arm.profile.tiers.disk
    size = disk.size_limit if disk is not None else None
    drive = size or max(written, arm.setting.disk_bytes)
    assumed = "assumed" if drive == arm.setting.disk_bytes else "as large as what this traffic writes"
    writes = a_day / drive
    return {
        "bytes_per_day": a_day,
        "at_least": written > drive,
        "drive_bytes": drive,
        "drive_source": "the profile's size_limit" if size else assumed,
        "drive_writes_per_day": writes,
        "rated_drive_writes_per_day": RATED_DRIVE_WRITES_A_DAY,
        "years": _RATED_YEARS * RATED_DRIVE_WRITES_A_DAY / writes if writes else None,
    }
