"""Several workers are one client: the same requests at the same times, one result, and never a wrong number."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pandas as pd
import psutil
import pytest
from scipy.stats import ks_2samp

from kvbench.errors import InputError, LoadError
from kvbench.load.recorder import read_part
from kvbench.load.run import LoadResult, run_load
from kvbench.spec.access import Access
from kvbench.spec.crew import Crew
from kvbench.workload.schedule import Schedule
from kvbench.workload.storage import write_schedule
from tests.load.play import plan_for, request, schedule
from tests.load.server import Normal, Peer, Request, ScriptedServer

KS_LEVEL = 0.001
"""So low that a busy machine raises no false alarm; the same requests took the same time at the server."""
PLANNED, SESSIONS, PRIMING = 160, 10, 2
RATE = 40
ALL = PLANNED + SESSIONS + PRIMING


def never() -> bool:
    return False


def words_of(process: psutil.Process) -> list[str]:
    """Its command; nothing once it has ended."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def processes_of_the_load() -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process().children(recursive=True)
        if any(word.startswith("kvbench.load.") for word in words_of(child))
    ]


def workers_of_the_load() -> list[psutil.Process]:
    """In the order of their indexes."""
    found = [child for child in processes_of_the_load() if "kvbench.load.worker" in words_of(child)]
    return sorted(found, key=words_of)


def play(
    planned: Schedule,
    url: str,
    out: Path,
    crew: Crew,
    *,
    on_event: Callable[[dict[str, object]], None] = lambda _: None,
    should_stop: Callable[[], bool] = never,
    **changed: object,
) -> LoadResult:
    out.mkdir(exist_ok=True)
    write_schedule(planned, out / "schedule.parquet")
    return run_load(plan_for(url, out, crew=crew, **changed), on_event=on_event, should_stop=should_stop)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    deadline = time.monotonic() + 3
    while processes_of_the_load() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes_of_the_load() == []


def steady(count: int, gap_s: float) -> Schedule:
    return schedule(*(request(i, i * gap_s) for i in range(count)), for_s=count * gap_s)


def mixed() -> Schedule:
    """A Poisson process at a low rate, sessions of two turns at its beginning, and two priming requests."""
    times = np.cumsum(np.random.default_rng(7).exponential(1 / RATE, PLANNED))
    requests = []
    for number, at_s in enumerate(times):
        session = number if number < 3 * SESSIONS and number % 3 == 0 else None
        requests.append(request(len(requests), float(at_s), session=session))
        if session is not None:
            before = requests[-1].id
            requests.append(request(before + 1, None, session=session, turn=1, continues=before, think_s=0.2))
    prime = tuple(request(1000 + n, None, phase="prime", measured=False) for n in range(PRIMING))
    return schedule(*requests, for_s=float(times[-1]) + 1.5, prime=prime)


def of_its_prompt(sent: Request, peer: Peer) -> None:
    """How long it takes depends on what is asked alone, so that the same requests take the same time; it is spread
    so widely that what a busy test machine adds does not matter."""
    seed = sum(sent.prompt)
    Normal(first_s=0.005 + seed % 151 / 1000, gap_s=0.005 + seed % 61 / 1000)(sent, peer)


@dataclass
class Played:
    result: LoadResult
    requests: pd.DataFrame
    tokens: pd.DataFrame
    figures: dict[str, object]
    files: set[str]

    @property
    def ttft_s(self) -> pd.Series:
        measured = self.requests[self.requests["measured"]]
        return measured["first_token_s"] - measured["intended_s"]

    @property
    def tpot_s(self) -> pd.Series:
        """One value a request: its gaps depend on each other."""
        return (self.requests["last_token_s"] - self.requests["first_token_s"]) / 3


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Played]:
    """The same schedule by 1, 2, 4 and 8 workers."""
    found = {}
    for workers in (1, 2, 4, 8):
        out = tmp_path_factory.mktemp(f"workers-{workers}")
        with ScriptedServer(of_its_prompt) as server:
            result = play(mixed(), server.url, out, Crew(local=workers))
        assert result.faults == ()
        found[workers] = Played(
            result,
            pd.read_parquet(out / "requests.parquet").sort_values("id").reset_index(drop=True),
            pd.read_parquet(out / "tokens.parquet"),
            json.loads((out / "load.json").read_text()),
            {path.name for path in out.iterdir()},
        )
    return found


class TestOneClient:
    @pytest.mark.parametrize("workers", [2, 4, 8])
    def test_the_same_requests_go_out_at_the_same_times(self, played: dict[int, Played], workers: int) -> None:
        one, several = played[1].requests, played[workers].requests
        same = ["id", "class", "session", "turn", "prompt_digest", "output_digest", "status", "intended_basis"]
        pd.testing.assert_frame_equal(one[same], several[same])
        planned = one["intended_basis"] == "schedule"
        assert planned.sum() == PLANNED
        assert one["intended_s"][planned].equals(several["intended_s"][planned])

    @pytest.mark.parametrize("workers", [2, 4])
    def test_no_test_can_tell_their_latencies_apart(self, played: dict[int, Played], workers: int) -> None:
        one, several = played[1], played[workers]
        assert len(one.ttft_s) == len(several.ttft_s) == PLANNED + SESSIONS
        assert ks_2samp(one.ttft_s, several.ttft_s).pvalue > KS_LEVEL
        assert ks_2samp(one.tpot_s, several.tpot_s).pvalue > KS_LEVEL

    def test_those_tests_would_tell_other_latencies_apart(self, played: dict[int, Played]) -> None:
        """Given as many, of which all are 40 ms longer, or half as long again, or all as long as their mean is."""
        for own in (played[1].ttft_s, played[1].tpot_s * 3):
            for other in (own + 0.04, own * 1.5, own * 0 + own.mean()):
                assert ks_2samp(own, other).pvalue < KS_LEVEL

    @pytest.mark.parametrize("workers", [1, 2, 4, 8])
    def test_there_is_one_result_whatever_their_number(self, played: dict[int, Played], workers: int) -> None:
        it = played[workers]
        assert it.result.complete
        assert (it.result.planned, it.result.rows) == (ALL, ALL)
        assert len(it.tokens) == ALL * 4
        assert set(it.requests["worker"]) == set(range(workers))
        assert it.files == {
            "schedule.parquet", "load-plan.json", "load.json", "requests.parquet", "tokens.parquet",
        }  # fmt: skip
        assert it.result.figures["requests"] == ALL
        assert it.result.figures["failed"] == 0

    @pytest.mark.parametrize("workers", [2, 4])
    def test_each_plays_about_as_much_and_says_how_it_went(self, played: dict[int, Played], workers: int) -> None:
        it = played[workers]
        measured = it.requests[it.requests["measured"]]
        assert measured["worker"].value_counts().min() >= PLANNED // workers - SESSIONS
        assert set(it.requests[~it.requests["measured"]]["worker"]) == {0}
        about = it.figures["by_worker"]
        assert isinstance(about, list)
        assert [each["worker"] for each in about] == list(range(workers))
        assert all(each["local"] and each["clock_error_s"] == 0 for each in about)
        assert it.result.figures["workers"] == workers
        assert it.result.figures["worker_clock_error_max_s"] == 0

    def test_sessions_stay_with_one_worker(self, played: dict[int, Played]) -> None:
        sessions = played[4].requests.dropna(subset="session").groupby("session")["worker"]
        assert (sessions.nunique() == 1).all()
        assert (sessions.size() == 2).all()


def test_slots_of_a_closed_loop_are_shared_out_exactly(tmp_path: Path) -> None:
    planned = schedule(*(request(i, 0.0) for i in range(3000)), for_s=1.0, concurrency=3)
    with ScriptedServer(Normal(first_s=0.02)) as server:
        result = play(planned, server.url, tmp_path, Crew(local=2))
    rows = pd.read_parquet(tmp_path / "requests.parquet")
    assert result.complete
    assert server.peak == 3
    assert set(rows["status"]) == {"ok", "unsent"}
    assert (rows[rows["status"] == "ok"].groupby("worker").size() > 10).all()


def once(event_name: str, act: Callable[[], object]) -> Callable[[dict[str, object]], None]:
    def on_event(event: dict[str, object]) -> None:
        if event["event"] == event_name and not done:
            done.append(1)
            act()

    done: list[int] = []
    return on_event


def signal_to(worker: int, number: signal.Signals) -> Callable[[], None]:
    return lambda: workers_of_the_load()[worker].send_signal(number)


class TestLost:
    def test_a_killed_worker_spoils_the_round_and_what_came_is_no_result(self, tmp_path: Path) -> None:
        with ScriptedServer(Normal()) as server:
            result = play(
                steady(2000, 0.01), server.url, tmp_path, Crew(local=2),
                on_event=once("progress", signal_to(1, signal.SIGKILL)),
            )  # fmt: skip
        assert not result.complete
        (fault,) = result.faults
        assert fault.startswith("worker 1 was lost ")
        assert "killed by signal 9" in fault
        assert not (tmp_path / "requests.parquet").exists()
        rows = pd.concat(batch.to_pandas() for batch in read_part(tmp_path / "worker-1" / "requests.part.arrows"))
        assert set(rows["worker"]) == {1}

    def test_a_worker_that_stands_still_spoils_the_round(self, tmp_path: Path) -> None:
        with ScriptedServer(Normal()) as server:
            result = play(
                steady(3000, 0.01), server.url, tmp_path, Crew(local=2),
                on_event=once("progress", signal_to(0, signal.SIGSTOP)),
            )  # fmt: skip
        (fault,) = result.faults
        assert fault.startswith("worker 0 was lost ")
        assert not (tmp_path / "requests.parquet").exists()

    def test_a_worker_that_is_held_up_at_the_start_spoils_the_round(self, tmp_path: Path) -> None:
        """Suspended while another primes, it hears of the start when that is over."""
        prime = tuple(request(5000 + n, None, phase="prime", measured=False) for n in range(4))
        planned = schedule(*(request(i, i * 0.01) for i in range(1000)), for_s=10, prime=prime)
        held: list[psutil.Process] = []

        def hold_up() -> None:
            held.append(workers_of_the_load()[1])
            held[0].suspend()

        def let_go(event: dict[str, object]) -> None:
            once_primed(event)
            if event["event"] == "started":
                time.sleep(0.6)
                held[0].resume()

        once_primed = once("prime", hold_up)
        with ScriptedServer(Normal(first_s=0.2)) as server:
            result = play(planned, server.url, tmp_path, Crew(local=2), on_event=let_go)
        (fault,) = result.faults
        assert fault.startswith("worker 1 was late at the start by 0.")

    def test_the_masters_death_ends_all_and_is_told(self, tmp_path: Path) -> None:
        def kill_the_master() -> None:
            next(p for p in processes_of_the_load() if "kvbench.load.master" in words_of(p)).kill()

        with ScriptedServer(Normal()) as server, pytest.raises(LoadError, match="killed by signal 9"):
            play(
                steady(2000, 0.01), server.url, tmp_path, Crew(local=2),
                on_event=once("started", kill_the_master),
            )  # fmt: skip


def test_the_web_view_shows_the_round_and_changes_nothing(tmp_path: Path) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    answers: dict[str, int] = {}

    def visit() -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as browser:
            answers["index"] = browser.get("/").status_code
            stats = browser.get("/stats/requests")
            answers["stats"] = stats.status_code
            answers["workers"] = len(stats.json()["workers"])
            answers["swarm"] = browser.post("/swarm", data={"user_count": 5, "spawn_rate": 5}).status_code
            answers["stop"] = browser.post("/stop").status_code
            answers["foreign"] = browser.get("/", headers={"Host": f"attacker.example:{port}"}).status_code

    with ScriptedServer(Normal()) as server:
        crew = Crew(local=1, web_port=port)
        result = play(steady(40, 0.05), server.url, tmp_path, crew, on_event=once("progress", visit))
    assert answers == {"index": 200, "stats": 200, "workers": 1, "swarm": 403, "stop": 403, "foreign": 403}
    assert result.complete
    assert result.rows == 40
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/", trust_env=False)


class TestEnds:
    def test_a_round_ended_early_has_all_its_rows(self, tmp_path: Path) -> None:
        with ScriptedServer(Normal(first_s=0.3)) as server:
            result = play(
                steady(400, 0.05), server.url, tmp_path, Crew(local=2),
                should_stop=lambda: len(server.requests) > 10,
            )  # fmt: skip
        rows = pd.read_parquet(tmp_path / "requests.parquet")
        assert not result.complete
        assert result.faults == ()
        assert len(rows) == rows["id"].nunique() == 400
        assert set(rows["status"]) == {"ok", "error", "unsent"}
        assert set(rows["worker"]) == {0, 1}

    def test_one_ended_before_it_began_has_them_too(self, tmp_path: Path) -> None:
        with ScriptedServer(Normal()) as server:
            result = play(
                steady(10, 0.05),
                server.url,
                tmp_path,
                Crew(local=2),
                should_stop=lambda: bool(workers_of_the_load()),
            )
        assert not result.complete
        assert server.requests == []
        assert set(pd.read_parquet(tmp_path / "requests.parquet")["status"]) == {"unsent"}

    @pytest.mark.parametrize("moment", ["ready", "started"])
    def test_whatever_the_callbacks_raise_no_worker_is_left(self, tmp_path: Path, moment: str) -> None:
        def interrupt() -> None:
            raise KeyboardInterrupt

        with ScriptedServer(Normal()) as server, pytest.raises(KeyboardInterrupt):
            play(steady(2000, 0.01), server.url, tmp_path, Crew(local=2), on_event=once(moment, interrupt))
        assert processes_of_the_load() == []

    def test_a_signal_to_the_master_ends_its_workers(self, tmp_path: Path) -> None:
        def terminate() -> None:
            master = next(p for p in processes_of_the_load() if "kvbench.load.master" in words_of(p))
            os.kill(master.pid, signal.SIGTERM)

        with ScriptedServer(Normal()) as server, pytest.raises(LoadError, match="signal 15"):
            play(steady(2000, 0.01), server.url, tmp_path, Crew(local=2), on_event=once("started", terminate))

    def test_a_missing_key_is_the_users_to_mend(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("KVBENCH_TEST_KEY", raising=False)
        access = Access(api_key_env="KVBENCH_TEST_KEY")
        with pytest.raises(InputError, match=r"worker [01]: .*KVBENCH_TEST_KEY"):
            play(steady(2, 0.05), "http://127.0.0.1:1", tmp_path, Crew(local=2), access=access)
