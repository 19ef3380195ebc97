"""One set of figures for all workers, and rows that are checked before they count."""

from __future__ import annotations

from array import array
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.load.collect import Collector
from kvbench.load.merge import merge_figures, merge_progress
from kvbench.load.messages import BadMessageError, Progress
from kvbench.load.recorder import Recorder
from kvbench.load.rows import Rows
from kvbench.load.split import split
from kvbench.record.tables import REQUESTS
from tests.load.play import plan_for, request, schedule


def test_counts_add_up_and_of_the_rest_the_worst_counts() -> None:
    one = {"requests": 3.0, "send_lag_p99_s": 0.1, "client_cpu_s": 1.0, "events": 1e3, "real_time_scheduling": 1.0}
    two = {"requests": 4.0, "send_lag_p99_s": 0.3, "client_cpu_s": 2.0, "events": 2e3, "real_time_scheduling": 0.0}
    both = merge_figures(
        [one | {"client_cpu_ms_per_1000_events": 1e3}, two | {"client_cpu_ms_per_1000_events": 1e3}]
    )
    assert both == {
        "requests": 7.0, "send_lag_p99_s": 0.3, "client_cpu_s": 3.0, "events": 3e3, "real_time_scheduling": 0.0,
        "client_cpu_ms_per_1000_events": 1e3, "workers": 2.0,
    }  # fmt: skip


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.none() | st.floats(0, 9)), max_size=4))
def test_what_nobody_measured_is_not_there_and_what_one_measured_is(
    workers: list[dict[str, float | None]],
) -> None:
    merged = merge_figures(workers)
    for name in "abc":
        known = [figures[name] for figures in workers if figures.get(name) is not None]
        assert merged.get(name) == (max(known) if known else None)


def test_progress_is_that_of_all() -> None:
    reports = [
        Progress(
            t_s=1.0,
            sent=n,
            done=n,
            failed=0,
            running=n,
            tokens=10 * n,
            ttft_p50_s=ttft,
            refused=n,
            refused_with=status,
            served=2 * n,
        )
        for n, ttft, status in ((1, None, None), (2, 0.2, 503), (3, 0.4, None))
    ]
    told = merge_progress(reports, 1.5)
    assert (told["sent"], told["tokens"], told["t_s"]) == (6, 60, 1.5)
    assert told["ttft_p50_s"] == pytest.approx(0.3)
    assert (told["refused"], told["refused_with"], told["served"]) == (6, 503, 12)
    nothing = merge_progress([], 0.0)
    assert (nothing["ttft_p50_s"], nothing["refused_with"]) == (None, None)


def rows_of(worker: int, ids: list[int], out: Path, **changed: object) -> bytes:
    """A batch of requests as that worker's recorder ships it."""
    shipped: list[bytes] = []
    out.mkdir()
    recorder = Recorder(out, shipped=lambda table, data: shipped.append((table, data.to_pybytes())))  # type: ignore[arg-type,func-returns-value]
    rows = Rows(plan_for("http://127.0.0.1:1", out, worker=worker, **changed), 0)
    for id_ in ids:
        recorder.add(rows.lost(request(id_), 0.5), array("d", [0.1, 0.2]))
    recorder.close()
    return dict(shipped)["requests"]  # type: ignore[arg-type,return-value]


@pytest.fixture
def collector(tmp_path: Path) -> Collector:
    planned = schedule(*(request(i, i * 0.1) for i in range(6)), for_s=1)
    return Collector(Recorder(tmp_path), plan_for("http://127.0.0.1:1", tmp_path), split(planned, 2))


class TestCollector:
    def test_knows_what_is_missing_until_all_is_there(self, collector: Collector, tmp_path: Path) -> None:
        collector.take(1, "requests", rows_of(1, [1, 3], tmp_path / "a"))
        assert collector.shortfall(1, 3, 0) == "2 of its 3 rows came, it recorded 3"
        collector.take(1, "requests", rows_of(1, [5], tmp_path / "b"))
        assert collector.shortfall(1, 3, 0) is None
        assert collector.shortfall(1, 3, 2) == "0 of its 2 token times came"
        assert collector.shortfall(0, 3, 0) is not None

    @pytest.mark.parametrize(
        ("worker", "ids", "changed", "words"),
        [
            (1, [0], {}, "not its own"),
            (1, [7], {}, "not its own"),
            (1, [1, 1], {}, "twice"),
            (0, [1], {}, "another worker"),
            (1, [1], {"arm": "other"}, "another arm"),
            (1, [1], {"round": 9}, "another round"),
        ],
    )
    def test_takes_nothing_but_a_workers_own(
        self,
        collector: Collector,
        tmp_path: Path,
        worker: int,
        ids: list[int],
        changed: dict[str, object],
        words: str,
    ) -> None:
        with pytest.raises(BadMessageError, match=words):
            collector.take(1, "requests", rows_of(worker, ids, tmp_path / "a", **changed))
        assert collector.shortfall(1, 3, 0) == "0 of its 3 rows came, it recorded 3"

    def test_takes_no_row_twice(self, collector: Collector, tmp_path: Path) -> None:
        batch = rows_of(1, [1], tmp_path / "a")
        collector.take(1, "requests", batch)
        with pytest.raises(BadMessageError, match="twice"):
            collector.take(1, "requests", batch)

    @pytest.mark.parametrize("table", ["requests", "tokens"])
    def test_takes_no_nonsense(self, collector: Collector, table: str) -> None:
        wrong = pa.RecordBatch.from_pydict({"id": ["x"]}).serialize().to_pybytes()
        for blob in (b"", b"not arrow", REQUESTS.serialize().to_pybytes(), wrong):
            with pytest.raises(BadMessageError):
                collector.take(1, table, blob)  # type: ignore[arg-type]
