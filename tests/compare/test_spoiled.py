"""Which rounds are repeated where several candidates share a baseline: none whose repeat would hide a fault."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvbench.compare.sequence import _spoiled
from kvbench.judge.evidence import ArmRound, EngineEvent
from kvbench.record.manifest import ArmRecord, Manifest
from tests.judge.build import BASELINE, TIERED, host_rows, pair, rules, workload

BUSY = {"host": host_rows(foreign=3.0)}
DIED = {"events": (EngineEvent("died", 31.0, "signal 9"),), "complete": False}
RESIDUE = {"residue": ("the disk tier holds 3 blocks before the first request",)}

OTHER = TIERED.model_copy(update={"name": "other"})
ARMS = [
    ArmRecord(name=profile.name, role=role, profile=profile)  # type: ignore[arg-type]
    for profile, role in ((BASELINE, "baseline"), (TIERED, "candidate"), (OTHER, "candidate"))
]
MANIFEST = Manifest(
    kvbench="0", name="x", run_id="x", kind="compare", state="running", created_utc="2026-01-01T00:00:00Z",
    host={}, seed=1, arms=ARMS, workload=workload(), rules=rules(), rounds_planned=3,
)  # fmt: skip


def rounds(**changes: dict[str, object]) -> dict[tuple[str, int], ArmRound]:
    """One sound round of every arm, some of them changed."""
    sound = pair(1, ratio=0.3, hits=0.5)
    arms = {"base": sound.baseline, "tiered": sound.candidate, "other": replace(sound.candidate, arm="other")}
    return {(name, 1): replace(arms[name], **changes.get(name, {})) for name in arms}  # type: ignore[arg-type]


def test_a_busy_host_in_one_arm_repeats_the_whole_group() -> None:
    assert _spoiled(MANIFEST, rounds(), 1) == []
    (sentence,) = _spoiled(MANIFEST, rounds(tiered=BUSY), 1)
    assert "something else used the host" in sentence
    assert len(_spoiled(MANIFEST, rounds(base=BUSY), 1)) == 1, "what both pairs share is said once"


@pytest.mark.parametrize("fault", [DIED, RESIDUE], ids=["died", "residue"])
def test_a_repeat_never_hides_what_is_not_forgiven_in_another_candidate(fault: dict[str, object]) -> None:
    assert _spoiled(MANIFEST, rounds(tiered=BUSY, other=fault), 1) == []
    assert _spoiled(MANIFEST, rounds(tiered=fault, other=BUSY), 1) == []
