"""Workers that join from elsewhere prove themselves, their clocks are measured, and strangers change nothing."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgpack
import pandas as pd
import psutil
import pytest
import zmq

from kvbench.load.run import LoadResult
from kvbench.spec.crew import Crew
from tests.load.play import request, schedule
from tests.load.server import Normal, ScriptedServer
from tests.load.test_workers import nothing_is_left, play, steady  # noqa: F401  (a fixture)

SECRET_ENV = "KVBENCH_TEST_WORKER_SECRET"


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextmanager
def joining_worker(
    address: str, secret: str, *more: str, inside: tuple[str, ...] = ()
) -> Iterator[subprocess.Popen[str]]:
    """`kvbench worker` as somebody else would start it."""
    process = subprocess.Popen(
        [
            *inside, sys.executable, "-m", "kvbench", "worker", "--master", address,
            "--worker-secret-env", SECRET_ENV, *more,
        ],
        env={**os.environ, SECRET_ENV: secret, "NO_COLOR": "1", "COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=10)


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> str:
    text = secrets.token_hex(16)
    monkeypatch.setenv(SECRET_ENV, text)
    return text


def crew(port: int, *, host: str = "127.0.0.1", local: int = 1, joining: int = 1, timeout_s: float = 60.0) -> Crew:
    return Crew(
        local=local, joining=joining, bind=f"{host}:{port}", secret_env=SECRET_ENV, join_timeout_s=timeout_s
    )


def strangers(port: int, stop: threading.Event) -> None:
    """Whoever else may knock: noise, Locust's own words, a worker without the secret."""
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.IDENTITY, b"stranger")
    dealer.setsockopt(zmq.LINGER, 0)
    dealer.connect(f"tcp://127.0.0.1:{port}")
    words: list[object] = [
        ("client_ready", "2.0", "stranger"),
        ("locustfile", {"version": "2.0"}, "stranger"),
        ("stats", {"stats": 7}, "stranger"),
        ("kvbench", {"kind": "Finished", "body": b"{}", "blob": b"", "number": 1, "tag": b""}, "stranger"),
        ("kvbench", "nonsense", "stranger"),
        ("quit", None, "somebody else"),
        [1, 2],
        7,
    ]
    while not stop.wait(0.05):
        for word in words:
            dealer.send(msgpack.dumps(word))
        dealer.send(b"\xc1\xff\x00 not msgpack")
        dealer.send_multipart([b"a", b"b", b"c"])
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1) as sock:
                sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        except OSError:
            continue
    dealer.close()
    context.term()


class TestFromElsewhere:
    def test_one_joins_plays_its_share_and_its_clock_is_measured_while_strangers_knock(
        self, tmp_path: Path, secret: str
    ) -> None:
        port = free_port()
        stop = threading.Event()
        knocking = threading.Thread(target=strangers, args=(port, stop))
        knocking.start()
        try:
            with (
                ScriptedServer(Normal()) as server,
                joining_worker(f"127.0.0.1:{port}", secret, "--rounds", "1") as worker,
            ):
                result = play(steady(40, 0.05), server.url, tmp_path, crew(port))
                assert worker.wait(15) == 0
        finally:
            stop.set()
            knocking.join()
        self.check(result, tmp_path, rows=40)

    def check(self, result: LoadResult, out: Path, *, rows: int, offset_s: float = 0.0) -> None:
        """Both processes ran on this machine, so the true offset is zero, or what the worker's clock was given."""
        assert result.faults == ()
        assert result.complete
        recorded = pd.read_parquet(out / "requests.parquet")
        assert sorted(recorded["id"]) == list(range(rows))
        assert recorded["worker"].value_counts().to_dict() == {0: rows // 2, 1: rows // 2}
        assert set(recorded["status"]) == {"ok"}
        _, joined = json.loads((out / "load.json").read_text())["by_worker"]
        assert not joined["local"]
        assert abs(joined["clock_offset_s"] - offset_s) <= joined["clock_error_s"]
        assert abs(joined["clock_offset_after_s"] - offset_s) <= joined["clock_error_s"]
        assert result.figures["worker_clock_offset_max_s"] == pytest.approx(abs(joined["clock_offset_s"]), abs=1e-9)
        assert 0 < joined["clock_error_s"] == result.figures["worker_clock_error_max_s"]

    def test_without_the_right_secret_it_is_turned_away_and_the_round_does_not_count(
        self, tmp_path: Path, secret: str
    ) -> None:
        port = free_port()
        with (
            ScriptedServer(Normal()) as server,
            joining_worker(f"127.0.0.1:{port}", "another secret than that") as worker,
        ):
            result = play(steady(10, 0.05), server.url, tmp_path, crew(port, timeout_s=8.0))
            assert worker.wait(20) == 2
            assert worker.stderr
            assert "does not have the secret" in worker.stderr.read()
        assert result.faults == ("1 of 1 workers from elsewhere did not join in time",)
        assert server.requests == []
        assert not (tmp_path / "requests.parquet").exists()

    def test_it_goes_on_to_the_next_round_and_ctrl_c_ends_it_without_a_trace(
        self, tmp_path: Path, secret: str
    ) -> None:
        port = free_port()
        with ScriptedServer(Normal()) as server, joining_worker(f"127.0.0.1:{port}", secret) as worker:
            for number in (1, 2):
                planned = schedule(*(request(i, i * 0.05) for i in range(10)), for_s=0.6)
                result = play(planned, server.url, tmp_path / str(number), crew(port, local=0))
                assert result.faults == ()
                assert set(pd.read_parquet(tmp_path / str(number) / "requests.parquet")["worker"]) == {0}
            processes = [worker.pid, *(each.pid for each in psutil.Process(worker.pid).children())]
            worker.send_signal(2)
            assert worker.wait(10) == 130
            assert not any(psutil.pid_exists(pid) for pid in processes)

    def test_killed_it_spoils_the_round(self, tmp_path: Path, secret: str) -> None:
        port = free_port()

        def kill(event: dict[str, object]) -> None:
            if event["event"] == "progress":
                for child in psutil.Process(worker.pid).children():
                    child.kill()

        with (
            ScriptedServer(Normal()) as server,
            joining_worker(f"127.0.0.1:{port}", secret, "--rounds", "1") as worker,
        ):
            result = play(steady(3000, 0.01), server.url, tmp_path, crew(port), on_event=kill)
        (fault,) = result.faults
        assert fault.startswith(f"worker 1 on {socket.gethostname()} was lost ")


# -- two machines, played by two network namespaces ---------------------------------------------------------------


def run_ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture
def other_machine() -> Iterator[tuple[str, str]]:
    """The name of a network namespace that is joined to ours by a cable, and our address on that."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces need root and iproute2")
    name, ours, theirs = f"kvb{os.getpid()}", f"kva{os.getpid()}", f"kvc{os.getpid()}"
    try:
        run_ip("netns", "add", name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
    try:
        run_ip("link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", name)
        run_ip("addr", "add", "10.251.77.1/24", "dev", ours)
        run_ip("link", "set", ours, "up")
        run_ip("-n", name, "addr", "add", "10.251.77.2/24", "dev", theirs)
        run_ip("-n", name, "link", "set", theirs, "up")
        yield name, "10.251.77.1"
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no cable between network namespaces here: {error.stderr.strip()}")
    finally:
        run_ip("netns", "delete", name)


def with_clock_ahead(ahead_s: float) -> tuple[str, ...]:
    """Words that start a command under a monotonic clock so far ahead of ours, as another machine's may be."""
    if not ahead_s:
        return ()
    words = ("unshare", "--time", "--monotonic", f"{ahead_s:.0f}")
    if shutil.which("unshare") is None:
        pytest.skip("a clock of its own needs unshare of util-linux")
    asked = [*words, sys.executable, "-c", "import time; print(time.monotonic())"]
    told = subprocess.run(asked, capture_output=True, text=True, check=False)
    if told.returncode or float(told.stdout) < time.monotonic() + ahead_s / 2:
        pytest.skip(f"no time namespaces here: {told.stderr.strip() or 'the clock stayed as it was'}")
    return words


@pytest.mark.parametrize("ahead_s", [0.0, 86_400.0])
def test_two_machines_play_one_schedule(
    ahead_s: float, other_machine: tuple[str, str], tmp_path: Path, secret: str
) -> None:
    name, address = other_machine
    port = free_port()
    with ScriptedServer(Normal(), host=address) as server:
        inside = ("ip", "netns", "exec", name, *with_clock_ahead(ahead_s))
        with joining_worker(f"{address}:{port}", secret, "--rounds", "1", inside=inside) as worker:
            result = play(steady(40, 0.05), server.url, tmp_path, crew(port, host=address))
            assert worker.wait(15) == 0
    TestFromElsewhere().check(result, tmp_path, rows=40, offset_s=ahead_s)
    sent_s = pd.read_parquet(tmp_path / "requests.parquet").set_index("id")["sent_s"]
    assert (sent_s - 0.05 * sent_s.index).abs().max() < 1.0, "both began at the same instant"
    assert {sent.peer for sent in server.requests} == {address, "10.251.77.2"}
