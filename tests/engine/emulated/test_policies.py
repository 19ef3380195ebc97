"""The host tier decides as vLLM's own manager and policy classes do, on random traces of every operation."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kvbench.engine.emulated.host import Access, HostChunks
from kvbench.engine.environment import EngineEnvironment

SCRIPT = Path(__file__).parent / "in_engine" / "replay_policies.py"


def a_trace(seed: int, policy: str) -> dict[str, Any]:
    """Requests that overlap in time, share prefixes, are stored, loaded and finished in any order."""
    rng = random.Random(seed)
    capacity = rng.randint(3, 30)
    steps: list[dict[str, Any]] = []
    live: dict[int, list[int]] = {}
    for number in range(rng.randint(40, 160)):
        document = rng.randint(0, 8)
        shared = rng.randint(0, 6)
        keys = [document * 100 + i for i in range(shared)] + [
            10_000 + number * 10 + i for i in range(rng.randint(0, 3))
        ]
        live[number] = keys
        steps.append({"do": "new", "request": number, "keys": keys})
        for _ in range(rng.randint(1, 4)):
            who = rng.choice(list(live))
            held = live[who]
            cut = sorted(rng.sample(range(len(held) + 1), 2)) if len(held) >= 1 else [0, 0]
            what = rng.choice(["store", "store", "load", "settle", "settle", "finish"])
            steps.append({"do": what, "request": who, "keys": held[cut[0] : cut[1]]})
            if what == "finish":
                del live[who]
                if not live:
                    break
    return {"policy": policy, "capacity": capacity, "threshold": rng.choice([0, 0, 2]), "steps": steps}


def replay(trace: dict[str, Any]) -> list[Any]:
    """What the emulated host tier decides."""
    host = HostChunks(trace["capacity"], trace["policy"], store_threshold=trace["threshold"])
    access: dict[int, Access] = {}
    prompts: dict[int, list[int]] = {}
    writing: list[list[int]] = []
    reading: list[list[int]] = []
    said: list[Any] = []
    for step in trace["steps"]:
        who, keys = step["request"], step["keys"]
        match step["do"]:
            case "new":
                access[who], prompts[who] = Access(), keys
            case "store":
                prepared = host.prepare_store(keys, access[who])
                said.append(None if prepared is None else [prepared[0], sorted(prepared[1])])
                if prepared is not None and prepared[0]:
                    writing.append(prepared[0])
            case "load":
                ready = [key for key in keys if host.references.get(key, -1) >= 0]
                said.append(ready)
                host.prepare_load(ready, access[who])
                reading.append(ready)
            case "settle":
                if writing:
                    host.complete_store(writing.pop(0))
                if reading:
                    host.complete_load(reading.pop(0))
            case "finish":
                host.request_finished(prompts[who], access[who])
    said.append(sorted(host.references.items()))
    return json.loads(json.dumps(said))


@pytest.mark.engine
@pytest.mark.timeout(300)
def test_decisions_are_those_of_vllm(engine_env: EngineEnvironment) -> None:
    """Given 40 random traces for LRU and for ARC, when both replay them, then every answer is the same."""
    traces = [a_trace(seed, policy) for seed in range(40) for policy in ("lru", "arc")]
    finished = subprocess.run(
        [str(engine_env.python), str(SCRIPT)],
        input=json.dumps(traces),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    theirs = json.loads(finished.stdout.splitlines()[-1])
    for trace, expected in zip(traces, theirs, strict=True):
        assert replay(trace) == expected, (trace["policy"], trace["capacity"])
    evicted = sum(
        len(answer[1])
        for answers in theirs
        for answer in answers
        if answer and isinstance(answer[0], list) and len(answer) == 2 and isinstance(answer[1], list)
    )
    assert evicted > 500, "the traces made the policies choose"


@pytest.mark.parametrize("policy", ["lru", "arc"])
def test_a_chunk_that_is_read_is_never_evicted(policy: str) -> None:
    host = HostChunks(2, policy)
    access = Access()
    host.prepare_store([1, 2], access)
    host.complete_store([1, 2])
    host.prepare_load([1, 2], access)
    assert host.prepare_store([3], Access()) is None
    host.complete_load([2])
    assert host.prepare_store([3], Access()) == ([3], [2])
