"""A hook has ended when it ends, whatever it leaves running; a signal waits for it, and forgets nothing of it."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kvbench.canary.hook import SHOWN, fire
from kvbench.canary.verdict import HookResult
from kvbench.errors import Interrupted
from kvbench.interrupts import stop_on_signals
from tests.canary.watched import BAD, Clock, Stored, both, gate, loaded


def told(folder: Path, script: str, timeout: str = "20s") -> HookResult:
    breach = {"hook": ["sh", "-c", script], "armed": True, "timeout": timeout}
    return fire(loaded(folder, json.dumps(breach)).canary, {"a": 1}, "id-1")


def test_what_a_hook_starts_may_go_on_and_is_left_alone(tmp_path: Path) -> None:
    """As a server that it has started again, and that has the hook's own output open still."""
    result = told(tmp_path, f"sleep 300 & echo $! > {tmp_path / 'pid'}; exit 0", timeout="5s")
    server = int((tmp_path / "pid").read_text())
    try:
        assert (result.state, result.text) == ("done", "sh ended with 0")
        os.kill(server, 0)
    finally:
        os.kill(server, signal.SIGKILL)


def test_one_that_does_not_end_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    result = told(tmp_path, f"sleep 300 & echo $! > {tmp_path / 'pid'}; wait", timeout="1s")
    assert (result.state, result.text) == ("failed", "sh did not end within 1 s and was killed")
    started = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 10
    while _lives(started) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _lives(started)


def _lives(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo out; echo why >&2; exit 3", ": why"),
        ("echo out; exit 3", ": out"),
        ("exit 3", ""),
        ("cat; exit 3", ': {"a": 1}'),
        ("head -c 3000000 /dev/zero | tr '\\0' x >&2; echo END >&2; exit 3", ": " + "x" * (SHOWN - 3) + "END"),
        ("printf 'a\\033[31mb\\n' >&2; exit 3", ": a\N{REPLACEMENT CHARACTER}[31mb"),
    ],
)
def test_the_end_of_what_a_failed_one_said_is_told(tmp_path: Path, script: str, said: str) -> None:
    result = told(tmp_path, script)
    assert (result.state, result.text) == ("failed", f"sh ended with 3{said}")


def test_one_that_cannot_be_run_says_why(tmp_path: Path) -> None:
    canary = loaded(tmp_path, '{hook: ["/no/such/hook"], armed: true}').canary
    assert fire(canary, {}, "id-1").text == "/no/such/hook cannot be run: No such file or directory"


def test_a_post_is_done_with_its_status_whatever_becomes_of_the_rest(tmp_path: Path) -> None:
    """An answer that stays away after 200 would else count as none, and the post be sent again."""
    received: list[str] = []
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(self.headers["X-Kvbench-Delivery"])
            self.send_response(200)
            self.send_header("Content-Length", "5")
            self.end_headers()
            over.wait(30)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    breach = {"post": f"http://127.0.0.1:{server.server_port}/x", "armed": True, "timeout": "1s", "retries": 1}
    try:
        result = fire(loaded(tmp_path, json.dumps(breach)).canary, {"a": 1}, "id-1", lambda _: None)
    finally:
        over.set()
        server.shutdown()
        server.server_close()
        thread.join()
    assert (result.state, received) == ("done", ["id-1"]), result.text


@pytest.mark.parametrize("looks_back", [True, False])
def test_a_signal_waits_for_the_hook_and_how_it_ended_is_on_disk(tmp_path: Path, looks_back: bool) -> None:
    """The hook itself has the gate stopped, goes on for two looks more, and ends well."""
    script = f"kill -TERM {os.getpid()}; sleep 1.2; cat >> {tmp_path / 'told'}; echo >> {tmp_path / 'told'}"
    canary = loaded(tmp_path, json.dumps({"hook": ["sh", "-c", script], "armed": True, "within": "4m"}))
    clock = Clock()
    reader = Stored(clock, both(BAD), looks_back=looks_back)
    with stop_on_signals(), gate(tmp_path, reader, canary=canary) as watched:
        watched.feed.every_s = 0.4
        with pytest.raises(Interrupted):
            watched.watch(lambda _: None)
    with gate(tmp_path, Stored(clock, both(BAD), looks_back=looks_back), canary=canary) as again:
        verdict = again.watch(lambda _: None)
    assert verdict.hook is not None
    assert verdict.hook.state == "done"
    assert len((tmp_path / "told").read_text().splitlines()) == 1
