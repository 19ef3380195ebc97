"""A run on disk: atomic, readable at any moment, and clear about what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from kvbench.errors import InputError, RecordError
from kvbench.record.atomic import write_table, write_text
from kvbench.record.content import content_digests, edited
from kvbench.record.journal import Journal
from kvbench.record.manifest import ArmRecord, Manifest, RoundRecord
from kvbench.record.run_directory import RunDirectory
from kvbench.record.tables import HOST, REQUESTS
from kvbench.spec.loading import load_profile, load_rules, load_workload
from kvbench.spec.profile import Profile
from kvbench.spec.rules import Rules
from kvbench.spec.workload import Workload


def manifest(run: RunDirectory) -> Manifest:
    profile = {"name": "base", "engine": {"kind": "attached", "base_url": "http://127.0.0.1:1", "model": "m"}}
    workload = {
        "name": "w",
        "arrivals": {"process": "constant", "rate": 1},
        "phases": [{"name": "steady", "for": 1}],
        "classes": {"short": {"suffix_tokens": 1, "output_tokens": 1}},
    }
    arms = [
        ArmRecord(name=n, role=r, profile=Profile.model_validate({**profile, "name": n}))  # type: ignore[arg-type]
        for n, r in (("base", "baseline"), ("tiered", "candidate"))
    ]
    return Manifest(
        kvbench="0",
        name="base-vs-tiered",
        run_id=run.path.name,
        kind="compare",
        state="running",
        created_utc="2026-01-01T00:00:00Z",
        host={},
        seed=1,
        arms=arms,
        workload=Workload.model_validate(workload),
        rules=Rules(),
        rounds_planned=3,
    )


def record(arm: str, index: int) -> RoundRecord:
    return RoundRecord(
        arm=arm, index=index, state="done", launch=f"{arm}-{index}", started_utc="2026-01-01T00:00:00Z", order=0
    )


def test_two_runs_of_the_same_second_have_folders_of_their_own(tmp_path: Path) -> None:
    first, second = RunDirectory.create(tmp_path, "x"), RunDirectory.create(tmp_path, "x")
    assert first.path != second.path
    assert first.path.parent == second.path.parent == tmp_path


def test_a_file_where_the_results_folder_should_be_is_an_input_error(tmp_path: Path) -> None:
    file = tmp_path / "results"
    file.write_text("")
    for attempt in (lambda: RunDirectory.check_writable(file), lambda: RunDirectory.create(file, "x")):
        with pytest.raises(InputError, match="cannot write results") as caught:
            attempt()
        assert caught.value.exit_code == 2
        assert "--out" in str(caught.value)


def test_a_path_that_cannot_be_looked_at_is_an_input_error(tmp_path: Path) -> None:
    """Too long a name here; a folder of somebody else's fails in the same way for whoever is not root."""
    path = tmp_path / ("a" * 300)
    with pytest.raises(InputError, match="cannot write results"):
        RunDirectory.check_writable(path)
    with pytest.raises(InputError, match="cannot be looked into"):
        RunDirectory.open(path)


def test_checking_a_folder_that_does_not_exist_yet_leaves_nothing_behind(tmp_path: Path) -> None:
    RunDirectory.check_writable(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a read-only file system to write to: /proc")
def test_a_folder_that_refuses_writes_is_an_input_error() -> None:
    with pytest.raises(InputError, match="cannot write results"):
        RunDirectory.check_writable(Path("/proc/kvbench-results"))


def test_the_manifest_survives_a_round_trip_and_every_change_is_on_disk_at_once(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "x")
    journal = Journal(run, manifest(run))
    journal.add(record("base", 1))
    journal.warn("round 1 was noisy")
    stored = run.read_manifest()
    assert stored == journal.manifest
    assert stored.done("base", 1) is not None
    assert stored.done("tiered", 1) is None
    assert stored.arm("tiered").role == "candidate"


def test_a_spoiled_pair_does_not_count_and_stays_on_disk(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "x")
    journal = Journal(run, manifest(run))
    for attempt in (1, 2):
        for arm in ("base", "tiered"):
            run.round_directory(arm, 1).mkdir(parents=True)
            journal.add(record(arm, 1))
        journal.mark_spoiled(1, ["the host was busy"])
        assert journal.spoiled_attempts(1) == attempt
        assert (run.path / "arms" / "base" / f"round-1.spoiled-{attempt}").is_dir()
    assert journal.manifest.done("base", 1) is None
    assert {r.state for r in run.read_manifest().rounds} == {"spoiled"}


def test_a_folder_that_is_no_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a run of kvbench"):
        RunDirectory.open(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": 2}', "\udcff"])
def test_a_damaged_manifest_is_one_clear_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError, match=r"run\.json cannot be read"):
        RunDirectory.open(tmp_path).read_manifest()


def test_a_table_that_was_never_written_is_empty_with_its_columns(tmp_path: Path) -> None:
    table = RunDirectory(tmp_path).read_table("base", 1, "requests", REQUESTS)
    assert list(table.columns) == REQUESTS.names
    assert len(table) == 0


def test_a_damaged_table_is_a_record_error(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.round_directory("base", 1).mkdir(parents=True)
    (run.round_directory("base", 1) / "host.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(RecordError, match="cannot read"):
        run.read_table("base", 1, "host", HOST)


def test_a_failed_write_leaves_the_old_file_and_no_temporary_one(tmp_path: Path) -> None:
    path = tmp_path / "host.parquet"
    write_text(path, "old")
    broken = pa.table({"t_s": [1.0]})
    path.chmod(0o600)
    directory = tmp_path / "gone"
    with pytest.raises(RecordError, match="cannot write"):
        write_table(directory / "host.parquet", broken)
    assert path.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["host.parquet"]


def test_a_table_of_an_older_version_lacks_its_last_columns_and_a_foreign_one_is_refused(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    place = run.round_directory("base", 1)
    place.mkdir(parents=True)
    older = pa.schema([REQUESTS.field(i) for i in range(len(REQUESTS) - 1)])
    write_table(place / "requests.parquet", older.empty_table())
    assert list(run.read_table("base", 1, "requests", REQUESTS).columns) == REQUESTS.names
    write_table(place / "requests.parquet", HOST.empty_table())
    with pytest.raises(RecordError, match="it holds other columns than requests has"):
        run.read_table("base", 1, "requests", REQUESTS)


def test_only_one_holds_a_run_at_a_time(tmp_path: Path) -> None:
    with (
        RunDirectory(tmp_path).held(),
        pytest.raises(InputError, match="another kvbench is recording"),
        RunDirectory(tmp_path).held(),
    ):
        pass
    with RunDirectory(tmp_path).held():
        pass


def test_what_a_run_is_about_has_digests_that_survive_a_round_trip_and_show_an_edit(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "x")
    begun = manifest(run)
    begun = begun.model_copy(update={"digests": content_digests(begun)})
    run.write_manifest(begun)
    assert begun.digests.keys() == {"profile base", "profile tiered", "workload", "rules"}
    assert edited(run.read_manifest()) == []
    stricter = begun.rules.model_copy(update={"confidence": 0.99})
    assert edited(begun.model_copy(update={"rules": stricter})) == ["rules"]
    assert edited(begun.model_copy(update={"arms": begun.arms[:1]})) == ["profile tiered"]


@pytest.mark.parametrize("name", ["mixed", "demo"])
def test_shipped_files_have_the_same_digests_after_they_were_stored(tmp_path: Path, name: str) -> None:
    run = RunDirectory.create(tmp_path, "x")
    rules = load_rules("default" if name == "mixed" else "demo")
    profiles = [load_profile(f"cpu/{profile}") for profile in ("baseline", "host-and-disk", "slow-disk")]
    arms = [ArmRecord(name=p.name, role="baseline", profile=p) for p in profiles]
    begun = manifest(run).model_copy(update={"workload": load_workload(name), "rules": rules, "arms": arms})
    run.write_manifest(begun.model_copy(update={"digests": content_digests(begun)}))
    assert edited(run.read_manifest()) == []


def test_a_lost_round_does_not_count_and_is_told(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "x")
    journal = Journal(run, manifest(run))
    journal.add(record("base", 1))
    journal.mark_lost(record("base", 1))
    assert run.read_manifest().done("base", 1) is None
    assert "round 1 of base was recorded again" in run.read_manifest().warnings[0]
