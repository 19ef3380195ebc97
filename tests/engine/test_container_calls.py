"""The exact call of docker and podman, and what a profile may say about its container. Nothing is started."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from kvbench.engine import containers
from kvbench.engine.container_remains import Container, client_environment, reason
from kvbench.engine.create import render_profile
from kvbench.spec.profile import Profile

IMAGE = "registry.example/vllm@sha256:" + "0" * 64
MODEL = "org/model"


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


def golden(profile: Profile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "no-cache"))
    monkeypatch.setattr(containers.os, "getuid", lambda: 1000)
    monkeypatch.setattr(containers.os, "getgid", lambda: 100)
    return shlex.join(render_profile(profile).argv)


def test_docker_is_called_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    profile = a_profile(tiers={"host": {"size": "16GiB"}}, args={"max-model-len": 8192}, env={"A": "secret"})
    assert golden(profile, monkeypatch, tmp_path) == (
        "docker run --name kvbench-arm --label kvbench.lease=kvbench-arm --pull never --init --stop-timeout 0 "
        "--log-driver none --network host --security-opt no-new-privileges --gpus all --shm-size 25769803776b "
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
        (
            {},
            "--ulimit memlock=-1:-1 --ulimit nofile=65536:65536 --ulimit nproc=4000:4000 "
            "--ulimit stack=67108864:67108864 ",
        ),
        (
            {"memlock": 8 * 2**20, "nofile": 4096, "stack": 2**30, "nproc": 300},
            "--ulimit memlock=8388608:8388608 --ulimit nofile=4096:4096 --ulimit nproc=300:300 "
            "--ulimit stack=67108864:67108864 ",
        ),
    ],
    ids=["no hard limits", "hard limits"],
)
def test_podman_without_the_right_to_raise_limits_is_asked_for_no_more_than_it_may_give(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hard: dict[str, int], shown: str
) -> None:
    """Its own default of processes is more than that, and it lowers its own limit to pid_max."""
    (tmp_path / "pid_max").write_text("4000\n")
    monkeypatch.setattr(containers, "PID_MAX", tmp_path / "pid_max")
    monkeypatch.setattr(containers, "may_raise_limits", lambda: False)
    monkeypatch.setattr(containers, "hard_limit", lambda name: hard.get(name, -1))
    assert shown in golden(a_profile(container={"runtime": "podman"}), monkeypatch, tmp_path)
    asked = a_profile(container={"runtime": "podman", "ulimits": {"memlock": -1}})
    assert "--ulimit memlock=-1:-1 " in golden(asked, monkeypatch, tmp_path), "what a profile says is not changed"


def test_only_podman_without_that_right_is_bound_by_hard_limits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(containers, "hard_limit", lambda _: 1024)
    monkeypatch.setattr(containers, "may_raise_limits", lambda: False)
    assert "--ulimit memlock=-1:-1 " in golden(a_profile(), monkeypatch, tmp_path)
    monkeypatch.setattr(containers, "may_raise_limits", lambda: True)
    able = golden(a_profile(container={"runtime": "podman"}), monkeypatch, tmp_path)
    assert "--ulimit memlock=-1:-1 " in able
    assert "nproc" not in able


def test_whether_limits_may_be_raised_is_what_the_kernel_does() -> None:
    lower_then_raise = (
        "import resource as r; r.setrlimit(r.RLIMIT_CORE, (100, 100)); r.setrlimit(r.RLIMIT_CORE, (200, 200))"
    )
    raised = subprocess.run([sys.executable, "-S", "-c", lower_then_raise], capture_output=True, check=False)
    assert containers.may_raise_limits() is (raised.returncode == 0)


def test_what_the_client_obeys_itself_is_given_to_the_engine_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    env = {"HOME": "/h", "LD_PRELOAD": "/x.so", "TMPDIR": "/t", "DOCKER_HOST": "tcp://a", "A": "secret"}
    argv = golden(a_profile(env=env), monkeypatch, tmp_path)
    for name in ("HOME=/h", "LD_PRELOAD=/x.so", "TMPDIR=/t", "DOCKER_HOST=tcp://a", "A"):
        assert argv.count(f"--env {name} ") == 1
    rendered = render_profile(a_profile(env=env))
    assert "A" in rendered.env
    assert not {"HOME", "LD_PRELOAD", "TMPDIR", "DOCKER_HOST"} & set(rendered.env)


def test_a_docker_that_is_podman_gets_podmans_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package podman-docker."""
    for name, script in (("docker", 'exec /usr/bin/podman "$@"'), ("podman", "exit 0")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = containers.container_of(a_profile())
    assert found is not None
    assert found.runtime == str(tmp_path / "podman")
    (tmp_path / "docker").write_text("#!/bin/sh\n# not podman\nexit 0\n")
    found = containers.container_of(a_profile())
    assert found is not None
    assert found.runtime == str(tmp_path / "docker")


def test_a_service_is_reached_as_at_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://now")
    monkeypatch.setenv("CONTAINERS_STORAGE_CONF", "/now")
    monkeypatch.setenv("OTHER", "stays")
    environment = client_environment(Container("docker", "x", (("DOCKER_HOST", "tcp://then"),)))
    assert environment["DOCKER_HOST"] == "tcp://then"
    assert "CONTAINERS_STORAGE_CONF" not in environment
    assert environment["OTHER"] == "stays"


@pytest.mark.parametrize(
    ("code", "errors", "said"),
    [
        (
            1,
            "Cannot connect to the Docker daemon at X. Is it running?\n",
            "Cannot connect to the Docker daemon at X.",
        ),
        (125, "docker: Error response from daemon: no\n\nRun 'docker run --help' for more information\n", "no"),
        (
            125,
            'time="2026" level=warning msg="once"\ntime="2026" level=warning msg="Error: twice"\nError: no\n',
            "no",
        ),
        (125, 'time="2026" level=error msg="no"\n', "no"),
        (125, "", "exit code 125"),
    ],
    ids=["docker", "docker run", "podman", "podman's log alone", "silent"],
)
def test_a_runtimes_reason_is_one_line(code: int, errors: str, said: str) -> None:
    told = reason(code, errors)
    assert said in told
    assert "\n" not in told
    assert "--help" not in told
    assert "twice" not in told


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
        ({"options": ["--stop-timeout=600"]}, "--stop-timeout is kvbench's to set"),
        ({"options": ["-eHF_TOKEN=x"]}, "-e is kvbench's to set"),
        ({"options": ["-itd"]}, "-i is kvbench's to set"),
        ({"options": ["-hname"]}, "write -h in its long form"),
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
