"""The store: one row per rule, nothing lost between writers, nothing doubled, and foreign files are named."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kvbench.errors import RecordError
from kvbench.history.rows import HISTORY
from kvbench.history.store import append, read
from kvbench.judge.verdict import Outcome
from tests.history.build import Recorded, manifest, record, verdict


def test_a_run_is_one_row_per_rule_with_what_it_was_made_with(tmp_path: Path) -> None:
    (path,) = record(tmp_path, [Recorded(0, ratio=1.25)])
    rows = read(tmp_path)
    assert path.parent == tmp_path / "history"
    assert list(rows["rule"]) == ["residue", "ttft-p90", "errors"]
    tail = rows.iloc[1]
    assert (tail["effect"], tail["ci_low"], tail["limit"], tail["unit"]) == (1.25, 1.125, 1.5, "s")
    assert bool(tail["ratio"]) is True
    assert (tail["engine"], tail["driver"], tail["kvbench"]) == ("vllm 0.32.0", "570.86.15", "0.1.0")
    assert tail["profile_digest"].startswith("sha256:")
    assert tail["profile_digest"] != tail["baseline_digest"]


def test_recording_the_same_run_again_changes_nothing(tmp_path: Path) -> None:
    (first,) = record(tmp_path, [Recorded(0)])
    written = first.stat().st_mtime_ns
    (second,) = record(tmp_path, [Recorded(0)])
    assert second == first
    assert first.stat().st_mtime_ns == written
    assert list((tmp_path / "history").iterdir()) == [first]


def test_of_a_run_that_went_on_the_last_verdict_counts_and_the_first_stays_on_disk(tmp_path: Path) -> None:
    run = Recorded(0, verdict=Outcome.INCONCLUSIVE)
    record(tmp_path, [run])
    older = pq.read_table(next((tmp_path / "history").iterdir()))
    earlier = older.set_column(4, "recorded", older["created"])
    pq.write_table(earlier, next((tmp_path / "history").iterdir()))
    record(tmp_path, [dataclasses.replace(run, verdict=Outcome.GO)])
    assert set(read(tmp_path)["verdict"]) == {"GO"}
    assert len(list((tmp_path / "history").iterdir())) == 2


def test_two_machines_that_began_a_run_of_one_name_in_one_second_are_two_runs(tmp_path: Path) -> None:
    record(tmp_path, [Recorded(0, ratio=1.0, seed=1), Recorded(0, ratio=1.2, seed=2)])
    assert sorted(read(tmp_path).query("rule == 'ttft-p90'")["effect"]) == [1.0, 1.2]


def test_writers_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    runs = [Recorded(night) for night in (0, 1, 2, 2, 3, 3, 4, 4)]
    with ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(record, tmp_path, [run]) for run in runs]
        assert all(job.result() for job in jobs)
    rows = read(tmp_path)
    assert sorted(set(rows["run"])) == [Recorded(night).name for night in range(5)]
    assert len(rows) == 15
    assert all(file.suffix == ".parquet" for file in (tmp_path / "history").iterdir())


def test_a_run_named_like_a_path_stays_in_the_store(tmp_path: Path) -> None:
    odd = manifest(Recorded(0)).model_copy(update={"run_id": "../../elsewhere\x00"})
    path = append(tmp_path / "results", odd, verdict(Recorded(0)))
    assert path.parent == tmp_path / "results" / "history"
    assert read(tmp_path / "results")["run"].iloc[0] == "../../elsewhere\x00"


def test_what_an_older_version_did_not_write_is_missing_and_what_a_newer_one_adds_is_no_obstacle(
    tmp_path: Path,
) -> None:
    (path,) = record(tmp_path, [Recorded(0)])
    table = pq.read_table(path)
    pq.write_table(table.drop_columns(["driver"]).append_column("colour", table["rule"]), path)
    rows = read(tmp_path)
    assert list(rows.columns) == HISTORY.names
    assert rows["driver"].isna().all()


def test_an_empty_history_has_the_columns(tmp_path: Path) -> None:
    assert read(tmp_path).empty
    assert list(read(tmp_path).columns) == HISTORY.names


@pytest.mark.parametrize("content", [b"PAR1 but not really", b""])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    (path,) = record(tmp_path, [Recorded(0)])
    path.write_bytes(content)
    with pytest.raises(RecordError, match=path.name):
        read(tmp_path)


def test_a_foreign_table_is_named(tmp_path: Path) -> None:
    (path,) = record(tmp_path, [Recorded(0)])
    pq.write_table(pq.read_table(path).select(["kind"]), path)
    with pytest.raises(RecordError, match="lacks run"):
        read(tmp_path)


def test_a_history_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "history").write_text("a file")
    with pytest.raises(RecordError, match="history"):
        record(tmp_path, [Recorded(0)])
