"""Pruning: by age, by size, dry unless told, and nothing but runs of kvbench."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from kvbench.errors import InputError
from kvbench.history.prune import carry_out, plan_pruning
from kvbench.record.run_directory import RunDirectory
from tests.history.build import FIRST, Recorded, leave_run, record

DAY_S = 86400.0
NOW = FIRST + timedelta(days=10)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Ten nights of 64 KiB each, the first one in the history."""
    for night in range(10):
        leave_run(tmp_path, Recorded(night), 65536)
    record(tmp_path, [Recorded(0)])
    return tmp_path


def test_runs_older_than_the_age_go_and_the_plan_deletes_nothing(results: Path) -> None:
    plan = plan_pruning(results, NOW, 7.5 * DAY_S, None)
    assert [old.path.name for old in plan.old] == [Recorded(night).name for night in range(3)]
    assert [old.recorded for old in plan.old] == [True, False, False]
    assert (plan.kept, plan.done) == (7, False)
    assert all(old.path.exists() for old in plan.old)


def test_the_oldest_go_until_the_rest_fits(results: Path) -> None:
    one = plan_pruning(results, NOW, None, None).kept_bytes // 10
    plan = plan_pruning(results, NOW, None, one * 4)
    assert [old.path.name for old in plan.old] == [Recorded(night).name for night in range(6)]
    assert {old.why for old in plan.old} == {"size"}


def test_age_and_size_together(results: Path) -> None:
    one = plan_pruning(results, NOW, None, None).kept_bytes // 10
    plan = plan_pruning(results, NOW, 8.5 * DAY_S, one * 7)
    assert [old.why for old in plan.old] == ["age", "age", "size"]


def test_what_was_planned_is_deleted_and_the_history_stays(results: Path) -> None:
    done = carry_out(plan_pruning(results, NOW, 0, None))
    assert (len(done.old), done.kept, done.done) == (10, 0, True)
    assert [path.name for path in results.iterdir()] == ["history"]
    assert len(list((results / "history").iterdir())) == 1


def test_what_kvbench_did_not_make_is_left_alone(results: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = leave_run(tmp_path_factory.mktemp("outside"), Recorded(0))
    (results / "photos").mkdir()
    (results / "notes.txt").write_text("mine")
    (results / "link").symlink_to(outside)
    (results / "like a run").mkdir()
    (results / "like a run" / "run.json").write_text(json.dumps({"schema": 1}))
    leave_run(results, Recorded(30)).rename(results / "renamed")
    noted = leave_run(results, Recorded(31))
    (noted / "my notes.txt").write_text("mine")
    for name in ("verdict.json", "report.md", "junit.xml", "plan-tiered.json", ".run.json.abc123"):
        (results / Recorded(1).name / name).write_text("of a run")
    done = carry_out(plan_pruning(results, NOW, -40 * DAY_S, 1))
    left = {"photos", "notes.txt", "link", "like a run", "renamed", noted.name}
    assert {path.name for path in results.iterdir()} == {*left, "history"}
    assert outside.exists()
    assert {path.name for path, _ in done.untouched} == left
    assert dict(done.untouched)[noted] == "it holds my notes.txt, which kvbench did not put there"


def test_a_run_that_is_being_recorded_stays(results: Path) -> None:
    busy = results / Recorded(0).name
    with RunDirectory(busy).held():
        done = carry_out(plan_pruning(results, NOW, 8.5 * DAY_S, None))
    assert busy.exists()
    assert [old.path.name for old in done.old] == [Recorded(1).name]
    assert (busy, f"another kvbench is recording into {busy}") in done.untouched
    assert done.kept == 9


def test_a_folder_that_is_not_there_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no folder"):
        plan_pruning(tmp_path / "none", NOW, 0, None)
