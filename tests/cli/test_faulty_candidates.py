"""What is wrong with one arm, or with what it asks of this host, is told with the line of its own file."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from kvbench.engine.base import Launch
from kvbench.engine.create import create_engine
from kvbench.errors import InputError
from kvbench.spec.loading import load_profile, load_workload
from kvbench.workload.build import build_schedule
from tests.cli.files import RULES, WORKLOAD, write
from tests.cli.invoke import Answer, kvbench_here

ARM = """\
name: {name}
engine:
  kind: vllm
  environment: vllm-cpu
  version: 0.32.0
  model: tiny
  args:
    max-model-len: 4096
    max_num_seqs: 8
tiers:
  device: {{blocks: 64}}
"""
EMULATED = """\
name: {name}
engine:
  kind: emulated
  model: tiny
  args:
    max-model-len: 4096
    port: {port}
tiers:
  device: {{blocks: 64}}
"""


def compare(folder: Path, base: str, other: str, *extra: str | Path, workload: str = WORKLOAD) -> Answer:
    files = write(folder, base=base, other=other, workload=workload, rules=RULES)
    given = ["compare", files["base"], files["other"], "-w", files["workload"], "-r", files["rules"]]
    return kvbench_here(*given, "--out", folder / "results", *extra)


@pytest.mark.parametrize(
    ("written", "instead", "line", "told"),
    [
        ("max-model-len: 4096", "max-modle-len: 4096", 8, "engine.args.max-modle-len: vLLM 0.32.0 has no flag"),
        ("max_num_seqs: 8", "max_num_sqes: 8", 9, "engine.args.max_num_sqes: vLLM 0.32.0 has no flag"),
        ("max_num_seqs: 8", "uds: /x", 9, "engine.args.uds: --uds is kvbench's to set"),
        ("max_num_seqs: 8", "port: 70000", 9, "engine.args.port: 70000 is no port"),
        ("environment: vllm-cpu", "environment: vllm-cup", 4, "engine.environment: there is no engine environment"),
        ("version: 0.32.0", "version: 0.31.0", 5, "engine.version: profile other pins version 0.31.0, and"),
        ("  environment: vllm-cpu\n", "", 2, "engine: profile other does not say how vLLM is started"),
        ("max_num_seqs: 8", "dtype: float31", 9, "engine.args.dtype: vLLM 0.32.0 does not take 'float31'"),
    ],
)
def test_a_fault_of_the_second_file_alone_is_told_with_its_line_whether_or_not_it_would_run(
    tmp_path: Path, home: Path, written: str, instead: str, line: int, told: str
) -> None:
    broken = ARM.format(name="other").replace(written, instead)
    for extra in (["--dry-run"], []):
        answer = compare(tmp_path, ARM.format(name="base"), broken, *extra)
        assert answer.code == 2, answer.text
        assert f"error: {tmp_path / 'other.yaml'}:{line}: {told}" in answer.err
        assert answer.out == ""
    assert not (tmp_path / "results").exists()


def test_a_dry_run_for_machines_ends_as_one_for_people(tmp_path: Path) -> None:
    broken = ARM.format(name="other").replace("max-model-len", "max-modle-len")
    answer = compare(tmp_path, ARM.format(name="base"), broken, "--dry-run", "--json")
    assert answer.code == 2
    error = json.loads(answer.out)["error"]
    assert f"{tmp_path / 'other.yaml'}:8: engine.args.max-modle-len" in error
    assert "did you mean max-model-len?" in error


def test_a_port_that_another_process_has_is_told_with_the_line_that_asks_for_it(tmp_path: Path, home: Path) -> None:
    base = EMULATED.format(name="base", port=0).replace("    port: 0\n", "")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        answer = compare(tmp_path, base, EMULATED.format(name="other", port=port))
        assert answer.code == 2, answer.text
        assert f"error: {tmp_path / 'other.yaml'}:7: engine.args.port: other: port {port} is in use" in answer.err
        launch = Launch(tmp_path / "launch", tmp_path / "launch" / "engine-1.log", None, "other-1")
        engine = create_engine(load_profile(tmp_path / "other.yaml"), launch)
        with pytest.raises(InputError) as told:
            engine.start(lambda _: None)
    assert str(told.value).startswith(f"{tmp_path / 'other.yaml'}:7: engine.args.port: port {port} is in use")


def test_an_environment_that_is_not_there_is_told_with_the_line_that_names_it(tmp_path: Path, home: Path) -> None:
    base = EMULATED.format(name="base", port=0).replace("    port: 0\n", "")
    answer = compare(tmp_path, base, ARM.format(name="other"))
    assert answer.code == 2, answer.text
    place = f"{tmp_path / 'other.yaml'}:4: engine.environment"
    assert f"{place}: other: the environment vllm-cpu is not installed" in answer.err


def test_an_arm_within_an_experiment_is_told_with_its_line_there(tmp_path: Path) -> None:
    lines = [f"  {line}" for line in EMULATED.format(name="second", port=65536).splitlines()]
    lines = ["experiment:", "  baseline: emulated/baseline", "  candidates:", "  -", *("  " + x for x in lines)]
    files = write(tmp_path, both="\n".join([*lines, "  workload: workload.yaml", ""]), workload=WORKLOAD)
    answer = kvbench_here("compare", files["both"], "--dry-run")
    assert answer.code == 2, answer.text
    place = f"{files['both']}:11: experiment.candidates[0].engine.args.port"
    assert f"{place}: 65536 is no port" in answer.err


@pytest.mark.parametrize(
    ("written", "instead", "line", "told"),
    [
        ("40/s", "900000/s", 3, "arrivals.rate: 2.7e+06 arrivals in one round are more than"),
        (
            "{name: steady, for: 2s}",
            "{name: steady, for: 2s, rate: {on_off: {rate: 9/s, on: 0.001ms, off: 0.001ms}}}",
            6,
            "phases[1].rate: the rate of phase 'steady' repeats 1,000,000 times",
        ),
        ("{name: steady, for: 2s}", "{name: steady, for: 2s, rate: {to: 1000000/s}}", 3, "arrivals.rate: "),
        ("tokens: 1024, pool: 6", "tokens: 4096, pool: 6", 9, "classes.long: class 'long' plans a prompt of 4160"),
    ],
)
def test_what_no_schedule_can_be_made_of_is_told_with_its_line_in_the_workload(
    tmp_path: Path, written: str, instead: str, line: int, told: str
) -> None:
    arms = [EMULATED.format(name=name, port=0).replace("    port: 0\n", "") for name in ("base", "other")]
    answer = compare(tmp_path, *arms, "--dry-run", workload=WORKLOAD.replace(written, instead))
    assert answer.code == 2, answer.text
    assert f"error: {tmp_path / 'workload.yaml'}:{line}: {told}" in answer.err


def test_a_closed_loop_of_too_many_is_told_with_the_line_of_its_concurrency(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvbench.workload.build.MOST_REQUESTS", 100)
    arrivals = "arrivals:\n  process: closed\n  closed:\n    concurrency: 4000"
    text = WORKLOAD.replace("arrivals: {process: poisson, rate: 40/s}", arrivals)
    files = write(tmp_path, workload=text)
    with pytest.raises(InputError) as told:
        build_schedule(
            load_workload(files["workload"]), 1, block_tokens=16, capacities_tokens=None, max_model_len=None
        )
    assert str(told.value).startswith(f"{files['workload']}:6: arrivals.closed.concurrency: a closed loop of 4000 ")
