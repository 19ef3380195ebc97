"""Which rounds are recorded, in which order, and what a repeat sends."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvbench.compare.round import RoundJob, _schedule
from kvbench.compare.sequence import order_of
from kvbench.engine.base import Effective
from kvbench.record.journal import Journal
from kvbench.record.manifest import ArmRecord, Manifest
from kvbench.record.run_directory import RunDirectory
from kvbench.spec.profile import Profile
from kvbench.spec.rules import Rules
from kvbench.spec.workload import Workload
from kvbench.workload.schedule import Schedule

WORKLOAD = {
    "name": "w",
    "arrivals": {"process": "poisson", "rate": 20},
    "phases": [{"name": "steady", "for": 1}],
    "classes": {"long": {"prefix": {"tokens": 256, "pool": 3}, "suffix_tokens": 8, "output_tokens": 1}},
}
ENGINES: dict[str, dict[str, object]] = {
    "attached": {"kind": "attached", "base_url": "http://127.0.0.1:1", "model": "m"},
    "vllm": {"kind": "vllm", "command": ["vllm"], "model": "/m"},
}
UNKNOWN = Effective(None, None, None, None, None, None, None, None, None)


def journal_of(folder: Path, kind: str) -> Journal:
    run = RunDirectory.create(folder, "x")
    arms = [
        ArmRecord(name=n, role=r, profile=Profile.model_validate({"name": n, "engine": ENGINES[kind]}))  # type: ignore[arg-type]
        for n, r in (("base", "baseline"), ("tiered", "candidate"))
    ]
    manifest = Manifest(
        kvbench="0", name="x", run_id="x", kind="compare", state="running", created_utc="2026-01-01T00:00:00Z",
        host={}, seed=1, arms=arms, workload=Workload.model_validate(WORKLOAD), rules=Rules(), rounds_planned=3,
    )  # fmt: skip
    return Journal(run, manifest)


def played(journal: Journal, arm: str, attempt: int) -> Schedule:
    return _schedule(RoundJob(journal.manifest.arm(arm).profile, 1, attempt, 0), journal, UNKNOWN)


def prefixes(schedule: Schedule) -> set[int]:
    return {request.segments[0].identity for request in schedule.requests}


def test_arms_take_turns_in_going_first() -> None:
    assert [order_of(["a", "b", "c"], index) for index in (1, 2, 3)] == [
        ["a", "b", "c"],
        ["c", "b", "a"],
        ["a", "b", "c"],
    ]


@pytest.mark.parametrize(("kind", "anew"), [("attached", True), ("vllm", False)])
def test_a_repeat_at_servers_that_go_on_running_sends_what_they_have_never_seen(
    tmp_path: Path, kind: str, anew: bool
) -> None:
    journal = journal_of(tmp_path, kind)
    first = played(journal, "base", 0)
    assert prefixes(played(journal, "tiered", 0)) == prefixes(first), "the same for every arm"
    journal.mark_spoiled(1, ["the host was busy"])
    again = played(journal, "base", 1)
    assert prefixes(played(journal, "tiered", 1)) == prefixes(again)
    assert prefixes(again).isdisjoint(prefixes(first)) is anew
