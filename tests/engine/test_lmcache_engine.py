"""vLLM with LMCache, played by stand-ins: started, proven, watched and stopped as one, however either ends."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from kvbench.engine import lmcache_server
from kvbench.engine.base import Effective, Launch
from kvbench.engine.create import create_engine
from kvbench.engine.launch import plan_disk_directory
from kvbench.engine.launched import LaunchedEngine
from kvbench.engine.lmcache_engine import VllmWithLmcache, VllmWithLmcacheInside
from kvbench.engine.ports import check_free
from kvbench.errors import EngineError
from kvbench.observe.canonical import parse_engine
from kvbench.spec.profile import Profile
from tests.engine.test_keeper import gone, nothing_left

HERE = Path(__file__).parent
MIB = 2**20
pytestmark = pytest.mark.usefixtures("home")


def server_info(connector: str) -> str:
    return json.dumps({"vllm_config": {"kv_transfer_config": {"kv_connector": connector}, "cache_config": {}}})


def a_profile(*, in_process: bool = False, files: bool = True, **env: str) -> Profile:
    connector = "LMCacheConnectorV1" if in_process else "LMCacheMPConnector"
    tiers: dict = {"host": {"size": 64 * MIB, "via": "lmcache", "in_process": in_process}}
    if files:
        tiers["disk"] = {"path": "/elsewhere", "size_limit": "1GiB"}
    return Profile.model_validate(
        {
            "name": "arm",
            "engine": {
                "kind": "vllm",
                "command": [sys.executable, "-S", str(HERE / "stand_in.py")],
                "version": "0.32.0",
                "model": "tiny",
                "ready_timeout": 30,
                "env": {
                    "PYTHONPATH": str(HERE / "lmcache_stand_in"),
                    "STAND_IN_SERVER_INFO": server_info(connector),
                    **env,
                },
            },
            "tiers": tiers,
        }
    )


def an_engine(profile: Profile, tmp_path: Path, engines: list[LaunchedEngine]) -> LaunchedEngine:
    """Not started yet."""
    directory = tmp_path / "launch"
    directory.mkdir()
    disk = plan_disk_directory(tmp_path / "kv", "arm-1") if profile.tiers.disk else None
    engine = create_engine(profile, Launch(directory, directory / "engine-1.log", disk, "arm-1"))
    assert isinstance(engine, LaunchedEngine)
    engines.append(engine)
    return engine


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def proven(tmp_path: Path, engines: list[LaunchedEngine], **env: str) -> Effective:
    engine = an_engine(a_profile(**env), tmp_path, engines)
    engine.start(lambda _: None)
    return engine.effective()


def test_both_are_started_proven_scraped_as_one_and_stopped(tmp_path: Path, engines: list[LaunchedEngine]) -> None:
    said: list[str] = []
    engine = an_engine(a_profile(), tmp_path, engines)
    assert isinstance(engine, VllmWithLmcache)
    endpoint = engine.start(said.append)
    assert said[:2] == [
        "reading the engine's own --help (once for each version)",
        "arm-1: starting its LMCache server",
    ]
    effective = engine.effective()
    assert effective.differences == ()
    assert (effective.host_bytes, effective.disk) == (64 * MIB, True)
    assert effective.raw["lmcache_version"] == "0.5.6-g3e11e108"
    (disk,) = (tmp_path / "kv").iterdir()
    log = (tmp_path / "launch" / "lmcache-1.log").read_text()
    assert f'--l2-adapter {{"type": "fs", "base_path": "{disk}"}}' in log, "a directory of this launch's own"
    page = httpx.get(endpoint.metrics_url, trust_env=False).text
    assert "vllm:num_requests_running 0.0" in page
    assert parse_engine(page).total("lmcache_mp_lookup_hit_tokens") == 768
    assert "process_start_time_seconds" not in page, "the LMCache server's is not the engine's"
    assert endpoint.past_secondary is None
    pids = engine.state().pids
    assert len(pids) == 2
    ports = [int(url.rpartition(":")[2]) for url in (endpoint.base_url, engine._beside.url)]
    engine.stop()
    assert all(gone(pid) for pid in pids)
    assert nothing_left(tmp_path)
    for port in ports:
        check_free(port)


def test_the_memory_alone_needs_no_directory(tmp_path: Path, engines: list[LaunchedEngine]) -> None:
    engine = an_engine(a_profile(files=False), tmp_path, engines)
    engine.start(lambda _: None)
    effective = engine.effective()
    assert (effective.differences, effective.host_bytes, effective.disk) == ((), 64 * MIB, False)


@pytest.mark.parametrize(
    ("env", "difference"),
    [
        ({"LMC_BYTES": str(32 * MIB)}, f"the host tier in bytes is {32 * MIB}, not {64 * MIB} as asked"),
        ({"LMC_NO_FILES": "1"}, "the profile has a disk tier, but LMCache has none"),
        ({"LMC_NOBODY": "1"}, "no engine is registered at the LMCache server, so nothing is cached"),
        (
            {"STAND_IN_SERVER_INFO": server_info("OffloadingConnector")},
            "the connector is OffloadingConnector, not LMCacheMPConnector as asked",
        ),
        (
            {"STAND_IN_SERVER_INFO": '{"vllm_config": {"kv_transfer_config": null}}'},
            "the profile has a host tier, but the server has none",
        ),
    ],
    ids=["memory", "files", "registration", "connector", "none"],
)
def test_what_is_not_as_asked_is_told(
    tmp_path: Path, engines: list[LaunchedEngine], env: dict[str, str], difference: str
) -> None:
    assert proven(tmp_path, engines, **env).differences == (difference,)


def test_a_server_that_does_not_start_is_named_with_its_cause(
    tmp_path: Path, engines: list[LaunchedEngine]
) -> None:
    engine = an_engine(a_profile(LMC_DIE="ModuleNotFoundError: No module named 'lmcache'"), tmp_path, engines)
    with pytest.raises(EngineError, match=r"arm-1-lmcache: .*a Python module is missing or broken: lmcache"):
        engine.start(lambda _: None)
    assert nothing_left(tmp_path)
    assert not (tmp_path / "launch" / "engine-1.log").exists(), "the engine was not even tried"


def test_a_race_for_the_servers_port_is_lost_once(tmp_path: Path, engines: list[LaunchedEngine]) -> None:
    engine = an_engine(a_profile(LMC_PORT_LOST_ONCE=str(tmp_path / "lost")), tmp_path, engines)
    engine.start(lambda _: None)
    assert engine.effective().differences == ()
    engine.stop()
    assert nothing_left(tmp_path)


def test_a_server_that_ignores_sigterm_is_killed_and_named(
    tmp_path: Path, engines: list[LaunchedEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lmcache_server, "GRACE_S", 0.3)
    engine = an_engine(a_profile(LMC_IGNORE_TERM="1"), tmp_path, engines)
    engine.start(lambda _: None)
    engine.stop()
    assert engine.remarks() == ("its LMCache server did not end on SIGTERM within 0.3 s and was killed",)
    assert nothing_left(tmp_path)


def test_an_engine_whose_server_died_is_not_alive(tmp_path: Path, engines: list[LaunchedEngine]) -> None:
    engine = an_engine(a_profile(), tmp_path, engines)
    assert isinstance(engine, VllmWithLmcache)
    endpoint = engine.start(lambda _: None)
    (server,) = engine._beside.state().pids
    os.kill(server, 9)
    until(lambda: not engine.state().alive)
    assert engine.state().detail == ("its LMCache server ended by signal 9; vLLM goes on and caches nothing")
    assert httpx.get(f"{endpoint.base_url}/health", trust_env=False).status_code == 200, "so says /health"
    assert httpx.get(endpoint.metrics_url, trust_env=False).status_code == 503, "no zeros in the server's place"


def test_an_engine_that_says_it_is_in_degraded_mode_is_not_alive(
    tmp_path: Path, engines: list[LaunchedEngine]
) -> None:
    engine = an_engine(a_profile(), tmp_path, engines)
    engine.start(lambda _: None)
    assert engine.state().alive
    with (tmp_path / "launch" / "engine-1.log").open("a") as log:
        log.write("2026-11-30T00:00:00.000Z WARNING LMCache server is unhealthy — entering degraded mode\n")
    state = engine.state()
    assert not state.alive
    assert "caches nothing: WARNING LMCache server is unhealthy — entering degraded mode" in state.detail


def test_lmcache_inside_that_never_caches_is_told_by_its_log(tmp_path: Path, engines: list[LaunchedEngine]) -> None:
    said = "RuntimeError: No supported cpu connector found. System will operate in degraded mode (recompute)"
    engine = an_engine(a_profile(in_process=True), tmp_path, engines)
    assert isinstance(engine, VllmWithLmcacheInside)
    engine.start(lambda _: None)
    assert engine.effective().differences == ()
    assert "the size of the host tier" in engine.effective().unknown
    assert (tmp_path / "launch" / "lmcache.yaml").read_text().startswith("chunk_size: 256\n")
    with (tmp_path / "launch" / "engine-1.log").open("a") as log:
        log.write(f"2026-11-30T00:00:00.000Z {said}\n")
    (difference,) = engine.effective().differences
    assert difference == f"the engine answers and caches nothing: its log says {said!r}"
