"""Engines in containers: start, proof, and an end for certain, whoever dies first.

The runtimes are played by a stand-in with a client and a service of its own, which runs the stand-in engine.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Protocol

import httpx
import pytest

from kvbench.engine import container_remains, flags, launched
from kvbench.engine.base import Launch
from kvbench.engine.container_remains import Container, remove_containers
from kvbench.engine.containers import by_client, short_command
from kvbench.engine.create import create_engine
from kvbench.engine.launch import LaunchPlan, plan_disk_directory, plan_launch
from kvbench.engine.launched import LaunchedEngine
from kvbench.engine.leases import read_lease, sweep, write_lease
from kvbench.engine.processes import Process, identify
from kvbench.engine.vllm_engine import VllmEngine
from kvbench.errors import EngineError, InputError
from kvbench.spec.profile import Profile
from tests.engine.stand_in_containers import Runtime
from tests.engine.test_container_calls import IMAGE, a_profile
from tests.engine.test_keeper import gone, nothing_left, wait_for


class Containers(Protocol):
    """docker or podman, real or not."""

    def names(self) -> list[str]: ...


def a_launch(tmp_path: Path) -> Launch:
    directory = tmp_path / "launch"
    directory.mkdir(exist_ok=True)
    return Launch(directory, directory / "engine-1.log", plan_disk_directory(tmp_path / "kv", "arm-1"), "arm-1")


def started(profile: Profile, tmp_path: Path, engines: list[LaunchedEngine]) -> VllmEngine:
    engine = create_engine(profile, a_launch(tmp_path))
    assert isinstance(engine, VllmEngine)
    engines.append(engine)
    engine.start(lambda _: None)
    return engine


def with_engine(**settings: str) -> dict[str, str]:
    """The stand-in engine's behaviour, through the profile's environment."""
    return {f"STAND_IN_{key}": value for key, value in settings.items()}


def test_a_started_container_answers_is_seen_and_leaves_nothing(
    runtime: Runtime, tmp_path: Path, engines: list[LaunchedEngine]
) -> None:
    engine = started(a_profile(env={"A": "secret"}), tmp_path, engines)
    (name,) = runtime.names()
    assert name.startswith("kvbench-arm-")
    state = engine.state()
    assert state.alive
    monitors = 1 if runtime.name == "podman" else 0
    assert len(state.pids) == 2 + monitors, "the client, and the server in the container"
    effective = engine.effective()
    assert effective.raw["container"] == {
        "runtime": {"docker": "docker 20.10.24", "podman": "podman 4.3.1"}[runtime.name],
        "image_id": {"docker": "sha256:", "podman": ""}[runtime.name] + "a" * 64,
        "digests": [IMAGE],
    }
    (call,) = [call for call in runtime.calls("run") if "--name" in call]
    assert "A" in call
    assert not any("secret" in word for word in call), "values are in no list of processes"
    engine.stop()
    assert runtime.names() == []
    assert all(gone(pid) for pid in state.pids)
    assert nothing_left(tmp_path)
    assert engine.remarks() == ()


def stops_and_leaves_nothing(engine: VllmEngine, runtime: Containers, tmp_path: Path) -> None:
    pids = engine.state().pids
    engine.stop()
    assert runtime.names() == []
    assert all(gone(pid) for pid in pids)
    assert nothing_left(tmp_path)


def test_an_engine_in_a_container_that_ignores_sigterm_is_killed(
    runtime: Runtime, tmp_path: Path, engines: list[LaunchedEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(VllmEngine, "grace_s", 0.3)
    engine = started(a_profile(env=with_engine(IGNORE_TERM="1")), tmp_path, engines)
    stops_and_leaves_nothing(engine, runtime, tmp_path)
    assert engine.remarks() == ("the engine did not end on SIGTERM within 0.3 s and was killed",)


def test_a_client_that_is_killed_takes_no_container_out_of_kvbenchs_hands(
    runtime: Runtime, tmp_path: Path, engines: list[LaunchedEngine]
) -> None:
    engine = started(a_profile(), tmp_path, engines)
    assert engine._process is not None
    assert engine._process.pid is not None
    pids = engine.state().pids
    os.kill(engine._process.pid, signal.SIGKILL)
    assert wait_for(lambda: not engine.state().alive)
    engine.stop()
    assert runtime.names() == []
    assert all(gone(pid) for pid in pids)


def test_the_next_command_removes_the_container_of_a_kvbench_that_was_killed(
    runtime: Runtime, tmp_path: Path, engines: list[LaunchedEngine], home_leases: Path
) -> None:
    """Killed together with its keeper, and the engine does not end on SIGTERM."""
    engine = started(a_profile(env=with_engine(IGNORE_TERM="1")), tmp_path, engines)
    pids = engine.state().pids
    (path,) = home_leases.glob("*.json")
    lease = read_lease(path)
    assert lease.container is not None
    assert lease.container.name == runtime.names()[0]
    assert lease.keeper is not None
    os.kill(lease.keeper.pid, signal.SIGKILL)
    assert wait_for(lambda: identify(lease.keeper.pid if lease.keeper else 0) is None)
    assert runtime.names() != []
    write_lease(lease._replace(owner=Process(4194305, 1)), path)
    said = sweep(lambda _: None)
    assert runtime.names() == []
    assert all(gone(pid) for pid in pids)
    assert any("removed container kvbench-arm-" in line for line in said)
    assert not path.exists()


@pytest.fixture
def home_leases(tmp_path: Path) -> Path:
    return tmp_path / "home" / "leases"


def test_ctrl_c_ends_the_container_too(runtime: Runtime, tmp_path: Path) -> None:
    profile = tmp_path / "arm.yaml"
    profile.write_text(json.dumps(a_profile().model_dump(mode="json", exclude_none=True, exclude_defaults=True)))
    command = subprocess.Popen(
        [sys.executable, "-m", "kvbench", "engine", "start", str(profile)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert command.stdout is not None
    address = json.loads(command.stdout.readline())["base_url"]
    assert httpx.get(f"{address}/health").status_code == 200
    assert len(runtime.names()) == 1
    command.send_signal(signal.SIGINT)
    assert command.wait(30) == 130, command.communicate()[1]
    command.communicate()
    assert runtime.names() == []


def test_an_engine_that_dies_in_its_container_says_why(
    runtime: Runtime, tmp_path: Path, engines: list[LaunchedEngine]
) -> None:
    words = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB"
    with pytest.raises(EngineError, match="memory"):
        started(a_profile(env=with_engine(DIE=words)), tmp_path, engines)
    assert runtime.names() == []
    assert nothing_left(tmp_path)


def test_an_engine_that_hangs_in_its_container_is_given_up(
    runtime: Runtime, tmp_path: Path, engines: list[LaunchedEngine]
) -> None:
    with pytest.raises(EngineError, match="it was not ready after 2 s"):
        started(a_profile(env=with_engine(HANG="1"), ready_timeout="2s"), tmp_path, engines)
    assert runtime.names() == []
    assert nothing_left(tmp_path)


def test_a_name_that_is_taken_is_told_and_its_owner_is_left_alone(
    runtime: Runtime, tmp_path: Path, engines: list[LaunchedEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan(launch: Launch, port: int, container: Container | None) -> LaunchPlan:
        planned = plan_launch(launch, port, container)
        assert planned.lease.container is not None
        foreign = {"id": "f", "name": planned.lease.container.name, "labels": [], "pid": 0, "code": 0}
        (runtime.folder / "containers" / "f.json").write_text(json.dumps(foreign))
        return planned

    monkeypatch.setattr(launched, "plan_launch", plan)
    with pytest.raises(EngineError, match=r"the container name kvbench-arm-\w+ is already in use"):
        started(a_profile(), tmp_path, engines)
    assert len(runtime.names()) == 1
    assert nothing_left(tmp_path)


def test_a_command_that_the_image_lacks_is_told(
    runtime: Runtime, tmp_path: Path, engines: list[LaunchedEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_RUNTIME", "no-command")
    with pytest.raises(EngineError, match=r"the image (has no no-such-server|does not have the command)"):
        started(a_profile(), tmp_path, engines)


@pytest.mark.parametrize("runtime", ["docker"], indirect=True)
def test_a_service_that_is_down_is_told_before_anything_starts(
    runtime: Runtime, tmp_path: Path, engines: list[LaunchedEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_RUNTIME", "down")
    with pytest.raises(EngineError, match="Cannot connect to the Docker daemon"):
        started(a_profile(), tmp_path, engines)
    assert not (tmp_path / "launch" / "engine-1.log").exists()


def test_an_image_that_is_not_here_is_pulled(
    runtime: Runtime, tmp_path: Path, engines: list[LaunchedEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_RUNTIME", "no-image")
    assert started(a_profile(), tmp_path, engines).state().alive
    assert runtime.calls("pull") == [["pull", "--quiet", IMAGE]]


def test_an_image_that_cannot_be_pulled_is_an_error_with_the_registrys_words(
    runtime: Runtime, tmp_path: Path, engines: list[LaunchedEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_RUNTIME", "no-image,no-pull")
    with pytest.raises(EngineError, match="manifest unknown"):
        started(a_profile(), tmp_path, engines)


def test_without_a_runtime_there_is_no_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("KVBENCH_HOME", str(tmp_path / "home"))
    with pytest.raises(InputError, match="no docker or podman on the PATH"):
        VllmEngine(a_profile(), a_launch(tmp_path)).start(lambda _: None)


def test_flags_are_checked_against_the_images_own_help(
    runtime: Runtime, tmp_path: Path, engines: list[LaunchedEngine]
) -> None:
    for _ in range(2):
        with pytest.raises(InputError, match="did you mean max-model-len"):
            started(a_profile(args={"max-modle-len": 1}), tmp_path, engines)
    (call,) = runtime.calls("run")
    assert call[-1] == "--help=all"
    assert runtime.names() == []


def test_an_image_whose_help_hangs_leaves_no_container(
    runtime: Runtime, tmp_path: Path, engines: list[LaunchedEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killing the client that asks ends nothing, and the container has GPUs."""
    monkeypatch.setattr(flags, "HELP_TIMEOUT_S", 2.0)
    with pytest.raises(EngineError, match="--help=all` gave no answer in 2 s"):
        started(a_profile(env=with_engine(HELP_HANGS="1")), tmp_path, engines)
    assert runtime.names() == []
    assert nothing_left(tmp_path)
    (call,) = runtime.calls("run")
    assert call[:2] == ["run", "--label"]


def test_variables_reach_the_questions_to_an_image_and_not_its_runtimes_client(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = a_profile(env={"A": "secret", "HOME": "/workspace"})
    container = Container(str(runtime.folder / "bin" / runtime.name), "kvbench-arm")
    asked = short_command(profile, container, ("python3", "-c", "pass"))
    assert "HOME=/workspace" in asked
    assert "A" in asked
    assert not any("secret" in word for word in asked)
    assert by_client(profile) == {"A": "secret"}


def test_a_runtime_that_does_not_answer_is_told(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    (runtime.folder / "containers" / "x.json").write_text(
        json.dumps({"id": "x", "name": "kvbench-arm-1", "labels": ["kvbench.lease=1"], "pid": 0, "code": 0})
    )
    monkeypatch.setenv("STAND_IN_RUNTIME", "rm-hangs")
    monkeypatch.setattr(container_remains, "ANSWER_S", 0.5)
    monkeypatch.setattr(container_remains, "REMOVE_S", 0.4)
    container = Container(str(runtime.folder / "bin" / runtime.name), "kvbench-arm-1")
    removed, kept = remove_containers(container, "1")
    assert removed == []
    assert "container kvbench-arm-1: " in kept[0]
    assert "no answer" in kept[0]
    monkeypatch.setenv("STAND_IN_RUNTIME", "")
    monkeypatch.setattr(container_remains, "ANSWER_S", 5.0)
    monkeypatch.setattr(container_remains, "REMOVE_S", 5.0)
    assert remove_containers(container, "1") == (["container kvbench-arm-1"], [])


@pytest.mark.parametrize("runtime", ["docker"], indirect=True)
def test_a_service_that_is_down_keeps_no_command_waiting(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_RUNTIME", "down")
    monkeypatch.setattr(container_remains, "REMOVE_S", 3600.0)
    monkeypatch.setattr(container_remains, "REFUSED_S", 0.1)
    container = Container(str(runtime.folder / "bin" / "docker"), "kvbench-arm-1")
    removed, (kept,) = remove_containers(container, "1")
    assert removed == []
    assert kept.startswith("container kvbench-arm-1: Cannot connect to the Docker daemon")


def test_a_runtime_that_is_gone_is_told(tmp_path: Path) -> None:
    gone_since = Container(str(tmp_path / "docker"), "kvbench-arm-1")
    assert remove_containers(gone_since, "1") == (
        [], [f"container kvbench-arm-1: there is no {tmp_path / 'docker'} any more"]
    )  # fmt: skip
