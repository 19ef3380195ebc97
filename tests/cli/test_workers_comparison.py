"""`kvbench compare --workers`: one verdict of several processes, and what becomes of a round that loses one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import psutil

from kvbench.record.tables import REQUESTS
from tests.cli.files import RULES, attached_profile, write
from tests.cli.invoke import kvbench
from tests.standin.server import Behaviour, stand_in

WORKLOAD = """\
name: brief
seed: 3
arrivals: {process: poisson, rate: 40/s}
phases: [{name: steady, for: 2s}]
classes:
  short: {prefix: {tokens: 256, pool: 4}, suffix_tokens: 64, output_tokens: 8}
request_timeout: 10s
"""
LENIENT = RULES.replace("long-ttft, metric: ttft, class: long", "all-ttft, metric: ttft").replace(
    "send_lag_p99: 200ms", "send_lag_p99: 2s, scrape_coverage: 10%, scrape_gap: 30s"
)


def kill_a_playing_worker(comparison: subprocess.Popen[str], results: Path, times: int) -> int:
    """SIGKILL worker 1 of as many rounds, each once it has recorded something; how many that were."""
    killed: set[int] = set()
    while comparison.poll() is None and len(killed) < times:
        time.sleep(0.05)
        parts = [*results.glob("*/arms/*/round-1/worker-1/requests.part.arrows")]
        if not any(part.stat().st_size > REQUESTS.serialize().size for part in parts):
            continue
        for process in psutil.Process(comparison.pid).children(recursive=True):
            if process.pid not in killed and _is_second_worker(process):
                process.kill()
                killed.add(process.pid)
    return len(killed)


def _is_second_worker(process: psutil.Process) -> bool:
    try:
        words = process.cmdline()
    except psutil.NoSuchProcess:  # it ended meanwhile
        return False
    return "kvbench.load.worker" in words and words[-1] == "1"


def with_workers(command: str, folder: Path, *, kills: int) -> tuple[int, str, str, Path]:
    """Exit code, stdout, stderr and the run's folder."""
    with stand_in(Behaviour()) as (one, _), stand_in(Behaviour()) as (other, _):
        files = write(
            folder, base=attached_profile("base", one), other=attached_profile("other", other),
            workload=WORKLOAD, rules=LENIENT,
        )  # fmt: skip
        profiles = [files["base"], files["other"]] if command == "compare" else [files["base"]]
        rules = ["--rules", files["rules"]] if command == "compare" else []
        process = subprocess.Popen(
            [
                sys.executable, "-m", "kvbench", command, *map(str, profiles), "--workload", str(files["workload"]),
                *map(str, rules), "--rounds", "1", "--workers", "2", "--out", str(folder / "results"), "--json",
            ],
            env={**os.environ, "NO_COLOR": "1", "COLUMNS": "200"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        try:
            assert kill_a_playing_worker(process, folder / "results", kills) == kills
            out, err = process.communicate(timeout=300)
        finally:
            process.kill()
            process.wait()
    (run,) = (folder / "results").iterdir()
    return process.returncode, out, err, run


def test_a_round_that_lost_a_worker_is_repeated_and_the_verdict_stands_on_whole_rounds(tmp_path: Path) -> None:
    code, out, err, run = with_workers("compare", tmp_path, kills=1)
    verdict = json.loads(out)
    assert verdict["verdict"] != "INVALID", verdict["reasons"]
    assert code == verdict["exit_code"]
    assert verdict["instrument"]["workers"] == 2
    assert verdict["instrument"]["worker_clock_error_s"] == 0
    manifest = json.loads((run / "run.json").read_text())
    (warning,) = [text for text in manifest["warnings"] if "worker 1" in text]
    assert warning.startswith("round 1 is repeated: round 1 of ")
    assert "worker 1 was lost " in err
    assert "worker 1 was lost " in (run / "report.md").read_text()
    spoiled = [record for record in manifest["rounds"] if record["state"] == "spoiled"]
    assert any(record["load_faults"] for record in spoiled)
    sent = {}
    for arm in ("base", "other"):
        rows = pd.read_parquet(run / "arms" / arm / "round-1" / "requests.parquet").sort_values("id")
        assert set(rows["worker"]) == {0, 1}
        assert set(rows["status"]) == {"ok"}
        sent[arm] = rows[["id", "prompt_digest", "intended_s"]].reset_index(drop=True)
    pd.testing.assert_frame_equal(sent["base"], sent["other"])
    had_it_not_helped(run)


def had_it_not_helped(run: Path) -> None:
    """The same run, had the last repetition lost a worker as well: its rows would be in no table."""
    manifest = json.loads((run / "run.json").read_text())
    last = next(record for record in manifest["rounds"] if record["state"] == "done")
    last["load_faults"] = ["worker 1 was lost 0.7 s into the round: it was killed by signal 9"]
    (run / "run.json").write_text(json.dumps(manifest))
    for table in ("requests", "tokens"):
        (run / "arms" / last["arm"] / "round-1" / f"{table}.parquet").unlink()
    answer = kvbench("report", run, "--json")
    verdict = json.loads(answer.out)
    assert (answer.code, verdict["verdict"]) == (4, "INVALID"), answer.err
    assert verdict["reasons"][0] == f"round 1 of {last['arm']}: {last['load_faults'][0]}"


def test_a_recording_that_loses_a_worker_every_time_fails_and_says_why(tmp_path: Path) -> None:
    code, out, err, run = with_workers("run", tmp_path, kills=3)
    assert code == 4
    told = json.loads(out)["error"]
    assert told.startswith("round 1 was spoiled 3 times: worker 1 was lost ")
    assert "killed by signal 9" in err + told
    assert not any(run.glob("arms/*/round-1/requests.parquet"))
