"""A comparison of attached servers, stopped in the middle of a round and resumed: no server sees a prompt again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd

from kvbench.record.tables import REQUESTS
from tests.cli.files import RULES, WORKLOAD, attached_profile, write
from tests.cli.invoke import kvbench_here
from tests.standin.server import stand_in

LENIENT = RULES.replace("send_lag_p99: 200ms", "send_lag_p99: 2s, scrape_coverage: 10%, scrape_gap: 30s")


def stop_in_the_second_arm(arguments: list[str], results: Path) -> int:
    """SIGINT once the candidate has answered some of its first round; the exit code."""
    process = subprocess.Popen(
        [sys.executable, "-m", "kvbench", *arguments],
        env={**os.environ, "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        deadline = time.monotonic() + 180
        while not any(
            part.stat().st_size > REQUESTS.serialize().size
            for part in results.glob("*/arms/other/round-1/requests.part.arrows")
        ):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    return process.returncode


def test_no_prompt_is_sent_again_to_a_server_that_may_hold_it(tmp_path: Path) -> None:
    results = tmp_path / "results"
    with stand_in() as (one, _), stand_in() as (other, _):
        files = write(
            tmp_path, base=attached_profile("base", one), other=attached_profile("other", other),
            workload=WORKLOAD, rules=LENIENT,
        )  # fmt: skip
        said = ["compare", files["base"], files["other"], "-w", files["workload"], "-r", files["rules"], "-n", "1"]
        assert stop_in_the_second_arm([*map(str, said), "--out", str(results)], results) == 130
        (run,) = results.iterdir()
        answer = kvbench_here("compare", "--resume", run, "--json")
    assert answer.code in (1, 3), answer.text
    before, after = (
        pd.read_parquet(run / "arms" / "base" / name / "requests.parquet")
        for name in ("round-1.spoiled-1", "round-1")
    )
    assert len(after) > 50
    assert set(before["prompt_digest"]).isdisjoint(after["prompt_digest"])
    candidate = pd.read_parquet(run / "arms" / "other" / "round-1" / "requests.parquet")
    assert set(candidate["prompt_digest"]) == set(after["prompt_digest"])
    rounds = json.loads((run / "run.json").read_text())["rounds"]
    assert [(r["arm"], r["state"]) for r in rounds] == [("base", "unpaired"), ("base", "done"), ("other", "done")]
    assert "round 1 was begun anew" in (run / "report.md").read_text()
