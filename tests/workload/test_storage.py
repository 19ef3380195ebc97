"""A schedule that was written is read back the same, or not at all."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvbench.errors import RecordError
from kvbench.workload.build import build_schedule
from kvbench.workload.schedule import PhaseSpan, PlannedRequest, Schedule, Segment
from kvbench.workload.storage import read_schedule, schedule_digest, write_schedule

from .workloads import workload

whole = st.integers(0, 2**31 - 1)
big = st.integers(0, 2**63 - 1)
times = st.floats(0, 1e9)
words = st.text(st.characters(codec="utf-8"), max_size=8)
requests = st.builds(
    PlannedRequest,
    id=big,
    phase=words,
    measured=st.booleans(),
    class_=words,
    session=st.none() | big,
    turn=whole,
    intended_s=st.none() | times,
    think_s=times,
    continues=st.none() | big,
    segments=st.lists(st.builds(Segment, big, whole), max_size=4).map(tuple),
    output_tokens=whole,
    prefix=st.none() | whole,
    repeat_of=st.none() | big,
    carries=st.booleans(),
    waits_for=st.lists(big, max_size=3).map(tuple),
    branch=st.none() | whole,
    abort_after_tokens=st.none() | whole,
    abort_after_s=st.none() | times,
)
schedules = st.builds(
    Schedule,
    workload=words,
    seed=big,
    round=whole,
    phases=st.lists(st.builds(PhaseSpan, words, times, times, st.booleans()), min_size=1, max_size=3).map(tuple),
    prime=st.lists(requests, max_size=3).map(tuple),
    requests=st.lists(requests, max_size=5).map(tuple),
    concurrency=st.none() | whole,
    request_timeout_s=times,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schedules)
def test_what_is_written_is_read_back(tmp_path: Path, schedule: Schedule) -> None:
    path = tmp_path / "schedule.parquet"
    write_schedule(schedule, path)
    back = read_schedule(path)
    assert back == schedule
    assert schedule_digest(back) == schedule_digest(schedule)
    assert [file.name for file in tmp_path.iterdir()] == ["schedule.parquet"]


@settings(max_examples=50, deadline=None)
@given(schedules, schedules)
def test_digests_are_equal_exactly_when_schedules_are(one: Schedule, other: Schedule) -> None:
    assert (schedule_digest(one) == schedule_digest(other)) == (one == other)


def test_a_real_schedule_survives(tmp_path: Path) -> None:
    schedule = build_schedule(workload(), 3, block_tokens=16, capacities_tokens=None, max_model_len=None)
    write_schedule(schedule, tmp_path / "s.parquet")
    assert read_schedule(tmp_path / "s.parquet") == schedule


def test_a_file_without_the_options_that_came_later_is_read(tmp_path: Path) -> None:
    schedule = build_schedule(workload(), 3, block_tokens=16, capacities_tokens=None, max_model_len=None)
    path = tmp_path / "s.parquet"
    write_schedule(schedule, path)
    table = pq.read_table(path)
    later = ["carries", "waits_for", "branch", "abort_after_tokens", "abort_after_s", "holdout"]
    pq.write_table(table.drop_columns(later), path)
    assert read_schedule(path) == schedule


def test_what_is_no_schedule_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.parquet"
    with pytest.raises(RecordError, match="not a schedule that can be read"):
        read_schedule(path)
    path.write_bytes(b"PAR1 nothing")
    with pytest.raises(RecordError, match="not a schedule that can be read"):
        read_schedule(path)
    pq.write_table(pa.table({"x": [1]}), path)
    with pytest.raises(RecordError, match="not a schedule that can be read"):
        read_schedule(path)
    pq.write_table(pa.table({"x": [1]}).replace_schema_metadata({"kvbench.schedule": '{"version": 99}'}), path)
    with pytest.raises(RecordError, match="another kvbench version"):
        read_schedule(path)


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    schedule = build_schedule(workload(), 0, block_tokens=16, capacities_tokens=None, max_model_len=None)
    with pytest.raises(RecordError, match="cannot write"):
        write_schedule(schedule, tmp_path / "missing" / "s.parquet")
