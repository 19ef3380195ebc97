"""vLLM and its LMCache server in two containers that share memory: start, proof, and an end of both for certain."""

from __future__ import annotations

import os
import shlex
import signal
from pathlib import Path

import pytest

from kvbench.engine import containers
from kvbench.engine.base import Rendered
from kvbench.engine.create import render_profile
from kvbench.engine.launched import LaunchedEngine
from kvbench.engine.leases import read_lease, sweep, write_lease
from kvbench.engine.lmcache_engine import VllmWithLmcache
from kvbench.engine.processes import Process, identify
from kvbench.errors import EngineError
from kvbench.report.rendered import show_rendered
from kvbench.spec.profile import Profile
from tests.engine import real_containers
from tests.engine.stand_in_containers import Runtime
from tests.engine.test_container_calls import IMAGE, a_profile
from tests.engine.test_containers import Containers, started, stops_and_leaves_nothing, with_engine
from tests.engine.test_keeper import gone, nothing_left, wait_for
from tests.engine.test_lmcache_engine import HERE, MIB, server_info

TIERS = {"host": {"size": "64MiB", "via": "lmcache"}, "disk": {"path": "/elsewhere", "size_limit": "1GiB"}}


def settings(**env: str) -> dict[str, str]:
    """What the stand-ins of both servers are told."""
    info = with_engine(SERVER_INFO=server_info("LMCacheMPConnector"))
    return {"PYTHONPATH": str(HERE / "lmcache_stand_in"), **info, **env}


def both(profile: Profile, tmp_path: Path, engines: list[LaunchedEngine]) -> VllmWithLmcache:
    engine = started(profile, tmp_path, engines)
    assert isinstance(engine, VllmWithLmcache)
    return engine


def option(call: list[str], name: str) -> str | None:
    return call[call.index(name) + 1] if name in call else None


class TestCalls:
    @pytest.fixture(autouse=True)
    def _no_cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_HOME", str(tmp_path / "no-cache"))

    def rendered(self, **container: object) -> tuple[Rendered, Rendered]:
        """Engine and server."""
        profile = a_profile(tiers=TIERS, container={"user": "image", **container}, env={"A": "secret"})
        engine = render_profile(profile)
        return engine, engine.beside["lmcache"]

    def test_the_server_is_called_so(self) -> None:
        _, server = self.rendered()
        assert shlex.join(server.argv) == (
            "docker run --name kvbench-arm-lmcache --label kvbench.lease=kvbench-arm-lmcache --pull never --init "
            "--stop-timeout 0 --log-driver none --network host --security-opt no-new-privileges --gpus all "
            "--ipc shareable --shm-size 8657043456b --ulimit memlock=-1:-1 --ulimit nofile=65536:65536 "
            "--ulimit stack=67108864:67108864 "
            "--mount type=bind,source=/tmp/kvbench-arm-lmcache,target=/tmp/kvbench-arm-lmcache "
            "--mount type=bind,source=/elsewhere/kvbench-arm,target=/elsewhere/kvbench-arm "
            "--env HOME=/tmp/kvbench-arm-lmcache --env TMPDIR=/tmp/kvbench-arm-lmcache "
            "--env KVBENCH_LEASE=kvbench-arm-lmcache --env LMCACHE_TRACK_USAGE --env LMCACHE_DISABLE_BANNER "
            f"--env DO_NOT_TRACK --env A --entrypoint python3 {IMAGE} -m lmcache.cli.main server --host localhost "
            "--port 5555 --http-host 127.0.0.1 --http-port 8080 --l1-size-gb 0.0625 --eviction-policy LRU "
            "--chunk-size 256 --supported-transfer-mode auto "
            """--l2-adapter '{"type": "fs", "base_path": "/elsewhere/kvbench-arm"}'"""
        )

    def test_the_engine_shares_the_servers_memory_and_does_not_see_its_files(self) -> None:
        engine, _ = self.rendered()
        assert option(list(engine.argv), "--ipc") == "container:kvbench-arm-lmcache"
        assert "--shm-size" not in engine.argv, "podman refuses a size beside another container's"
        assert not any("/elsewhere" in word for word in engine.argv if word.startswith("type=bind"))

    def test_both_take_gpus_mounts_and_options_of_the_profile(self) -> None:
        given = {"gpus": [1], "mounts": [{"source": "/data"}], "options": ["--cap-add=SYS_NICE"]}
        for rendered in self.rendered(runtime="podman", **given):
            assert option(list(rendered.argv), "--device") == "nvidia.com/gpu=1"
            assert "type=bind,source=/data,target=/data,readonly" in rendered.argv
            assert "--cap-add=SYS_NICE" in rendered.argv

    def test_without_root_podman_shares_memory_within_one_user_namespace(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another one's IPC namespace can be mounted by nobody but its own user namespace's root."""
        monkeypatch.setattr(containers.os, "getuid", lambda: 1000)
        for user in ("host", "image"):
            engine, server = self.rendered(runtime="podman", user=user)
            assert option(list(engine.argv), "--userns") == "container:kvbench-arm-lmcache"
            assert option(list(server.argv), "--userns") == ("keep-id" if user == "host" else None)

    def test_an_entry_point_names_where_the_server_is(self) -> None:
        engine, server = self.rendered(entrypoint=["/opt/venv/bin/vllm", "serve"])
        assert option(list(engine.argv), "--entrypoint") == "/opt/venv/bin/vllm"
        assert option(list(server.argv), "--entrypoint") == "/opt/venv/bin/lmcache"

    def test_both_are_shown_the_server_first_and_no_values(self) -> None:
        text = show_rendered(self.rendered()[0])
        assert text.index("--name kvbench-arm-lmcache") < text.index("--name kvbench-arm ")

    def test_inside_the_engine_there_is_one_container(self) -> None:
        tiers = {"host": {**TIERS["host"], "in_process": True}, "disk": TIERS["disk"]}
        rendered = render_profile(a_profile(tiers=tiers))
        assert not rendered.beside
        assert "--ipc" not in rendered.argv
        assert any("target=/elsewhere/kvbench-arm" in word for word in rendered.argv)
        assert any(word.endswith("lmcache.yaml,readonly") for word in rendered.argv)


def is_proven_and_leaves_nothing(engine: VllmWithLmcache, runtime: Containers, tmp_path: Path) -> None:
    effective = engine.effective()
    assert effective.differences == ()
    assert (effective.host_bytes, effective.disk) == (64 * MIB, True)
    assert effective.raw["lmcache_version"] == "0.5.6-g3e11e108"
    assert "digests" in effective.raw["container"]
    stops_and_leaves_nothing(engine, runtime, tmp_path)
    assert engine.remarks() == ()


def test_both_are_started_proven_and_removed(
    runtime: Runtime, tmp_path: Path, engines: list[LaunchedEngine]
) -> None:
    engine = both(a_profile(tiers=TIERS, env=settings()), tmp_path, engines)
    server, itself = [call for call in runtime.calls("run") if "--name" in call]
    name = option(server, "--name")
    assert sorted(runtime.names()) == sorted([str(name), str(option(itself, "--name"))])
    assert (option(server, "--ipc"), option(itself, "--ipc")) == ("shareable", f"container:{name}")
    (disk,) = (tmp_path / "kv").iterdir()
    assert any(f"target={disk}" in word for word in server), "its files are in a directory of this launch's own"
    is_proven_and_leaves_nothing(engine, runtime, tmp_path)


def test_the_end_of_the_server_is_the_end_of_both(
    runtime: Runtime, tmp_path: Path, engines: list[LaunchedEngine]
) -> None:
    engine = both(a_profile(tiers=TIERS, env=settings()), tmp_path, engines)
    for pid in engine._beside.state().pids:
        os.kill(pid, signal.SIGKILL)
    assert wait_for(lambda: not engine.state().alive)
    assert engine.state().detail.startswith("its LMCache server ended")
    assert engine.state().detail.endswith("vLLM goes on and caches nothing")
    stops_and_leaves_nothing(engine, runtime, tmp_path)


def test_an_image_without_lmcache_is_told_before_the_engine_is_tried(
    runtime: Runtime, tmp_path: Path, engines: list[LaunchedEngine]
) -> None:
    words = "Error while finding module specification for 'lmcache.cli.main'"
    env = settings(LMC_DIE=f"/usr/bin/python3: {words} (ModuleNotFoundError: No module named 'lmcache')")
    with pytest.raises(EngineError, match=r"arm-1-lmcache: .*a Python module is missing or broken: lmcache"):
        both(a_profile(tiers=TIERS, env=env), tmp_path, engines)
    assert runtime.names() == []
    assert nothing_left(tmp_path)
    assert not (tmp_path / "launch" / "engine-1.log").exists()


def orphaned(home: Path) -> list[Path]:
    """The leases of both, whose keepers and owner are gone."""
    paths = list((home / "leases").glob("*.json"))
    for path in paths:
        keeper = read_lease(path).keeper
        assert keeper is not None
        os.kill(keeper.pid, signal.SIGKILL)
        assert wait_for(lambda pid=keeper.pid: identify(pid) is None)
        write_lease(read_lease(path)._replace(owner=Process(4194305, 1)), path)
    return paths


def test_the_next_command_removes_both_whatever_their_leases_are_called(
    runtime: Runtime, tmp_path: Path, engines: list[LaunchedEngine]
) -> None:
    """podman removes no container whose memory another one shares."""
    engine = both(a_profile(tiers=TIERS, env=settings()), tmp_path, engines)
    pids = engine.state().pids
    paths = orphaned(tmp_path / "home")
    assert len(paths) == 2
    said = sweep(lambda _: None)
    assert runtime.names() == []
    assert all(gone(pid) for pid in pids)
    removed = [line.split()[2] for line in said if line.startswith("removed container")]
    assert [name.startswith("kvbench-arm-lmcache-") for name in removed] == [False, True]
    assert not any(path.exists() for path in paths)


def test_in_real_containers(
    real: real_containers.Runtime, tmp_path: Path, engines: list[LaunchedEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVBENCH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "no-cache"))
    spec = real_containers.a_profile(real, env=settings()).model_dump(exclude_defaults=True)
    engine = both(Profile.model_validate({**spec, "tiers": TIERS}), tmp_path, engines)
    server, itself = sorted(real.names(), key=len, reverse=True)
    assert server.startswith("kvbench-arm-lmcache-")
    pids = [real.inspect(name)["State"]["Pid"] for name in (server, itself)]
    for shared in ("ns/ipc", "root/dev/shm"):
        seen = [Path(f"/proc/{pid}/{shared}").stat() for pid in pids]
        assert len({(status.st_dev, status.st_ino) for status in seen}) == 1, f"{shared} is one for both"
    assert Path(f"/proc/{pids[0]}/ns/ipc").stat().st_ino != Path("/proc/self/ns/ipc").stat().st_ino, "its own"
    is_proven_and_leaves_nothing(engine, real, tmp_path)
