"""The driver as a process: its protocol, its ends, and its parent's side."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from kvbench.errors import InputError, LoadError
from kvbench.judge.client import lateness
from kvbench.load.recorder import read_part
from kvbench.load.run import run_load
from kvbench.load.spare import driver_ahead
from kvbench.spec.access import Access
from kvbench.workload.schedule import Schedule, Segment
from kvbench.workload.storage import write_schedule
from tests.engine.test_keeper import wait_for
from tests.judge.build import arm_round, rules, workload
from tests.load.play import plan_for, request, schedule
from tests.load.server import Normal, Peer, Request, ScriptedServer

READY_S = 30.0


def never() -> bool:
    return False


def steady(count: int, gap_s: float, **changed: object) -> Schedule:
    return schedule(*(request(i, i * gap_s) for i in range(count)), for_s=count * gap_s, **changed)  # type: ignore[arg-type]


def drivers() -> list[int]:
    return [
        child.pid
        for child in psutil.Process().children(recursive=True)
        if child.status() != psutil.STATUS_ZOMBIE and "kvbench.load.driver" in child.cmdline()
    ]


@contextmanager
def started_driver(planned: Schedule, url: str, out: Path) -> Iterator[subprocess.Popen[str]]:
    """A driver that has reached time zero."""
    write_schedule(planned, out / "schedule.parquet")
    (out / "plan.json").write_text(plan_for(url, out).model_dump_json())
    process = subprocess.Popen(
        [sys.executable, "-m", "kvbench.load.driver", str(out / "plan.json")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin
    assert process.stdout
    try:
        assert json.loads(process.stdout.readline()) == {"event": "ready"}
        process.stdin.write("start\n")
        process.stdin.flush()
        while (event := json.loads(process.stdout.readline())["event"]) != "started":
            if event == "primed":
                process.stdin.write("go\n")
                process.stdin.flush()
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe:
                pipe.close()


def test_a_round_ends_with_its_tables_its_figures_and_its_story(tmp_path: Path) -> None:
    prime = (request(50, None, phase="prime", measured=False),)
    write_schedule(steady(12, 0.1, prime=prime), tmp_path / "schedule.parquet")
    told: list[dict[str, object]] = []
    with ScriptedServer(Normal()) as server:
        result = run_load(plan_for(server.url, tmp_path), on_event=told.append, should_stop=never)
    assert result.complete
    assert (result.planned, result.rows) == (13, 13)
    assert pq.read_table(tmp_path / "requests.parquet").num_rows == 13
    assert pq.read_table(tmp_path / "tokens.parquet").num_rows == 13 * 4
    assert not [*tmp_path.glob("*.arrows")]
    assert [event["event"] for event in told] == ["ready", "prime", "primed", "started", "progress", "finished"]
    assert result.started_monotonic is not None
    arrivals = sorted(sent.at - result.started_monotonic for sent in server.requests[1:])
    assert arrivals[0] == pytest.approx(0.0, abs=0.25)
    figures = json.loads((tmp_path / "load.json").read_text())
    assert {key for key, value in figures.items() if value is not None} == set(result.figures)
    assert 0 <= result.figures["send_lag_p50_s"] < 0.25
    assert result.figures["failed"] == 0
    assert result.figures["gc_disabled"] == 1
    assert drivers() == []


def test_the_parent_may_end_a_round_early_and_has_its_rows(tmp_path: Path) -> None:
    write_schedule(steady(200, 0.05), tmp_path / "schedule.parquet")
    with ScriptedServer(Normal(first_s=0.3)) as server:
        result = run_load(
            plan_for(server.url, tmp_path), on_event=lambda _: None, should_stop=lambda: len(server.requests) > 10
        )
    rows = pq.read_table(tmp_path / "requests.parquet").to_pandas()
    assert not result.complete
    assert result.rows == len(rows) == 200
    assert set(rows["status"]) == {"ok", "error", "unsent"}
    assert rows[rows["status"] == "error"]["error"].str.startswith("stopped: ").all()
    assert drivers() == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_it_at_once_and_what_was_recorded_stays(tmp_path: Path, number: int, code: int) -> None:
    with (
        ScriptedServer(Normal()) as server,
        started_driver(steady(2000, 0.01), server.url, tmp_path) as process,
    ):
        while len(server.requests) < 30:
            time.sleep(0.01)
        process.send_signal(number)
        assert process.wait(5) == code
    ids = [id_ for batch in read_part(tmp_path / "requests.part.arrows") for id_ in batch["id"].to_pylist()]
    assert len(ids) == 2000
    assert not (tmp_path / "requests.parquet").exists()


def test_it_does_not_outlive_whoever_holds_its_stdin(tmp_path: Path) -> None:
    with (
        ScriptedServer(Normal()) as server,
        started_driver(steady(2000, 0.01), server.url, tmp_path) as process,
    ):
        assert process.stdin
        process.stdin.close()
        assert process.wait(5) == 143


def test_standing_still_while_an_answer_comes_shows_in_how_late_it_was_read(tmp_path: Path) -> None:
    """Given nothing that was due meanwhile, then the send lag says nothing of the two seconds."""
    planned = schedule(request(0, output_tokens=300), for_s=0.2)
    with (
        ScriptedServer(Normal(gap_s=0.01)) as server,
        started_driver(planned, server.url, tmp_path) as process,
    ):
        while not server.requests:
            time.sleep(0.01)
        time.sleep(0.3)
        process.send_signal(signal.SIGSTOP)
        time.sleep(2.0)
        process.send_signal(signal.SIGCONT)
        assert process.wait(20) == 0
    figures = json.loads((tmp_path / "load.json").read_text())
    rows, tokens = (pq.read_table(tmp_path / f"{name}.parquet").to_pandas() for name in ("requests", "tokens"))
    recorded = arm_round("base", 1, rows, tokens, load=figures)
    (what,) = lateness(recorded, rules(validity={"send_lag_p99": "500ms"}), workload())
    assert what.startswith("stood still: part of an answer was read ")


def test_killed_it_loses_at_most_the_last_two_seconds(tmp_path: Path) -> None:
    with (
        ScriptedServer(Normal()) as server,
        started_driver(steady(3000, 0.01), server.url, tmp_path) as process,
    ):
        while len(server.requests) < 350:
            time.sleep(0.01)
        process.kill()
        process.wait()
        sent = len(server.requests)
    ids = [id_ for batch in read_part(tmp_path / "requests.part.arrows") for id_ in batch["id"].to_pylist()]
    tokens = sum(batch.num_rows for batch in read_part(tmp_path / "tokens.part.arrows"))
    assert len(set(ids)) == len(ids) >= sent - 200
    assert tokens >= 4 * len(ids)


def test_killed_it_leaves_what_had_come_of_answers_that_take_longer(tmp_path: Path) -> None:
    """Given an answer of 40 s among short ones, then it has no row, and what was known of it is on disk."""
    long = request(0, 0.0, output_tokens=2000)
    planned = schedule(long, *(request(i, i * 0.05) for i in range(1, 400)), for_s=20.0)
    with (
        ScriptedServer(Normal(gap_s=0.02)) as server,
        started_driver(planned, server.url, tmp_path) as process,
    ):
        while len(server.requests) < 100:
            time.sleep(0.01)
        process.kill()
        process.wait()
    played_s = 99 * 0.05
    ids = [id_ for batch in read_part(tmp_path / "requests.part.arrows") for id_ in batch["id"].to_pylist()]
    assert 0 not in ids
    assert len(ids) > (played_s - 2.5) / 0.05
    (under_way,) = [row for batch in read_part(tmp_path / "under-way.part.arrows") for row in batch.to_pylist()]
    assert (under_way["id"], under_way["http_status"]) == (0, 200)
    assert under_way["t_s"] > played_s - 2.0
    assert 0 <= under_way["sent_s"] < under_way["first_read_s"] < under_way["last_read_s"] <= under_way["t_s"]
    assert 50 < under_way["reads"] < 2000


def interrupt(event: dict[str, object]) -> None:
    if event["event"] == "started":
        raise KeyboardInterrupt


@pytest.mark.parametrize("broken", ["on_event", "should_stop"])
def test_whatever_the_callbacks_raise_the_driver_is_gone(tmp_path: Path, broken: str) -> None:
    def stop() -> bool:
        if server.requests and broken == "should_stop":
            raise KeyboardInterrupt
        return False

    on_event: Callable[[dict[str, object]], None] = interrupt if broken == "on_event" else lambda _: None
    write_schedule(steady(500, 0.05), tmp_path / "schedule.parquet")
    with ScriptedServer(Normal()) as server, pytest.raises(KeyboardInterrupt):
        run_load(plan_for(server.url, tmp_path), on_event=on_event, should_stop=stop)
    assert drivers() == []


def test_a_driver_that_dies_is_a_load_error_with_its_last_words(tmp_path: Path) -> None:
    write_schedule(steady(500, 0.05), tmp_path / "schedule.parquet")

    def kill(event: dict[str, object]) -> None:
        if event["event"] == "started":
            os.kill(drivers()[0], signal.SIGKILL)

    with ScriptedServer(Normal()) as server, pytest.raises(LoadError, match="killed by signal 9"):
        run_load(plan_for(server.url, tmp_path), on_event=kill, should_stop=never)


def test_a_crash_is_told_with_the_drivers_own_words(tmp_path: Path) -> None:
    (tmp_path / "schedule.parquet").write_bytes(b"not a schedule")
    with pytest.raises(LoadError, match=r"schedule\.parquet") as raised:
        run_load(plan_for("http://127.0.0.1:1", tmp_path), on_event=lambda _: None, should_stop=never)
    assert "Traceback" not in str(raised.value)


class TestDriverAhead:
    """A driver that was started before its plan was known."""

    def test_it_is_the_one_that_plays(self, tmp_path: Path) -> None:
        write_schedule(steady(12, 0.1), tmp_path / "schedule.parquet")
        playing: list[list[int]] = []
        with ScriptedServer(Normal()) as server, driver_ahead(wanted=True):
            assert wait_for(lambda: drivers() != [])  # a process that was just begun has no command line yet
            ahead = drivers()
            result = run_load(
                plan_for(server.url, tmp_path), on_event=lambda _: playing.append(drivers()), should_stop=never
            )
            assert drivers() == []
        assert len(ahead) == 1
        assert playing[0] == ahead
        assert result.complete
        assert result.rows == 12
        assert not (tmp_path / "load.log").exists(), "there was nothing to say"

    def test_one_that_nobody_took_is_gone_afterwards(self) -> None:
        with driver_ahead(wanted=False):
            assert drivers() == []

        def interrupted() -> None:
            with driver_ahead(wanted=True):
                assert len(drivers()) == 1
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert drivers() == []

    def test_one_that_died_is_replaced(self, tmp_path: Path) -> None:
        write_schedule(steady(3, 0.1), tmp_path / "schedule.parquet")
        with ScriptedServer(Normal()) as server, driver_ahead(wanted=True):
            (ahead,) = drivers()
            os.kill(ahead, signal.SIGKILL)
            psutil.wait_procs([psutil.Process(ahead)], timeout=5)
            result = run_load(plan_for(server.url, tmp_path), on_event=lambda _: None, should_stop=never)
        assert result.complete

    def test_its_last_words_are_kept(self, tmp_path: Path) -> None:
        (tmp_path / "schedule.parquet").write_bytes(b"not a schedule")
        with driver_ahead(wanted=True), pytest.raises(LoadError, match=r"schedule\.parquet"):
            run_load(plan_for("http://127.0.0.1:1", tmp_path), on_event=lambda _: None, should_stop=never)
        assert "schedule.parquet" in (tmp_path / "load.log").read_text()


def test_a_missing_key_is_the_users_to_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVBENCH_TEST_KEY", raising=False)
    write_schedule(steady(1, 0.05), tmp_path / "schedule.parquet")
    plan = plan_for("http://127.0.0.1:1", tmp_path, access=Access(api_key_env="KVBENCH_TEST_KEY"))
    with pytest.raises(InputError, match="KVBENCH_TEST_KEY"):
        run_load(plan, on_event=lambda _: None, should_stop=never)


def test_the_key_is_sent_and_written_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVBENCH_TEST_KEY", "s3cret-value")
    write_schedule(steady(2, 0.05), tmp_path / "schedule.parquet")
    with ScriptedServer(Normal()) as server:
        plan = plan_for(server.url, tmp_path, access=Access(api_key_env="KVBENCH_TEST_KEY"))
        run_load(plan, on_event=lambda _: None, should_stop=never)
    assert "Authorization: Bearer s3cret-value" in server.requests[0].head
    assert all(b"s3cret-value" not in path.read_bytes() for path in tmp_path.iterdir())


def test_proxies_of_the_environment_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    write_schedule(steady(2, 0.05), tmp_path / "schedule.parquet")
    with ScriptedServer(Normal()) as server:
        result = run_load(plan_for(server.url, tmp_path), on_event=lambda _: None, should_stop=never)
    assert result.figures["failed"] == 0


def test_a_server_that_stops_reading_a_large_prompt_does_not_hold_up_the_others(tmp_path: Path) -> None:
    def slow_for_large(sent: Request, peer: Peer) -> None:
        if len(sent.prompt) > 1000:
            peer.hang()
        Normal()(sent, peer)

    large = request(90, 0.0, segments=(Segment(1, 400_000),))
    planned = schedule(large, *(request(i, 0.3 + i * 0.01) for i in range(10)), for_s=0.5, timeout_s=1.0)
    write_schedule(planned, tmp_path / "schedule.parquet")
    with ScriptedServer(slow_for_large) as server:
        result = run_load(plan_for(server.url, tmp_path), on_event=lambda _: None, should_stop=never)
    rows = pq.read_table(tmp_path / "requests.parquet").to_pandas().set_index("id")
    assert rows.loc[90, "error"].startswith("timeout")
    assert (rows.drop(90)["status"] == "ok").all()
    assert result.complete
