"""Which rounds are recorded, in which order, and what a repeat or a resumption sends."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from kvbench.compare.resumption import missing, take_up
from kvbench.compare.round import RoundJob, _schedule
from kvbench.compare.sequence import order_of
from kvbench.engine.base import Effective
from kvbench.load.plan import PLAN_FILE
from kvbench.record.atomic import write_table
from kvbench.record.content import content_digests
from kvbench.record.journal import Journal
from kvbench.record.manifest import ArmRecord, EngineEventRecord, Manifest, RoundRecord
from kvbench.record.run_directory import RunDirectory
from kvbench.record.tables import HOST, METRICS, REQUESTS, TOKENS
from kvbench.spec.profile import Profile
from kvbench.spec.rules import Rules
from kvbench.spec.workload import Workload
from kvbench.workload.schedule import Schedule
from tests.judge.build import host_rows, request_rows, source_metrics

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
    return Journal(run, manifest.model_copy(update={"digests": content_digests(manifest)}))


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


def driven(journal: Journal, arm: str, *, to_the_end: bool, died: bool = False) -> None:
    """As a round of `arm` leaves its directory, whole or cut short while requests were under way."""
    directory = journal.run.round_directory(arm, 1)
    directory.mkdir(parents=True)
    (directory / PLAN_FILE).write_text("{}")
    if to_the_end:
        requests, tokens = request_rows([0.1] * 20, start_s=0.0, span_s=1.0)
        tables = {"requests": (requests, REQUESTS), "tokens": (tokens, TOKENS)}
        tables |= {"metrics": (source_metrics(0, 0, 0, 1), METRICS), "host": (host_rows(), HOST)}
        for name, (rows, schema) in tables.items():
            write_table(directory / f"{name}.parquet", pa.Table.from_pandas(rows, schema, preserve_index=False))
        journal.add(
            RoundRecord(
                arm=arm, index=1, state="done", launch=arm, started_utc="2026-01-01T00:00:00Z", order=0,
                load={"requests": 1.0},
                events=[EngineEventRecord(kind="died", t_s=0.5, detail="signal 9")] if died else [],
            )
        )  # fmt: skip


@pytest.mark.parametrize(("kind", "anew"), [("attached", True), ("vllm", False)])
def test_a_round_cut_short_at_a_server_that_goes_on_running_is_begun_anew_with_other_prompts(
    tmp_path: Path, kind: str, anew: bool
) -> None:
    """Given a whole round of one arm and half of the other's, then no server is sent again what it may hold."""
    journal = journal_of(tmp_path, kind)
    first = played(journal, "base", 0)
    driven(journal, "base", to_the_end=True)
    driven(journal, "tiered", to_the_end=False)
    assert (("base", 1) in missing(journal.run, journal.manifest)) is anew
    resumed = take_up(journal.run)
    assert (resumed.manifest.done("base", 1) is None) is anew
    assert any("round 1 was begun anew" in warning for warning in resumed.manifest.warnings) is anew
    again = played(resumed, "tiered", resumed.spoiled_attempts(1))
    assert prefixes(again).isdisjoint(prefixes(first)) is anew
    assert prefixes(played(resumed, "base", resumed.spoiled_attempts(1))) == prefixes(again)
    assert resumed.spoiled_attempts(1) == 0, "none of the repeats that a spoiled round has is used up"


def test_a_round_cut_short_twice_is_begun_anew_twice(tmp_path: Path) -> None:
    journal = journal_of(tmp_path, "attached")
    seen = [prefixes(played(journal, "base", 0))]
    for _ in range(2):
        driven(journal, "base", to_the_end=False)
        journal = take_up(journal.run)
        seen.append(prefixes(played(journal, "base", 0)))
    assert len(set.union(*seen)) == sum(map(len, seen))


def test_a_round_whose_recording_is_gone_is_begun_anew_in_the_other_arm_too(tmp_path: Path) -> None:
    journal = journal_of(tmp_path, "attached")
    played(journal, "base", 0)
    for arm in ("base", "tiered"):
        driven(journal, arm, to_the_end=True)
    (journal.run.round_directory("tiered", 1) / "tokens.parquet").unlink()
    resumed = take_up(journal.run)
    assert {r.arm: r.state for r in resumed.manifest.rounds} == {"base": "unpaired", "tiered": "lost"}


def test_a_death_in_a_round_that_is_begun_anew_stays_on_record(tmp_path: Path) -> None:
    """Given an arm that died, and another that was cut short in the same round, then no repeat hides the death."""
    journal = journal_of(tmp_path, "attached")
    played(journal, "base", 0)
    driven(journal, "tiered", to_the_end=True, died=True)
    driven(journal, "base", to_the_end=False)
    assert ("tiered", 1) not in missing(journal.run, journal.manifest)
    resumed = take_up(journal.run)
    assert resumed.manifest.done("tiered", 1) is not None
    assert (resumed.run.round_directory("tiered", 1) / "requests.parquet").exists()


def test_a_round_stopped_before_its_first_request_goes_on_with_its_schedule(tmp_path: Path) -> None:
    """Given a server that could not be reached, then what the other arm has recorded still counts."""
    journal = journal_of(tmp_path, "attached")
    first = played(journal, "base", 0)
    driven(journal, "base", to_the_end=True)
    journal.run.round_directory("tiered", 1).mkdir(parents=True)
    resumed = take_up(journal.run)
    assert resumed.manifest.done("base", 1) is not None
    assert prefixes(played(resumed, "tiered", 0)) == prefixes(first)
