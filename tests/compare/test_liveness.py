"""Engines that go wrong in a round, as real processes: each is named for what it is, within seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from kvbench.compare.stall import EVIDENCE_NAME, gather
from kvbench.compare.watch import Watch
from kvbench.engine.base import Endpoint, Engine, Launch
from kvbench.engine.create import create_engine
from kvbench.observe.scrape import Scraper
from kvbench.spec.profile import Profile


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVBENCH_HOME", str(tmp_path / "home"))


def a_profile(**inject: object) -> Profile:
    engine = {"kind": "emulated", "model": "tiny", "inject": inject}
    return Profile.model_validate({"name": "arm", "engine": engine, "tiers": {"device": {"blocks": 200}}})


@contextmanager
def watched(profile: Profile, tmp_path: Path) -> Iterator[tuple[Engine, Watch, Scraper]]:
    """An engine under load, and whoever looks after it. Nobody tells them of a request that failed."""
    directory = tmp_path / "round"
    directory.mkdir()
    launch = Launch(directory, directory / "engine-1.log", None, "arm-1")
    engine = create_engine(profile, launch)
    with ExitStack() as stack:
        stack.callback(engine.stop)
        endpoint = engine.start(lambda _: None)
        scraper = stack.enter_context(Scraper(endpoint.metrics_url, directory, period_s=0.2))
        over = threading.Event()
        user = threading.Thread(target=ask_for_ever, args=(endpoint, over), daemon=True)
        user.start()
        stack.callback(user.join, 5)
        stack.callback(over.set)
        yield (
            engine,
            Watch(
                engine,
                latest=scraper.latest,
                beginnings=scraper.beginnings,
                frozen_after_s=2.0,
                evidence=lambda: (
                    gather(directory, log=launch.log, pids=engine.state().pids, metrics=scraper.latest()).name
                ),
            ),
            scraper,
        )


def ask_for_ever(endpoint: Endpoint, over: threading.Event) -> None:
    number, http = 0, httpx.Client(timeout=1.0, trust_env=False)
    while not over.is_set():
        number += 1
        body = {"model": endpoint.model, "prompt": [40 + number % 50] * 256, "max_tokens": 4, **endpoint.extra_body}
        try:
            http.post(f"{endpoint.base_url}/v1/completions", json=body)
        except httpx.HTTPError:
            time.sleep(0.05)


def noticed(watch: Watch, seconds: float = 30.0) -> str:
    """What kind of event it was, in the end."""
    deadline = time.monotonic() + seconds
    while not watch():
        assert time.monotonic() < deadline, "nothing was noticed"
        time.sleep(0.05)
    return watch.events[0].kind


def test_a_frozen_engine_is_frozen_and_not_slow_and_the_evidence_is_kept(tmp_path: Path) -> None:
    with watched(a_profile(freeze={"after": 5}), tmp_path) as (engine, watch, _):
        assert noticed(watch) == "frozen"
        assert engine.state().alive, "its process is there, and so is its /health"
        pid = engine.state().pids[0]
    event = watch.events[0]
    assert "no token for 2 s; what was seen of it then is in frozen.txt" in event.detail
    evidence = (tmp_path / "round" / EVIDENCE_NAME).read_text()
    assert "requests_running" in evidence
    assert f"\n{pid} " in evidence
    assert "threads" in evidence
    assert "== the end of engine-1.log" in evidence


def test_a_death_in_the_middle_is_told_with_how_it_ended(tmp_path: Path) -> None:
    with watched(a_profile(death={"after": 5}), tmp_path) as (_, watch, _):
        assert noticed(watch) == "died"
    assert "the engine ended" in watch.events[0].detail


@pytest.mark.parametrize("down", [1.0, 0.0], ids=["away for a second", "back at once, no request fails"])
def test_a_restart_by_itself_is_named_however_fast_the_engine_counts_again(tmp_path: Path, down: float) -> None:
    """Given an engine that has counted more than before within the time between two looks."""
    with watched(a_profile(restart={"after": 5, "down": down}), tmp_path) as (engine, watch, _):
        assert noticed(watch) == "restarted"
        assert engine.state().alive


def test_counters_that_begin_anew_in_a_process_that_goes_on_are_no_restart(tmp_path: Path) -> None:
    with watched(a_profile(counter_reset={"after": 5}), tmp_path) as (_, watch, scraper):
        deadline = time.monotonic() + 30.0
        while not scraper.beginnings():
            assert time.monotonic() < deadline, "the reset was not seen"
            time.sleep(0.05)
        watch.look()
        assert watch.events == []


def test_what_is_gone_when_evidence_is_gathered_is_said_to_be_gone(tmp_path: Path) -> None:
    file = gather(tmp_path, log=tmp_path / "no.log", pids=[4194305], metrics={})
    text = file.read_text()
    assert "4194305 is gone" in text
    assert "none were told" in text
    assert "there is none" in text


def test_stacks_come_from_py_spy_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_tool: Callable[[str, str], None]
) -> None:
    write_tool("py-spy", 'echo "Thread 1 (idle): wait ($3)"')
    text = gather(tmp_path, log=tmp_path / "no.log", pids=[12], metrics={"a": 1.0}).read_text()
    assert "Thread 1 (idle): wait (12)" in text
    assert "a 1\n" in text


@pytest.fixture
def write_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Puts a shell script on the PATH."""

    def write(name: str, text: str) -> None:
        folder = tmp_path / "bin"
        folder.mkdir()
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    return write
