"""`tiers.disk.size_limit`, watched by kvbench because the engine has none: exceeding it ends the run as INVALID."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.invoke import kvbench_here
from tests.cli.test_signals import STAND_IN, WORKLOAD, compare_with


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """A baseline whose disk tier outgrows its limit."""
    tier = tmp_path / "a tier"
    tiers = f'{{host: {{size: 16MiB, via: offloading}}, disk: {{path: "{tier}", size_limit: 1MiB}}}}'
    tiered = STAND_IN.format(name="tiered", tiers=tiers)
    large = "revision: main, env: {STAND_IN_DISK_BYTES: 3000000}"
    return compare_with(
        tmp_path,
        tiered.replace("name: tiered", "name: base").replace("revision: main", large),
        STAND_IN.format(name="small", tiers="{}").replace("revision: main", large),
        WORKLOAD.format(rate=20, seconds=60),
    )


def test_a_disk_tier_beyond_its_limit_ends_the_run_as_invalid_with_the_reason(
    tmp_path: Path, arguments: list[str]
) -> None:
    answer = kvbench_here(*arguments, "--json")
    assert answer.code == 4, answer.text
    verdict = json.loads(answer.out)
    assert verdict["verdict"] == "INVALID"
    assert any("more than its size_limit of 1 MiB" in reason for reason in verdict["reasons"]), verdict["reasons"]
    assert not (tmp_path / "a tier").exists(), "and nothing of it stays"


def test_a_recording_of_such_an_arm_fails_with_the_reason(tmp_path: Path, arguments: list[str]) -> None:
    _, base, *_ = arguments
    answer = kvbench_here("run", base, "-w", tmp_path / "workload.yaml", "--out", tmp_path / "results", "--json")
    assert answer.code == 4, answer.text
    (difference,) = json.loads(answer.out)["config_differences"]
    assert "more than its size_limit of 1 MiB" in difference
    (run,) = (tmp_path / "results").iterdir()
    assert kvbench_here("report", run).code == 4
