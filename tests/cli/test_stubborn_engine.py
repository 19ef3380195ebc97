"""An engine that does not end on SIGTERM is killed, and whoever watches a run or reads it later is told so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvbench.engine.vllm_engine import VllmEngine
from kvbench.record.run_directory import RunDirectory
from tests.cli.invoke import kvbench_here
from tests.cli.test_signals import STAND_IN, WORKLOAD, compare_with

STUBBORN = "revision: main, env: {STAND_IN_STOP_AFTER: '600'}"
KILLED = "the engine did not end on SIGTERM within 0.5 s and was killed"


def test_an_engine_that_had_to_be_killed_is_named_on_the_way_in_the_record_and_in_the_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(VllmEngine, "grace_s", 0.5)
    base, tiered = (
        STAND_IN.format(name=name, tiers=tiers).replace("revision: main", STUBBORN)
        for name, tiers in (("base", "{}"), ("tiered", "{host: {size: 16MiB, via: offloading}}"))
    )
    arguments = compare_with(tmp_path, base, tiered, WORKLOAD.format(rate=20, seconds=2))
    answer = kvbench_here(*arguments, "--rounds", "2")
    assert answer.code in (1, 3), answer.text
    assert f"tiered, round 2: {KILLED}" in " ".join(answer.err.split())
    assert f"tiered: {KILLED} (rounds 1, 2)" in " ".join(answer.out.split())
    (path,) = (tmp_path / "results").iterdir()
    rounds = RunDirectory.open(path).read_manifest().rounds
    assert [each.stop_remarks for each in rounds] == [[KILLED]] * 4
    assert KILLED in " ".join((path / "report.md").read_text().split())

    run_of_before = json.loads((path / "run.json").read_text())
    for each in run_of_before["rounds"]:
        del each["stop_remarks"]
    (path / "run.json").write_text(json.dumps(run_of_before))
    again = kvbench_here("report", path)
    assert again.code == answer.code, again.text
    assert KILLED not in " ".join(again.text.split())
