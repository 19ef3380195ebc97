"""Engines in containers: the exact call of docker and podman, and an end for certain, whoever dies first.

The runtimes are played by a stand-in with a client and a service of its own, which runs the stand-in engine.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from kvbench.engine import container_remains, containers
from kvbench.engine.base import Launch
from kvbench.engine.container_remains import Container, remove_containers
from kvbench.engine.create import render_profile
from kvbench.engine.launch import plan_disk_directory
from kvbench.engine.launched import LaunchedEngine
from kvbench.engine.leases import read_lease, sweep, write_lease
from kvbench.engine.processes import Process, identify
from kvbench.engine.vllm_engine import VllmEngine
from kvbench.errors import EngineError, InputError
from kvbench.spec.profile import Profile
from tests.engine.test_keeper import gone, nothing_left, wait_for

STAND_IN = Path(__file__).with_name("container_stand_in.py")
ENGINE = Path(__file__).with_name("stand_in.py")
IMAGE = "registry.example/vllm@sha256:" + "0" * 64
MODEL = "org/model"


class Runtime:
    """A stand-in on the PATH, with its service."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def names(self) -> list[str]:
        """Of the containers that there are, stopped ones too."""
        return [json.loads(path.read_text())["name"] for path in (self.folder / "containers").glob("*.json")]

    def calls(self, command: str) -> list[list[str]]:
        lines = (self.folder / "calls.jsonl").read_text().splitlines()
        return [call[1:] for call in map(json.loads, lines) if call[1] == command]


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    folder = tmp_path / "runtime"
    for name in ("bin", "containers", "asked"):
        (folder / name).mkdir(parents=True)
    docker = folder / "bin" / "docker"
    docker.write_text(f"#!{sys.executable} -S\n" + STAND_IN.read_text())
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("STAND_IN_CONTAINERS", str(folder))
    monkeypatch.setenv("STAND_IN_ENGINE", str(ENGINE))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "no-cache"))
    monkeypatch.setenv("KVBENCH_HOME", str(tmp_path / "home"))
    service = subprocess.Popen([sys.executable, "-S", str(STAND_IN), "service"])
    yield Runtime(folder)
    service.kill()
    service.wait()


def a_profile(
    *, container: dict | None = None, kind: str = "vllm", tiers: dict | None = None, env: dict | None = None,
    **engine: object,
) -> Profile:  # fmt: skip
    spec = {
        "kind": kind,
        "image": IMAGE,
        "version": "0.32.0" if kind == "vllm" else "1.2.1",
        "model": MODEL,
        "revision": "abc",
        "container": container,
        "env": env or {},
        **engine,
    }
    return Profile.model_validate({"name": "arm", "engine": spec, "tiers": tiers or {}})


def a_launch(tmp_path: Path) -> Launch:
    directory = tmp_path / "launch"
    directory.mkdir(exist_ok=True)
    return Launch(directory, directory / "engine-1.log", plan_disk_directory(tmp_path / "kv", "arm-1"), "arm-1")


def started(profile: Profile, tmp_path: Path, engines: list[LaunchedEngine]) -> VllmEngine:
    engine = VllmEngine(profile, a_launch(tmp_path))
    engines.append(engine)
    engine.start(lambda _: None)
    return engine


def with_engine(**settings: str) -> dict[str, str]:
    """The stand-in engine's behaviour, through the profile's environment."""
    return {f"STAND_IN_{key}": value for key, value in settings.items()}


def golden(profile: Profile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "no-cache"))
    monkeypatch.setattr(containers.os, "getuid", lambda: 1000)
    monkeypatch.setattr(containers.os, "getgid", lambda: 100)
    return shlex.join(render_profile(profile).argv)


def test_docker_is_called_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    profile = a_profile(tiers={"host": {"size": "16GiB"}}, args={"max-model-len": 8192}, env={"A": "secret"})
    assert golden(profile, monkeypatch, tmp_path) == (
        "docker run --name kvbench-arm --label kvbench.lease=kvbench-arm --pull never --init --log-driver none "
        "--network host --security-opt no-new-privileges --gpus all --shm-size 25769803776b "
        "--ulimit memlock=-1:-1 --ulimit nofile=65536:65536 --ulimit stack=67108864:67108864 --user 1000:100 "
        "--mount type=bind,source=/tmp/kvbench-arm,target=/tmp/kvbench-arm "
        "--env HOME=/tmp/kvbench-arm --env TMPDIR=/tmp/kvbench-arm --env KVBENCH_LEASE=kvbench-arm "
        "--env USER=kvbench --env VLLM_SERVER_DEV_MODE --env VLLM_NO_USAGE_STATS --env DO_NOT_TRACK --env A "
        f"--env HF_TOKEN --entrypoint python3 {IMAGE} -m vllm.entrypoints.openai.api_server --model org/model "
        "--revision abc --served-model-name org/model --host 127.0.0.1 --port 8000 --enable-prompt-tokens-details "
        "--disable-uvicorn-access-log --kv-offloading-size 16 --kv-offloading-backend native "
        """--kv-transfer-config '{"engine_id": "kvbench-arm"}' """
        """--kv-events-config '{"enable_kv_cache_events": true, "publisher": "zmq", """
        """"endpoint": "tcp://127.0.0.1:5557", "topic": "kvbench-arm"}' --max-model-len 8192"""
    )


def test_podman_names_devices_and_keeps_the_users_id(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    profile = a_profile(container={"runtime": "podman", "gpus": [0, 2]})
    argv = golden(profile, monkeypatch, tmp_path)
    assert argv.startswith("podman run --name kvbench-arm ")
    assert "--device nvidia.com/gpu=0 --device nvidia.com/gpu=2 --security-opt label=disable" in argv
    assert "--userns keep-id --user 1000:100" in argv
    assert "--gpus" not in argv


@pytest.mark.parametrize(
    ("hard", "shown"),
    [
        ({}, "--ulimit memlock=-1:-1 --ulimit nofile=65536:65536 --ulimit stack=67108864:67108864 "),
        (
            {"memlock": 8 * 2**20, "nofile": 4096, "stack": 2**30},
            "--ulimit memlock=8388608:8388608 --ulimit nofile=4096:4096 --ulimit stack=67108864:67108864 ",
        ),
    ],
    ids=["no hard limits", "hard limits"],
)
def test_rootless_podman_is_asked_for_no_more_than_it_may_give(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hard: dict[str, int], shown: str
) -> None:
    monkeypatch.setattr(containers, "hard_limit", lambda name: hard.get(name, -1))
    assert shown in golden(a_profile(container={"runtime": "podman"}), monkeypatch, tmp_path)
    asked = a_profile(container={"runtime": "podman", "ulimits": {"memlock": -1}})
    assert "--ulimit memlock=-1:-1 " in golden(asked, monkeypatch, tmp_path), "what a profile says is not changed"


def test_only_rootless_podman_is_bound_by_hard_limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(containers, "hard_limit", lambda _: 1024)
    assert "--ulimit memlock=-1:-1 " in golden(a_profile(), monkeypatch, tmp_path)
    monkeypatch.setattr(containers.os, "getuid", lambda: 0)
    rootful = shlex.join(render_profile(a_profile(container={"runtime": "podman"})).argv)
    assert "--ulimit memlock=-1:-1 " in rootful


def test_a_hard_limit_is_that_of_this_process() -> None:
    shown = subprocess.run(["bash", "-c", "ulimit -H -n"], capture_output=True, text=True, check=True).stdout
    assert containers.hard_limit("nofile") == (-1 if "unlimited" in shown else int(shown))


def test_docker_takes_single_gpus_as_a_line_of_csv(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "--gpus '\"device=0,2\"'" in golden(a_profile(container={"gpus": [0, 2]}), monkeypatch, tmp_path)
    assert "--gpus" not in golden(a_profile(container={"gpus": "none"}), monkeypatch, tmp_path)


def test_what_a_profile_says_about_its_container_holds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    container = {
        "user": "image",
        "shm_size": "1GiB",
        "ulimits": {"nofile": 1000},
        "mounts": [{"source": "/data"}, {"source": "/a", "target": "/b", "read_only": False}],
        "env_from": ["MY_TOKEN"],
        "options": ["--cap-add=SYS_NICE"],
        "entrypoint": ["vllm", "serve"],
    }
    argv = golden(a_profile(container=container), monkeypatch, tmp_path)
    assert "--user" not in argv
    assert "--shm-size 1073741824b" in argv
    assert "--ulimit memlock=-1:-1 --ulimit nofile=1000:1000" in argv
    assert "--mount type=bind,source=/data,target=/data,readonly" in argv
    assert "--mount type=bind,source=/a,target=/b " in argv
    assert "--env MY_TOKEN" in argv
    assert f"--cap-add=SYS_NICE --entrypoint vllm {IMAGE} serve org/model --revision abc" in argv


def test_the_models_directory_the_disk_tier_and_the_hubs_cache_are_mounted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    profile = a_profile(model="/models/m", revision=None, tiers={"host": {"size": "1GiB"}, "disk": {"path": "/kv"}})
    argv = golden(profile, monkeypatch, tmp_path)
    assert "--mount type=bind,source=/models/m,target=/models/m,readonly" in argv
    assert "--mount type=bind,source=/kv/kvbench-arm,target=/kv/kvbench-arm " in argv
    assert "HF_TOKEN" not in argv, "nothing is fetched"
    (tmp_path / "no-cache").mkdir()
    cache = tmp_path / "no-cache"
    with_hub = golden(a_profile(), monkeypatch, tmp_path)
    assert f"--mount type=bind,source={cache},target={cache} " in with_hub
    assert f"--env HF_HOME={cache}" in with_hub


def test_tensorrt_llm_reads_its_yaml_through_a_mount(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    argv = golden(a_profile(kind="tensorrt-llm", tiers={"host": {"size": "1GiB"}}), monkeypatch, tmp_path)
    file = tmp_path / "kvbench-arm.yaml"
    assert f"--mount type=bind,source={file},target={file},readonly" in argv
    assert f"--entrypoint trtllm-serve {IMAGE} org/model --host 127.0.0.1 --port 8000 --backend pytorch" in argv
    assert f"--extra_llm_api_options {file}" in argv


@pytest.mark.parametrize(
    ("container", "message"),
    [
        ({"options": ["--rm"]}, "--rm is kvbench's to set"),
        ({"options": ["SYS_NICE"]}, "expected an option"),
        ({"mounts": [{"source": "data"}]}, "absolute path"),
        ({"mounts": [{"source": "/a,b"}]}, "without commas"),
        ({"mounts": [{"source": "/a"}, {"source": "/b", "target": "/a"}]}, "two mounts"),
        ({"user": "me"}, "pattern"),
        ({"gpus": []}, "at least 1"),
    ],
)
def test_what_would_not_work_is_refused_on_loading(container: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        a_profile(container=container)


def test_container_settings_belong_to_an_image() -> None:
    with pytest.raises(ValueError, match=r"give engine\.image too"):
        a_profile(container={"gpus": "none"}, image=None, command=["vllm", "serve"])


def test_a_started_container_answers_is_seen_and_leaves_nothing(
    runtime: Runtime, tmp_path: Path, engines: list[LaunchedEngine]
) -> None:
    engine = started(a_profile(env={"A": "secret"}), tmp_path, engines)
    (name,) = runtime.names()
    assert name.startswith("kvbench-arm-")
    state = engine.state()
    assert state.alive
    assert len(state.pids) == 2, "the client, and the server in the container"
    effective = engine.effective()
    assert effective.raw["container"] == {
        "runtime": "docker 28.2.2",
        "image_id": "sha256:" + "a" * 64,
        "digests": [IMAGE],
    }
    (call,) = [call for call in runtime.calls("run") if "--name" in call]
    assert "A" in call
    assert not any("secret" in word for word in call), "values are in no list of processes"
    engine.stop()
    assert runtime.names() == []
    assert all(gone(pid) for pid in state.pids)
    assert nothing_left(tmp_path)


def test_an_engine_in_a_container_that_ignores_sigterm_is_killed(
    runtime: Runtime, tmp_path: Path, engines: list[LaunchedEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(VllmEngine, "grace_s", 0.3)
    engine = started(a_profile(env=with_engine(IGNORE_TERM="1")), tmp_path, engines)
    pids = engine.state().pids
    engine.stop()
    assert runtime.names() == []
    assert all(gone(pid) for pid in pids)
    assert nothing_left(tmp_path)


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


def test_a_runtime_that_does_not_answer_is_told(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    (runtime.folder / "containers" / "x.json").write_text(
        json.dumps({"id": "x", "name": "kvbench-arm-1", "labels": ["kvbench.lease=1"], "pid": 0, "code": 0})
    )
    monkeypatch.setenv("STAND_IN_RUNTIME", "rm-hangs")
    monkeypatch.setattr(container_remains, "ANSWER_S", 0.5)
    monkeypatch.setattr(container_remains, "REMOVE_S", 0.4)
    container = Container(str(runtime.folder / "bin" / "docker"), "kvbench-arm-1")
    removed, kept = remove_containers(container, "1")
    assert removed == []
    assert "container kvbench-arm-1: " in kept[0]
    assert "no answer" in kept[0]
    monkeypatch.setenv("STAND_IN_RUNTIME", "")
    monkeypatch.setattr(container_remains, "ANSWER_S", 5.0)
    monkeypatch.setattr(container_remains, "REMOVE_S", 5.0)
    assert remove_containers(container, "1") == (["container kvbench-arm-1"], [])
