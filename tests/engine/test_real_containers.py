"""The stand-in engine in real containers, wherever docker or podman can run one; else these skip."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from kvbench.compare.preflight import check_host
from kvbench.doctor.installed import find_engine
from kvbench.engine import launched
from kvbench.engine.containers import hard_limit, may_raise_limits
from kvbench.engine.launch import plan_launch
from kvbench.engine.launched import LaunchedEngine
from kvbench.engine.leases import read_lease, sweep, write_lease
from kvbench.engine.processes import Process, identify
from kvbench.engine.vllm_engine import VllmEngine
from kvbench.errors import EngineError, InputError
from kvbench.observe.host import snapshot
from kvbench.spec.profile import Profile
from tests.engine.real_containers import ENGINE, PYTHON, Runtime, a_profile, found_or_skip
from tests.engine.test_containers import a_launch, started, stops_and_leaves_nothing, with_engine
from tests.engine.test_keeper import gone, nothing_left, wait_for


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVBENCH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "no-cache"))


def the_log(tmp_path: Path) -> str:
    return (tmp_path / "launch" / "engine-1.log").read_text()


def test_an_image_is_pulled_run_proven_and_leaves_nothing(
    real: Runtime, tmp_path: Path, engines: list[LaunchedEngine]
) -> None:
    real("rmi", "--force", real.image)
    profile = a_profile(real, env={"A": "secret"})
    seen = find_engine(profile)
    assert seen is not None
    assert (seen.found, seen.got_on_use) == (False, True), seen.detail
    engine = started(profile, tmp_path, engines)
    seen = find_engine(profile)
    assert seen is not None
    assert seen.found, seen.detail
    (name,) = real.names()
    assert name.startswith("kvbench-arm-")
    recorded = engine.effective().raw["container"]
    assert re.fullmatch(rf"{real.name} \d+\.\d+.*", recorded["runtime"])
    assert real.image in recorded["digests"]
    assert recorded["image_id"].removeprefix("sha256:") == real.inspect(name)["Image"].removeprefix("sha256:")
    state = engine.state()
    assert state.alive
    inside = real.inspect(name)["State"]["Pid"]
    assert inside in state.pids
    assert re.search(r"^\S+Z INFO Application startup complete", the_log(tmp_path), re.MULTILINE)
    engine.stop()
    assert real.names() == []
    assert all(gone(pid) for pid in state.pids)
    assert nothing_left(tmp_path)
    assert name not in Path("/proc/self/mountinfo").read_text()


def test_limits_shared_memory_user_mounts_and_variables_are_as_the_profile_says(
    real: Runtime, tmp_path: Path, engines: list[LaunchedEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir(mode=0o755)
    (tmp_path / "data" / "seen").write_text("it is")
    monkeypatch.setenv("MY_TOKEN", "handed on")
    container = {
        "shm_size": "64MiB",
        "ulimits": {"nofile": 5000},
        "user": f"{os.getuid()}:{os.getgid()}",
        "env_from": ["MY_TOKEN"],
        "also": [{"source": str(tmp_path / "data"), "target": "/data"}],
    }
    asked = {"A": "secret", "HOME": "/tmp", "LD_LIBRARY_PATH": "/nowhere"}
    profile = a_profile(real, container=container, env=asked)
    engine = started(profile, tmp_path, engines)
    (name,) = real.names()
    pid = _server(engine, engine.state().pids)
    proc = Path(f"/proc/{pid}")
    limits = (proc / "limits").read_text()
    assert re.search(r"Max open files\s+5000\s+5000", limits)
    assert re.search(r"Max stack size\s+67108864\s+67108864", limits)
    most = hard_limit("memlock") if real.name == "podman" and not may_raise_limits() else -1
    memlock = real.ulimits.get("memlock", most)
    shown = "unlimited" if memlock == -1 else str(memlock)
    assert re.search(rf"Max locked memory\s+{shown}\s+{shown}", limits)
    status = (proc / "status").read_text()
    assert re.search(rf"^Uid:\t{os.getuid()}\t", status, re.MULTILINE)
    assert re.search(r"^NoNewPrivs:\t1$", status, re.MULTILINE)
    assert snapshot([], engine.state().pids, None).sizes["shm_size_bytes"] == 64 * 2**20
    assert (proc / "root" / "data" / "seen").read_text() == "it is"
    variables = dict(entry.partition("=")[::2] for entry in (proc / "environ").read_text().split("\0") if entry)
    wanted = {**asked, "MY_TOKEN": "handed on", "OF_THE_IMAGE": "yes"}
    assert {name: variables.get(name) for name in wanted} == wanted
    assert Path(variables["TMPDIR"]).is_dir()
    clients = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in engine.state().pids]
    assert not any(b"secret" in line for line in clients), "values are in no list of processes"
    assert real.inspect(name)["Config"]["Labels"]["kvbench.lease"] == variables["KVBENCH_LEASE"]


def _server(engine: VllmEngine, pids: tuple[int, ...]) -> int:
    """The stand-in engine itself, in the container."""
    return next(
        pid
        for pid in pids
        if (words := Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"))[0] == str(PYTHON).encode()
        and str(ENGINE).encode() in words
    )


def test_an_engine_that_ends_on_sigterm_does_so_within_its_grace_time(
    real: Runtime, tmp_path: Path, engines: list[LaunchedEngine]
) -> None:
    engine = started(a_profile(real), tmp_path, engines)
    engine.stop()
    assert engine._process is not None
    assert engine._process.exit_code == -signal.SIGTERM
    assert engine.remarks() == ()
    assert real.names() == []
    assert nothing_left(tmp_path)


def test_an_engine_that_ignores_sigterm_is_killed(
    real: Runtime, tmp_path: Path, engines: list[LaunchedEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(VllmEngine, "grace_s", 0.3)
    engine = started(a_profile(real, env=with_engine(IGNORE_TERM="1")), tmp_path, engines)
    stops_and_leaves_nothing(engine, real, tmp_path)
    assert engine.remarks() == ("the engine did not end on SIGTERM within 0.3 s and was killed",)


def test_an_engine_that_dies_in_its_container_says_why(
    real: Runtime, tmp_path: Path, engines: list[LaunchedEngine]
) -> None:
    words = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB"
    with pytest.raises(EngineError, match="GPU has too little free memory"):
        started(a_profile(real, env=with_engine(DIE=words)), tmp_path, engines)
    assert words in the_log(tmp_path)
    assert real.names() == []
    assert nothing_left(tmp_path)


def test_an_engine_that_hangs_in_its_container_is_given_up(
    real: Runtime, tmp_path: Path, engines: list[LaunchedEngine]
) -> None:
    with pytest.raises(EngineError, match="it was not ready after 2 s"):
        started(a_profile(real, env=with_engine(HANG="1"), ready_timeout="2s"), tmp_path, engines)
    assert real.names() == []
    assert nothing_left(tmp_path)


def test_a_killed_client_is_noticed_and_its_container_is_removed(
    real: Runtime, tmp_path: Path, engines: list[LaunchedEngine]
) -> None:
    engine = started(a_profile(real), tmp_path, engines)
    assert engine._process is not None
    assert engine._process.pid is not None
    pids = engine.state().pids
    os.kill(engine._process.pid, signal.SIGKILL)
    assert wait_for(lambda: not engine.state().alive)
    engine.stop()
    assert real.names() == []
    assert all(gone(pid) for pid in pids)
    assert nothing_left(tmp_path)


def test_the_next_command_removes_the_container_of_a_kvbench_that_was_killed(
    real: Runtime, tmp_path: Path, engines: list[LaunchedEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed together with its keeper; the engine does not end on SIGTERM, and the next command's variables lead
    to other containers."""
    engine = started(a_profile(real, env=with_engine(IGNORE_TERM="1")), tmp_path, engines)
    pids = engine.state().pids
    (path,) = (tmp_path / "home" / "leases").glob("*.json")
    lease = read_lease(path)
    keeper = lease.keeper
    assert keeper is not None
    os.kill(keeper.pid, signal.SIGKILL)
    assert wait_for(lambda: identify(keeper.pid) is None)
    assert real.names() != []
    write_lease(lease._replace(owner=Process(4194305, 1)), path)
    with monkeypatch.context() as elsewhere:
        for name in ("DOCKER_HOST", "CONTAINERS_STORAGE_CONF", "XDG_RUNTIME_DIR"):
            elsewhere.setenv(name, str(tmp_path / "elsewhere"))
        said = sweep(lambda _: None)
    assert real.names() == []
    assert all(gone(pid) for pid in pids)
    assert any("removed container kvbench-arm-" in line for line in said)
    assert not path.exists()


def engine_start(profile: Profile, tmp_path: Path) -> tuple[subprocess.Popen[str], str]:
    """`kvbench engine start`, and the address that it tells."""
    file = tmp_path / "arm.yaml"
    file.write_text(json.dumps(profile.model_dump(mode="json", exclude_none=True, exclude_defaults=True)))
    command = subprocess.Popen(
        [sys.executable, "-m", "kvbench", "engine", "start", str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert command.stdout is not None
    line = command.stdout.readline()
    assert line, command.communicate()[1]
    return command, json.loads(line)["base_url"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_however_kvbench_goes_away_its_container_goes_too(
    number: signal.Signals, real: Runtime, tmp_path: Path
) -> None:
    command, address = engine_start(a_profile(real), tmp_path)
    assert httpx.get(f"{address}/health").status_code == 200
    assert len(real.names()) == 1
    command.send_signal(number)
    assert command.wait(40) == (128 + number if number != signal.SIGKILL else -signal.SIGKILL)
    command.communicate()
    assert wait_for(lambda: real.names() == [], seconds=30)
    leases = tmp_path / "home" / "leases"
    assert wait_for(lambda: not any(read_lease(path).container for path in leases.glob("*.json")))
    sweep(lambda _: None)  # a killed kvbench's own temporary files are for the next command
    assert list(leases.glob("*")) == []


def test_a_name_that_is_taken_is_told_and_its_owner_is_left_alone(
    real: Runtime, tmp_path: Path, engines: list[LaunchedEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan(*arguments: object) -> object:
        planned = plan_launch(*arguments)  # type: ignore[arg-type]
        assert planned.lease.container is not None
        made = real("create", "--name", planned.lease.container.name, "--entrypoint", "/usr/bin/true", real.image)
        assert made.returncode == 0, made.stderr
        foreign.append(made.stdout.strip())
        return planned

    foreign: list[str] = []
    monkeypatch.setattr(launched, "plan_launch", plan)
    try:
        with pytest.raises(EngineError, match=r"the container name kvbench-arm-.* is already in use"):
            started(a_profile(real), tmp_path, engines)
        assert real("inspect", foreign[0]).returncode == 0
    finally:
        real("rm", "--force", *foreign)


@pytest.mark.parametrize(
    ("container", "says"),
    [
        ({"entrypoint": ["no-such-server"]}, "the image (has no no-such-server|does not have the command)"),
        ({"also": [{"source": "/no/such/place"}]}, "should see /no/such/place, and"),
        ({"gpus": "all"}, "cannot give the container its GPUs"),
    ],
    ids=["entrypoint", "mount", "gpus"],
)
def test_what_a_runtime_refuses_is_said_in_plain_words(
    container: dict, says: str, real: Runtime, tmp_path: Path, engines: list[LaunchedEngine]
) -> None:
    if "gpus" in container and shutil.which("nvidia-smi"):
        pytest.skip("this host has GPUs to give")
    with pytest.raises(EngineError, match=says):
        started(a_profile(real, container=container), tmp_path, engines)
    assert real.names() == []
    assert nothing_left(tmp_path)


def test_flags_are_checked_against_the_images_own_help_and_once_only(
    real: Runtime, tmp_path: Path, engines: list[LaunchedEngine]
) -> None:
    profile = a_profile(real, args={"max-modle-len": 1})
    with pytest.raises(InputError, match="did you mean max-model-len"):
        started(profile, tmp_path, engines)
    (cached,) = (tmp_path / "home" / "flags").glob("*.json")
    assert "max-model-len" in cached.read_text()
    shown = real("ps", "--all", "--quiet", "--filter", f"ancestor={real.image}")
    assert shown.stdout.split() == [], "the container that told its flags is gone"


def test_an_image_that_its_registry_does_not_have_is_an_error_with_its_words(
    real: Runtime, tmp_path: Path, engines: list[LaunchedEngine]
) -> None:
    image = real.image.partition("@")[0] + "@sha256:" + "1" * 64
    with pytest.raises(EngineError, match=r"cannot be pulled: .*manifest unknown") as raised:
        started(a_profile(real, image=image), tmp_path, engines)
    assert "\n" not in raised.value.what


@pytest.fixture
def docker() -> str:
    return found_or_skip("docker")


@pytest.mark.parametrize(
    ("variable", "value", "says", "do"),
    [
        (
            "DOCKER_HOST",
            "unix:///nowhere.sock",
            "Cannot connect to the Docker daemon at unix:///nowhere.sock",
            "start",
        ),
        ("DOCKER_HOST", "tcp://127.0.0.1:1", "Cannot connect to the Docker daemon at tcp://127.0.0.1:1", "start"),
        ("DOCKER_CONTEXT", "no-such-one", "context not found", "correct DOCKER_CONTEXT"),
    ],
    ids=["no socket", "nobody listens", "no context"],
)
def test_the_real_client_without_a_service_is_told_in_one_line(
    docker: str, variable: str, value: str, says: str, do: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv(variable, value)
    profile = a_profile(Runtime(docker, "registry.example/vllm@sha256:" + "0" * 64))
    seen = find_engine(profile)
    assert seen is not None
    assert (seen.found, seen.got_on_use) == (False, False)
    assert says in seen.detail
    assert "\n" not in seen.detail
    assert seen.do.startswith(do)
    with pytest.raises(EngineError, match=re.escape(says)):
        VllmEngine(profile, a_launch(tmp_path)).start(lambda _: None)
    with pytest.raises(InputError, match=re.escape(says)) as raised:
        check_host([profile, profile.model_copy(update={"name": "other"})], lambda _: None)
    assert raised.value.what.startswith("arm, other: docker cannot be used: ")
    assert "\n" not in raised.value.what
