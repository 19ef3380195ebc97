"""A workload that is too much for the client is refused with exit 2 before an engine starts or is sent anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvbench.load.calibrate import Calibration, _host_key
from tests.cli.files import RULES, attached_profile, write
from tests.cli.invoke import kvbench
from tests.load.test_calibrate import MEASURED
from tests.standin.server import Behaviour, stand_in

TOO_MUCH = """\
name: too-much
seed: 3
arrivals: {process: poisson, rate: 1000/s}
phases: [{name: steady, for: 2s}]
classes:
  short: {prefix: {tokens: 256, working_set: {of: device, times: 2}}, suffix_tokens: 16, output_tokens: 1000}
"""
"""A million tokens a second, of a pool whose size only a running engine tells."""
EMULATED = "name: {name}\nengine: {{kind: emulated, model: tiny}}\ntiers: {{device: {{blocks: 300}}}}\n"
SMALL = MEASURED.model_copy(update={"capacity_events_per_s": 1_000, "request_cpu_s": 1e-3})


@pytest.fixture
def small_calibration(home: Path) -> Path:
    """What is kept of this host says that the client can take hardly anything."""
    path = home / "calibration" / f"{_host_key()}.json"
    path.parent.mkdir(parents=True)
    path.write_text(SMALL.model_dump_json())
    return path


def refused(*arguments: str | Path) -> str:
    """What it says."""
    answer = kvbench(*arguments)
    assert answer.code == 2, answer.text
    said = " ".join(answer.err.split())
    assert " output tokens/s and " in said
    assert "1 worker may use 0.5 if times are not to depend on the client" in said
    assert "on other machines" in said
    return said


@pytest.mark.parametrize("command", ["run", "compare"])
def test_before_an_engine_is_started(command: str, tmp_path: Path, small_calibration: Path) -> None:
    files = write(
        tmp_path, one=EMULATED.format(name="one"), two=EMULATED.format(name="two"),
        workload=TOO_MUCH, rules=RULES.replace("class: long", "class: short"),
    )  # fmt: skip
    arms = [files["one"]] if command == "run" else [files["one"], files["two"], "--rules", files["rules"]]
    said = refused(command, *arms, "--workload", files["workload"], "--out", tmp_path / "results")
    assert "calibrating the client" in said, "the host may have been busy when it was calibrated"
    assert "starting one" not in said
    assert not list((tmp_path / "results").glob("*")), "nothing was begun"
    kept = Calibration.model_validate_json(small_calibration.read_bytes())
    assert kept.capacity_events_per_s >= SMALL.capacity_events_per_s


def test_before_a_server_that_runs_already_is_sent_anything(tmp_path: Path, small_calibration: Path) -> None:
    asked = Behaviour()
    with stand_in(asked) as (url, _):
        pool = TOO_MUCH.replace("working_set: {of: device, times: 2}", "pool: 4")
        files = write(tmp_path, attached=attached_profile("attached", url), workload=pool)
        refused("run", files["attached"], "--workload", files["workload"], "--out", tmp_path / "results")
    assert asked.completions == 0
