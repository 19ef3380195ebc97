"""The proof of the first verdict (`tests.proofs.first_verdict`): what does not hold is said, and it goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from kvbench.errors import KvbenchError
from kvbench.spec.loading import load_rules
from tests.proofs.embedded import Stopped, runs_in
from tests.proofs.first_verdict import (
    BURN,
    Came,
    Part,
    against_bad,
    against_busy,
    against_copy,
    against_demo,
    against_rules,
    busy_core,
    main,
    parts,
    see,
)

NO_TOKENS = {"device": 0.0, "host": 0.0, "disk": 0.0, "computed": 0.0}


def came(outcome: str, exit_code: int, **rules: str) -> Came:
    """Rules are `kind_id=status`."""
    listed = [
        {"rule": name.partition("_")[2].replace("_", "-"), "kind": name.partition("_")[0], "status": status}
        for name, status in rules.items()
    ]
    verdict: dict[str, Any] = {
        "verdict": outcome,
        "reasons": ["the first reason"],
        "baseline": "base",
        "candidate": "tiered",
        "action": None,
        "rules": listed,
        "rounds": {"done": 3},
        "sources": {
            "base": NO_TOKENS | {"device": 10.0, "computed": 90.0},
            "tiered": {"device": 10.0, "host": 30.0, "disk": 50.0, "computed": 10.0},
        },
    }
    return Came(exit_code, 290.0, verdict, fewest_long=36)


def changed(found: Came, **verdict: object) -> Came:
    return replace(found, verdict=found.verdict | verdict)


DEMO = came("GO", 0, guardrail_parity="pass", benefit_long_ttft="pass")
SOURCES = DEMO.verdict["sources"]
DEMOS = [
    (DEMO, []),
    (came("NO_GO", 1, guardrail_parity="pass", benefit_long_ttft="pass"), ["NO_GO with exit code 1: the first"]),
    (replace(DEMO, exit_code=1), ["GO with exit code 1"]),
    (replace(DEMO, seconds=601.0), ["it took 601 s"]),
    (changed(DEMO, rounds={"done": 2}), ["2 paired rounds"]),
    (came("GO", 0, guardrail_parity="pass"), ["the TTFT of the long class"]),
    (came("GO", 0, guardrail_parity="unknown", benefit_long_ttft="pass"), ["output parity is not proven"]),
    (
        changed(DEMO, sources=SOURCES | {"tiered": SOURCES["tiered"] | {"host": None, "disk": 0.0}}),
        ["no token was served from host, disk"],
    ),
    (
        changed(DEMO, sources=SOURCES | {"base": SOURCES["base"] | {"device": 30.0}}),
        ["25% of the baseline's prompt tokens were hits"],
    ),
    (replace(DEMO, fewest_long=29), ["a round with 29 long requests"]),
]


@pytest.mark.parametrize(("found", "faults"), DEMOS)
def test_a_demo_is_held_to_all_that_it_must_show(found: Came, faults: list[str]) -> None:
    told = list(against_demo(found))
    assert len(told) == len(faults)
    assert all(text.startswith(start) for text, start in zip(told, faults, strict=True))


@pytest.mark.parametrize(
    ("found", "holds"),
    [
        (came("GO", 0), True),
        (came("INVALID", 4, validity_host_contention="fail"), True),
        (came("INVALID", 4, validity_host_contention="pass", validity_residue="fail"), False),
        (came("NO_GO", 1, validity_host_contention="pass"), False),
        (came("INCONCLUSIVE", 3), False),
    ],
)
def test_beside_a_busy_core_it_is_go_or_invalid_for_contention(found: Came, holds: bool) -> None:
    assert (list(against_busy(found)) == []) is holds


@pytest.mark.parametrize(
    ("found", "faults"),
    [
        (came("INCONCLUSIVE", 3, guardrail_a="unknown", benefit_b="unknown"), []),
        (came("NO_GO", 1, guardrail_a="pass", benefit_b="fail", benefit_c="fail"), []),
        (came("NO_GO", 1, guardrail_a="pass", benefit_b="fail", benefit_c="unknown"), ["NO_GO for another reason"]),
        (came("NO_GO", 1, guardrail_a="fail", benefit_b="fail"), ["guardrails failed: a"]),
        (came("INCONCLUSIVE", 3, guardrail_a="fail"), ["guardrails failed: a"]),
        (came("GO", 0, guardrail_a="pass", benefit_b="pass"), ["GO with exit code 0"]),
        (came("INVALID", 4, guardrail_a="pass", benefit_b="fail"), ["INVALID with exit code 4"]),
    ],
)
def test_an_arm_against_its_copy_is_no_benefit_or_inconclusive(found: Came, faults: list[str]) -> None:
    told = list(against_copy(found))
    assert len(told) == len(faults)
    assert all(text.startswith(start) for text, start in zip(told, faults, strict=True))


@pytest.mark.parametrize(
    ("found", "faults"),
    [
        (changed(came("NO_GO", 1), action={"disable_tier": "disk", "why": "w"}), []),
        (changed(came("NO_GO", 1), action={"disable_tier": "host", "why": "w"}), ["the tier to disable is host"]),
        (came("NO_GO", 1), ["the tier to disable is not named"]),
        (came("INCONCLUSIVE", 3), ["INCONCLUSIVE with exit code 3", "the tier to disable is not named"]),
    ],
)
def test_a_bad_tier_must_be_named(found: Came, faults: list[str]) -> None:
    told = list(against_bad(found))
    assert len(told) == len(faults)
    assert all(text.startswith(start) for text, start in zip(told, faults, strict=True))


def test_the_demos_rules_are_those_that_its_rounds_carry() -> None:
    rules = load_rules("demo")
    assert list(against_rules(rules)) == []
    more = rules.model_copy(update={"rounds": rules.rounds.model_copy(update={"max": 6})})
    assert list(against_rules(more)) == ["the demo's rules ask for 3 to 6 rounds"]
    for change, words in (
        ({"quantile": 0.99}, "is on p99"),
        ({"max_ratio": 1.1}, "has a ratio of 1.1"),
        ({"metric": "error_rate", "max": 0.05}, "is not at 2%"),
    ):
        first = rules.guardrails[0].model_copy(update=change)
        broken = rules.model_copy(update={"guardrails": [first, *rules.guardrails[1:]]})
        (fault,) = against_rules(broken)
        assert fault.endswith(words)


# Stands for kvbench: makes a run, says how it was called, and waits while it is told to.
COMMAND = """\
import json, pathlib, sys, time
here, (*_, option, value) = pathlib.Path(__file__).parent, sys.argv
run = pathlib.Path(value) if option == "--resume" else pathlib.Path(value) / str(time.monotonic_ns())
run.mkdir(parents=True, exist_ok=True)
(run / "run.json").write_text("{}")
print(option, flush=True)
while (here / "wait").exists():
    time.sleep(0.05)
if not (here / "fail").exists():
    (run / "verdict.json").write_text(json.dumps({"verdict": "NO_GO", "reasons": ["slow"], "rules": []}))
sys.exit(1)
"""


@pytest.fixture
def part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Part:
    (tmp_path / "first_verdict_command.py").write_text(COMMAND)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return Part("a", "a statement", ("first_verdict_command", "compare"), against_bad, goes_on=True)


def calls(folder: Path) -> list[str]:
    return [line for line in (folder / "log.txt").read_text().splitlines() if line.startswith("--")]


def test_what_was_seen_once_is_not_run_again(tmp_path: Path, part: Part) -> None:
    folder = tmp_path / "a"
    first = see(part, folder, time.monotonic() + 60)
    assert (first.exit_code, first.outcome) == (1, "NO_GO")
    assert see(part, folder, time.monotonic()) == first, "although no time is left"
    assert calls(folder) == ["--out"]


@pytest.mark.parametrize("goes_on", [True, False])
def test_what_was_stopped_goes_on_or_begins_anew(tmp_path: Path, part: Part, goes_on: bool) -> None:
    part, folder = replace(part, goes_on=goes_on), tmp_path / "a"
    (tmp_path / "wait").touch()
    with pytest.raises(Stopped):
        see(part, folder, time.monotonic() + 2)
    (begun,) = runs_in(folder)
    (tmp_path / "wait").unlink()
    with pytest.raises(Stopped):
        see(part, folder, time.monotonic())
    ended = see(part, folder, time.monotonic() + 60)
    assert calls(folder) == ["--out", "--resume" if goes_on else "--out"]
    assert (ended.run == begun) is goes_on
    assert len(runs_in(folder)) == 1


def test_no_verdict_is_an_error_that_names_the_log(tmp_path: Path, part: Part) -> None:
    (tmp_path / "fail").touch()
    with pytest.raises(KvbenchError, match=r"a ended with exit code 1 and no verdict\n.*log.txt"):
        see(part, tmp_path / "a", time.monotonic() + 60)
    assert not (tmp_path / "a" / "came.json").exists()


def test_a_busy_core_is_busy_and_ends_with_what_it_is_for() -> None:
    with busy_core():
        (burning,) = [child for child in psutil.Process().children() if BURN in child.cmdline()]
        deadline = time.monotonic() + 60
        while sum(burning.cpu_times()[:2]) < 0.5 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert sum(burning.cpu_times()[:2]) >= 0.5
    assert not burning.is_running()


def test_a_busy_core_outlives_nobody() -> None:
    """Killed at once, whoever started it cannot end it in order."""
    ask = "from tests.proofs.first_verdict import *; stack = ExitStack(); stack.enter_context(busy_core())"
    kill = "import os, psutil; print(psutil.Process().children()[0].pid, flush=True); os.kill(os.getpid(), 9)"
    told = subprocess.run([sys.executable, "-c", f"{ask}\n{kill}"], stdout=subprocess.PIPE, check=False).stdout
    burning = psutil.Process(int(told)) if psutil.pid_exists(int(told)) else None
    try:
        deadline = time.monotonic() + 20
        while burning is not None and burning.is_running() and burning.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    except psutil.NoSuchProcess:
        return
    finally:
        if burning is not None and burning.is_running():
            burning.kill()


def test_all_parts_are_run_unless_some_are_asked_for() -> None:
    assert [part.name for part in parts(2)] == ["demo-1", "demo-2", "busy", "copy", "bad"]
    assert [part.name for part in parts(1, ["bad", "demo"])] == ["demo-1", "bad"]


@pytest.mark.parametrize(("action", "code"), [({"disable_tier": "disk", "why": "w"}, 0), (None, 1)])
def test_the_exit_code_says_whether_all_holds(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    action: object,
    code: int,
) -> None:
    monkeypatch.setattr("tests.proofs.first_verdict.install", lambda *_, **__: None)
    monkeypatch.setattr("tests.proofs.first_verdict.signal.signal", lambda *_: None)
    monkeypatch.setattr("tests.proofs.first_verdict.see", lambda *_: changed(came("NO_GO", 1), action=action))
    assert main(["bad", "--directory", os.fspath(tmp_path)]) == code
    told = capsys.readouterr().out
    assert "3. a deliberately bad disk tier" in told
    assert ("FAILS  the tier to disable is not named" in told) is bool(code)
    assert json.loads(told.splitlines()[-1]) == {"statements": 1, "holds": not code}


def test_a_command_without_a_verdict_does_not_hold_and_the_others_are_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> Came:
        raise KvbenchError("there is no verdict", do="see the log")

    monkeypatch.setattr("tests.proofs.first_verdict.install", lambda *_, **__: None)
    monkeypatch.setattr("tests.proofs.first_verdict.signal.signal", lambda *_: None)
    monkeypatch.setattr("tests.proofs.first_verdict.see", broken)
    assert main(["copy", "bad", "--directory", os.fspath(tmp_path)]) == 1
    assert capsys.readouterr().out.count("FAILS  there is no verdict\n  → see the log") == 2


def test_the_exit_code_says_that_the_time_was_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.proofs.first_verdict.install", lambda *_, **__: None)
    monkeypatch.setattr("tests.proofs.first_verdict.signal.signal", lambda *_: None)
    assert main(["copy", "--for", "0", "--directory", os.fspath(tmp_path)]) == 3
