"""A server that answers `/health` and refuses every request: named within seconds, as real processes."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.cli.files import WORKLOAD, attached_profile, write
from tests.cli.invoke import kvbench
from tests.standin.server import Behaviour, stand_in

ROUND_S = 60
LONG = WORKLOAD.replace("for: 2s", f"for: {ROUND_S}s")
EMULATED = """\
name: emulated
engine: {kind: emulated, model: tiny, inject: {errors: {share: 1.0}}}
tiers: {device: {blocks: 300}}
"""


def recorded(folder: Path, profile: str, *options: str) -> dict[str, Any]:
    """What `kvbench run --json` says."""
    files = write(folder, profile=profile, workload=LONG)
    answer = kvbench(
        "run", files["profile"], "--workload", files["workload"], "--rounds", "1", "--out", folder / "results",
        "--json", *options,
    )  # fmt: skip
    assert answer.code == 4, answer.text
    told: dict[str, Any] = json.loads(answer.out)
    return told


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """All at once: most of their time is waiting."""
    with stand_in(Behaviour(completion="503")) as (url, _), ThreadPoolExecutor(3) as threads:
        attached = attached_profile("attached", url)
        futures = {
            name: threads.submit(recorded, tmp_path_factory.mktemp(name), profile, *options)
            for name, profile, options in (
                ("emulated", EMULATED, ()),
                ("attached", attached, ()),
                ("workers", attached, ("--workers", "2")),
            )
        }
        return {name: future.result() for name, future in futures.items()}


@pytest.mark.parametrize(("name", "status"), [("emulated", 500), ("attached", 503), ("workers", 503)])
def test_the_round_ends_within_seconds_and_the_event_says_what_the_server_does(
    runs: dict[str, dict[str, Any]], name: str, status: int
) -> None:
    (event,) = runs[name]["events"]
    assert event["kind"] == "refusing"
    assert event["detail"].startswith(f"it answers /health and refuses every request with {status}, ")
    assert event["detail"].endswith(" in a row")
    assert event["t_s"] < ROUND_S / 3
