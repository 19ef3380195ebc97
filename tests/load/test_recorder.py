"""Rows survive a killed writer, and Parquet files appear only when they are whole."""

from __future__ import annotations

import os
from array import array
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kvbench.errors import RecordError
from kvbench.load.exchange import Exchange
from kvbench.load.recorder import ROWS_AT_ONCE, Recorder, read_part
from kvbench.load.rows import Rows
from kvbench.load.under_way import UnderWayFile, noted
from kvbench.record.tables import REQUESTS, TOKENS
from tests.load.play import plan_for, request


def record(recorder: Recorder, count: int, out: Path, first: int = 0) -> None:
    rows = Rows(plan_for("http://127.0.0.1:1", out), 0)
    for id_ in range(first, first + count):
        recorder.add(rows.lost(request(id_), 0.5), array("d", [id_ + 0.1, id_ + 0.2]))


def test_rows_come_back_as_they_were_given(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    record(recorder, 3 * ROWS_AT_ONCE + 5, tmp_path)
    recorder.close()
    recorder.complete()
    requests = pq.read_table(tmp_path / "requests.parquet")
    tokens = pq.read_table(tmp_path / "tokens.parquet")
    assert requests.schema.equals(REQUESTS)
    assert tokens.schema.equals(TOKENS)
    assert requests["id"].to_pylist() == list(range(3 * ROWS_AT_ONCE + 5))
    assert tokens.slice(2, 4).to_pylist() == [
        {"id": 1, "index": 0, "t_s": 1.1},
        {"id": 1, "index": 1, "t_s": 1.2},
        {"id": 2, "index": 0, "t_s": 2.1},
        {"id": 2, "index": 1, "t_s": 2.2},
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["requests.parquet", "tokens.parquet"]


def test_a_round_without_rows_has_empty_tables(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.close()
    recorder.complete()
    assert pq.read_table(tmp_path / "requests.parquet").num_rows == 0


@pytest.mark.parametrize("lost_bytes", [1, 9, 100, 3000])
def test_a_part_file_can_be_read_up_to_where_its_writer_was_killed(tmp_path: Path, lost_bytes: int) -> None:
    recorder = Recorder(tmp_path)
    record(recorder, 2 * ROWS_AT_ONCE, tmp_path)
    recorder.close()
    part = tmp_path / "requests.part.arrows"
    os.truncate(part, part.stat().st_size - lost_bytes)
    ids = [id_ for batch in read_part(part) for id_ in batch["id"].to_pylist()]
    assert ids == list(range(2 * ROWS_AT_ONCE if lost_bytes <= 8 else ROWS_AT_ONCE))


def test_a_part_that_lost_rows_is_never_made_into_a_complete_table(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    record(recorder, 2 * ROWS_AT_ONCE, tmp_path)
    recorder.close()
    part = tmp_path / "tokens.part.arrows"
    os.truncate(part, part.stat().st_size - 100)
    with pytest.raises(RecordError, match="rows where"):
        recorder.complete()
    assert not (tmp_path / "requests.parquet").exists()


def test_what_is_under_way_is_there_as_it_was_noted_last_until_every_request_has_its_row(tmp_path: Path) -> None:
    def on_disk() -> list[dict[str, object]]:
        return [row for batch in read_part(file.path) for row in batch.to_pylist()]

    file = UnderWayFile(tmp_path / "under-way.part.arrows")
    file.write([])
    assert not file.path.exists(), "there was never anything to note"
    file.write([(1, 2.0, 0.5, 200, 30, 0.6, 1.9), (2, 2.0, 0.7, None, 0, None, None)])
    assert [row["id"] for row in on_disk()] == [1, 2]
    assert on_disk()[1] == {
        "id": 2, "t_s": 2.0, "sent_s": 0.7, "http_status": None, "reads": 0, "first_read_s": None,
        "last_read_s": None,
    }  # fmt: skip
    file.write([(2, 3.0, 0.7, 200, 5, 2.5, 2.9)])
    assert [(row["id"], row["reads"]) for row in on_disk()] == [(2, 5)]
    file.write([])
    assert on_disk() == []
    assert [path.name for path in tmp_path.iterdir()] == [file.path.name]
    file.remove()
    assert not [*tmp_path.iterdir()]


def test_requests_are_noted_once_they_have_been_under_way_for_a_while() -> None:
    young, old, silent = (Exchange(id_, f"x-{id_}", b"", 1 << 62) for id_ in range(3))
    young.sent_ns, old.sent_ns, silent.sent_ns = 9_500_000_000, 8_000_000_000, 8_500_000_000
    old.status = 200
    old.read_ns.extend([9_000_000_000, 9_900_000_000])
    rows = noted([young, old, silent], now_ns=10_000_000_000, zero_ns=5_000_000_000)
    assert rows == [(1, 5.0, 3.0, 200, 2, 4.0, 4.9), (2, 5.0, 3.5, None, 0, None, None)]


def test_a_disk_that_refuses_is_told(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot write"):
        Recorder(tmp_path / "missing")


def test_a_disk_that_refuses_later_is_told_at_the_next_flush(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, recorder._tokens._fd)  # in one step: the writing thread is at work
    os.close(full)

    def fill() -> None:
        record(recorder, ROWS_AT_ONCE, tmp_path)
        recorder.close()

    with pytest.raises(RecordError, match="No space left"):  # once the thread has noticed, at the latest at the end
        fill()
