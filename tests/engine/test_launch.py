"""Starting vLLM, played by a stand-in: readiness, ports, and every way in which a start can go wrong."""

from __future__ import annotations

import http.server
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from kvbench.engine import launch, launched
from kvbench.engine.base import Launch
from kvbench.engine.launch import plan_disk_directory
from kvbench.engine.launched import LaunchedEngine
from kvbench.engine.ports import check_free, free_port
from kvbench.engine.ready import Readiness
from kvbench.engine.remains import MARK, make_directory
from kvbench.engine.vllm_engine import VllmEngine
from kvbench.errors import EngineError, InputError
from kvbench.spec.profile import Profile
from tests.engine.test_keeper import gone, nothing_left

STAND_IN = Path(__file__).with_name("stand_in.py")
pytestmark = pytest.mark.usefixtures("home")


def a_profile(
    *, args: dict | None = None, engine: dict | None = None, tiers: dict | None = None, **env: str
) -> Profile:
    return Profile.model_validate(
        {
            "name": "arm",
            "engine": {
                "kind": "vllm",
                "command": [sys.executable, "-S", str(STAND_IN)],
                "version": "0.32.0",
                "model": "tiny",
                "args": args or {},
                "env": {f"STAND_IN_{key}": value for key, value in env.items()},
                **(engine or {}),
            },
            "tiers": tiers or {},
        }
    )


def a_launch(tmp_path: Path) -> Launch:
    directory = tmp_path / "launch"
    directory.mkdir()
    return Launch(directory, directory / "engine-1.log", plan_disk_directory(tmp_path / "kv", "arm-1"), "arm-1")


def started(
    profile: Profile, tmp_path: Path, engines: list[LaunchedEngine], said: list[str] | None = None
) -> VllmEngine:
    engine = VllmEngine(profile, a_launch(tmp_path))
    engines.append(engine)
    engine.start((said if said is not None else []).append)
    return engine


def test_a_started_engine_answers_on_loopback_and_says_so(tmp_path: Path, engines: list[LaunchedEngine]) -> None:
    said: list[str] = []
    engine = VllmEngine(a_profile(), a_launch(tmp_path))
    engines.append(engine)
    endpoint = engine.start(said.append)
    assert endpoint.base_url.startswith("http://127.0.0.1:")
    assert endpoint.metrics_url == f"{endpoint.base_url}/metrics"
    assert endpoint.extra_body["return_token_ids"] is True
    assert any(line.startswith("arm-1: ") for line in said)
    state = engine.state()
    assert state.alive
    assert len(state.pids) == 1
    engine.stop()
    assert all(gone(pid) for pid in state.pids)
    assert not engine.state().alive
    assert nothing_left(tmp_path)
    check_free(int(endpoint.base_url.rpartition(":")[2]))


@pytest.mark.parametrize("asked", [None, "1"], ids=["not asked for", "asked for"])
def test_a_variable_that_swaps_the_connector_reaches_the_engine_from_its_profile_alone(
    tmp_path: Path, engines: list[LaunchedEngine], monkeypatch: pytest.MonkeyPatch, asked: str | None
) -> None:
    monkeypatch.setenv("VLLM_USE_SIMPLE_KV_OFFLOAD", "1")
    profile = a_profile(engine={"env": {"VLLM_USE_SIMPLE_KV_OFFLOAD": asked} if asked else {}})
    engine = started(profile, tmp_path, engines)
    (pid,) = engine.state().pids
    seen = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert (b"VLLM_USE_SIMPLE_KV_OFFLOAD=1" in seen) is bool(asked)


def test_a_dead_start_is_noticed_at_once_with_its_cause(tmp_path: Path, engines: list[LaunchedEngine]) -> None:
    text = (
        "ValueError: To serve at least one request with the model's max seq len (8192), (0.02 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (0.02 GiB). Based on the available memory, the "
        "estimated maximum model length is 8064."
    )
    with pytest.raises(EngineError) as caught:
        started(a_profile(DIE=text), tmp_path, engines)
    message = str(caught.value)
    assert "arm-1: the engine did not start: the device tier is too small" in message
    assert "at most 8064 tokens fit" in message
    assert "its last words" in message
    assert f"log: {tmp_path / 'launch' / 'engine-1.log'}" in message
    assert "→ raise tiers.device.blocks" in message
    assert nothing_left(tmp_path)


def test_a_hung_start_is_ended(
    tmp_path: Path, engines: list[LaunchedEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Readiness("", "", 1, "", 1.0).hung_after_s == 60, "seconds, unless somebody is less patient"

    def impatient(**fields: object) -> Readiness:
        return replace(Readiness(**fields), hung_after_s=0.8)  # type: ignore[arg-type]

    monkeypatch.setattr(launched, "Readiness", impatient)
    with pytest.raises(EngineError, match=r"it hangs: no log line and no CPU time for \d s"):
        started(a_profile(HANG="1"), tmp_path, engines)
    assert nothing_left(tmp_path)


def test_a_start_that_takes_longer_than_allowed_is_ended(tmp_path: Path, engines: list[LaunchedEngine]) -> None:
    profile = a_profile(engine={"ready_timeout": 0.8}, START_AFTER="60")
    with pytest.raises(EngineError, match=r"not ready after 800 ms") as caught:
        started(profile, tmp_path, engines)
    assert "engine.ready_timeout" in str(caught.value)


def test_an_engine_that_answers_500_does_not_count_as_ready(tmp_path: Path, engines: list[LaunchedEngine]) -> None:
    with pytest.raises(EngineError, match=r"/health: 500"):
        started(a_profile(engine={"ready_timeout": 1.5}, HEALTH="500"), tmp_path, engines)


def test_a_server_of_another_version_is_an_error(tmp_path: Path, engines: list[LaunchedEngine]) -> None:
    with pytest.raises(EngineError, match=r"pins version 0\.32\.0, and the server that runs is 0\.31\.2"):
        started(a_profile(VERSION="0.31.2"), tmp_path, engines)
    assert nothing_left(tmp_path)


def test_the_port_asked_for_is_used(tmp_path: Path, engines: list[LaunchedEngine]) -> None:
    port = free_port()
    engine = VllmEngine(a_profile(args={"port": port}), a_launch(tmp_path))
    engines.append(engine)
    assert engine.start(lambda _: None).base_url == f"http://127.0.0.1:{port}"


def test_a_port_in_use_is_told_before_anything_starts(tmp_path: Path, engines: list[LaunchedEngine]) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        port = server.server_address[1]
        with pytest.raises(InputError, match=f"port {port} is in use by process {os.getpid()}"):
            started(a_profile(args={"port": port}), tmp_path, engines)
    assert not (tmp_path / "launch" / "engine-1.log").exists()


def test_a_race_lost_for_the_port_is_run_once_more(tmp_path: Path, engines: list[LaunchedEngine]) -> None:
    said: list[str] = []
    engine = started(a_profile(PORT_LOST_ONCE=str(tmp_path / "lost")), tmp_path, engines, said)
    assert engine.state().alive
    assert any("starting again on another one" in line for line in said)
    (kv,) = (tmp_path / "kv").iterdir()
    assert (kv / MARK).is_file(), "the second start has the disk directory too"
    os.kill(*engine.state().pids, signal.SIGKILL)
    while engine.state().alive:
        time.sleep(0.02)
    assert "port" not in engine.state().detail, "that was the end of the first start"


def test_another_process_that_answers_on_the_port_is_not_the_engine(
    tmp_path: Path, engines: list[LaunchedEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Impostor() as impostor:
        monkeypatch.setattr(launched, "free_port", lambda: impostor.port)
        with pytest.raises(EngineError, match=r"port|answered by another process"):
            started(a_profile(START_AFTER="60"), tmp_path, engines)
    assert nothing_left(tmp_path)


class Impostor:
    """A healthy server of somebody else."""

    def __enter__(self) -> Impostor:
        class Answers(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = b'{"data": [{"id": "tiny"}]}'
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"max-modle-len": 8192}, "did you mean max-model-len"),
        ({"port": 0}, "is no port"),
        ({"port": "x"}, "is no port"),
        ({"kv-transfer-config.kv_role": "kv_both"}, "is kvbench's to set"),
        ({"kv-cache-dtype-skip-layers": [1]}, "has no flag"),
    ],
)
def test_args_are_checked_before_anything_starts(
    tmp_path: Path, engines: list[LaunchedEngine], args: dict, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        started(a_profile(args=args), tmp_path, engines)
    assert not (tmp_path / "launch" / "engine-1.log").exists()


def test_a_kv_dtype_that_this_version_does_not_have_is_refused(
    tmp_path: Path, engines: list[LaunchedEngine]
) -> None:
    profile = a_profile(tiers={"device": {"kv_dtype": "fp8_e5m2"}})
    with pytest.raises(InputError, match="does not take 'fp8_e5m2'"):
        started(profile, tmp_path, engines)


def test_a_signal_during_the_start_leaves_nothing(tmp_path: Path, engines: list[LaunchedEngine]) -> None:
    def interrupted(line: str) -> None:
        if line.startswith("arm-1: "):
            raise KeyboardInterrupt

    engine = VllmEngine(a_profile(START_AFTER="60"), a_launch(tmp_path))
    engines.append(engine)
    with pytest.raises(KeyboardInterrupt):
        engine.start(interrupted)
    engine.stop()
    assert nothing_left(tmp_path)


def test_the_death_of_a_running_engine_shows_in_its_state(tmp_path: Path, engines: list[LaunchedEngine]) -> None:
    engine = started(a_profile(), tmp_path, engines)
    os.kill(engine.state().pids[0], 9)
    deadline = time.monotonic() + 5
    while engine.state().alive and time.monotonic() < deadline:
        time.sleep(0.02)
    assert engine.state().detail == "the engine ended by signal 9"


def test_a_disk_directory_of_a_crashed_run_is_removed_when_the_next_is_made(
    tmp_path: Path, engines: list[LaunchedEngine]
) -> None:
    left = make_directory(plan_disk_directory(tmp_path / "kv", "arm-0"))
    alive = make_directory(plan_disk_directory(tmp_path / "kv", "arm-2"))
    mark = (left / MARK).read_text().replace(f'"owner": [{os.getpid()}', '"owner": [4194305')
    (left / MARK).write_text(mark)
    started(a_profile(), tmp_path, engines)
    assert not left.exists()
    assert alive.exists()


def test_what_a_crashed_run_left_and_cannot_be_removed_keeps_no_other_from_starting(
    tmp_path: Path, engines: list[LaunchedEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of root's, or another kvbench that is just removing it."""
    left = make_directory(plan_disk_directory(tmp_path / "kv", "arm-0"))
    (left / MARK).write_text((left / MARK).read_text().replace(f'"owner": [{os.getpid()}', '"owner": [4194305'))

    def refuse(path: Path) -> bool:
        raise PermissionError(1, "Operation not permitted", str(path))

    monkeypatch.setattr(launch, "remove_directory", refuse)
    assert started(a_profile(), tmp_path, engines).state().alive
    assert left.exists()


def test_a_disk_path_that_cannot_be_used_is_an_input_error(tmp_path: Path, engines: list[LaunchedEngine]) -> None:
    (tmp_path / "kv").write_text("")
    with pytest.raises(InputError, match=rf"tiers\.disk\.path: cannot make a directory under {tmp_path / 'kv'}: "):
        started(a_profile(), tmp_path, engines)
    assert not list((tmp_path / "home" / "leases").iterdir())
    assert not (tmp_path / "launch" / "engine-1.log").exists(), "nothing was started"


def test_nothing_is_made_before_a_lease_names_it(
    tmp_path: Path, engines: list[LaunchedEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    def make(path: Path) -> Path:
        (lease,) = (tmp_path / "home" / "leases").glob("*.json")
        assert str(path) in lease.read_text()
        made.append(path)
        return make_directory(path)

    monkeypatch.setattr(launch, "make_directory", make)
    planned = a_launch(tmp_path)
    assert not (tmp_path / "kv").exists()
    engine = VllmEngine(a_profile(), planned)
    engines.append(engine)
    engine.start(lambda _: None)
    assert len(made) == 2
    assert planned.disk_directory in made


@pytest.mark.parametrize("told", ["<html>not here</html>", "[1]", '"0.32.0"', '{"version": 32}', "null", "{}"])
def test_an_engine_that_does_not_tell_its_version_is_of_an_unknown_one(
    tmp_path: Path, engines: list[LaunchedEngine], told: str
) -> None:
    engine = started(a_profile(VERSION_ANSWER=told), tmp_path, engines)
    assert "the version" in engine.effective().unknown


def test_an_engine_that_dies_right_after_it_was_ready_did_not_start(
    tmp_path: Path, engines: list[LaunchedEngine]
) -> None:
    with pytest.raises(EngineError, match=r"arm-1: the engine did not start: ") as caught:
        started(a_profile(DIE_AT_VERSION="RuntimeError: no luck at all"), tmp_path, engines)
    assert "no luck at all" in str(caught.value)
    assert f"log: {tmp_path / 'launch' / 'engine-1.log'}" in str(caught.value)
    assert nothing_left(tmp_path)


def test_an_engine_that_hangs_right_after_it_was_ready_did_not_start(
    tmp_path: Path, engines: list[LaunchedEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launched, "ANSWER_S", 0.5)
    with pytest.raises(
        EngineError, match=r"it was ready, and then gave no answer \(/version: timed out\)"
    ) as caught:
        started(a_profile(HANG_AT_VERSION="1"), tmp_path, engines)
    assert f"log: {tmp_path / 'launch' / 'engine-1.log'}" in str(caught.value)
    assert nothing_left(tmp_path)
