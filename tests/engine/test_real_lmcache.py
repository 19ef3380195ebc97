"""The embedded vLLM with a real LMCache server: hits from memory and files told apart, its loss, nothing left."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from kvbench.engine.base import Endpoint, Launch
from kvbench.engine.environment import EngineEnvironment, kvbench_home
from kvbench.engine.launch import plan_disk_directory
from kvbench.engine.lmcache_engine import VllmWithLmcache
from kvbench.engine.ports import check_free
from kvbench.observe.canonical import identity_breaks, parse_engine, source_counters
from kvbench.spec.profile import Profile
from tests.embedded import embedded_engine
from tests.engine.test_keeper import gone

pytestmark = pytest.mark.engine

BLOCKS, TOKENS, CHUNKED = 40, 1600, 1536
"""The device holds three prompts, of which LMCache keeps six chunks of 256 tokens each."""
HOST_BYTES = 28 * 2**20
"""Nine prompts, but LMCache begins to evict at four fifths of it."""
PROMPTS = 10


@pytest.fixture
def lmcache(lmcache_env: EngineEnvironment, tmp_path: Path) -> Iterator[tuple[VllmWithLmcache, Endpoint]]:
    spec = {
        "name": "arm",
        "engine": embedded_engine(lmcache_env),
        "tiers": {
            "device": {"blocks": BLOCKS},
            "host": {"size": HOST_BYTES, "via": "lmcache"},
            "disk": {"path": str(tmp_path / "kv"), "size_limit": "1GiB"},
        },
    }
    disk = plan_disk_directory(tmp_path / "kv", "arm-1")
    engine = VllmWithLmcache(
        Profile.model_validate(spec), Launch(tmp_path, tmp_path / "engine-1.log", disk, "arm-1")
    )
    try:
        yield engine, engine.start(lambda _: None)
    finally:
        engine.stop()


def ask(endpoint: Endpoint, number: int) -> tuple[int, list[int]]:
    """Cached tokens and the answer's tokens of one prompt."""
    prompt = [32 + (number * 37 + i * i * (number + 3) + i) % 200 for i in range(TOKENS)]
    body = {"model": endpoint.model, "prompt": prompt, "max_tokens": 4, "temperature": 0, **endpoint.extra_body}
    answer = httpx.post(f"{endpoint.base_url}/v1/completions", json=body, timeout=120, trust_env=False)
    answer.raise_for_status()
    told = answer.json()
    time.sleep(0.3)  # stores go on after the answer
    return told["usage"]["prompt_tokens_details"]["cached_tokens"], told["choices"][0]["token_ids"]


def sources(endpoint: Endpoint) -> dict[str, float]:
    page = parse_engine(httpx.get(endpoint.metrics_url, trust_env=False, timeout=10).text)
    assert identity_breaks(page) == ()
    return source_counters(page)


def test_hits_come_from_memory_and_files_until_the_server_is_lost(
    lmcache: tuple[VllmWithLmcache, Endpoint], tmp_path: Path
) -> None:
    engine, endpoint = lmcache
    effective = engine.effective()
    assert effective.differences == ()
    assert (effective.host_bytes, effective.disk) == (HOST_BYTES, True)
    first = [ask(endpoint, number)[1] for number in range(PROMPTS)]
    assert sources(endpoint) == {
        "computed": PROMPTS * TOKENS,
        **dict.fromkeys(("device", "host", "disk", "elsewhere"), 0),
    }
    # The oldest is on disk alone; one that the device has lost since is still in memory.
    assert ask(endpoint, 0) == (CHUNKED, first[0])
    assert sources(endpoint)["disk"] == CHUNKED
    assert ask(endpoint, PROMPTS - 3) == (CHUNKED, first[PROMPTS - 3])
    counted = sources(endpoint)
    assert (counted["disk"], counted["elsewhere"]) == (CHUNKED, 0)
    assert counted["host"] > 0
    assert sum(counted.values()) == (PROMPTS + 2) * TOKENS

    assert engine.reset() == ()
    assert ask(endpoint, 0) == (0, first[0]), "every tier was emptied"

    assert engine.state().alive
    (server,) = engine._beside.state().pids
    os.kill(server, 9)
    deadline = time.monotonic() + 10
    while engine.state().alive:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert "its LMCache server ended by signal 9" in engine.state().detail
    pids = engine.state().pids
    engine.stop()
    assert all(gone(pid) for pid in pids)
    check_free(int(endpoint.base_url.rpartition(":")[2]))
    assert not (tmp_path / "kv").exists()
    assert not [path for path in (kvbench_home() / "leases").glob("*.json") if '"arm-1' in path.read_text()]
