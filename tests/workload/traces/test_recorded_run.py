"""A run that kvbench recorded is a trace: its blocks are those that the schedule sent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvbench.engine.emulated.virtual import simulate
from kvbench.errors import InputError
from kvbench.plan.analysis import Question, analyse
from kvbench.plan.reuse import expected_sources
from kvbench.record.atomic import write_table
from kvbench.spec.profile import Profile
from kvbench.spec.workload import Workload
from kvbench.workload.build import build_schedule
from kvbench.workload.schedule import Schedule
from kvbench.workload.storage import write_schedule
from kvbench.workload.traces.reading import read_trace

BLOCK = 128


@pytest.fixture
def schedule() -> Schedule:
    workload = Workload.model_validate(
        {
            "name": "w",
            "arrivals": {"process": "poisson", "rate": 2},
            "phases": [{"name": "steady", "for": 30}],
            "classes": {
                "long": {"prefix": {"tokens": 1000, "pool": 4}, "suffix_tokens": 50, "output_tokens": 3},
                "agent": {"turns": 3, "suffix_tokens": 200, "output_tokens": 3},
            },
        }
    )
    return build_schedule(workload, 1, block_tokens=BLOCK, capacities_tokens=None, max_model_len=None)


@pytest.fixture
def run(tmp_path: Path, schedule: Schedule) -> Path:
    """What `compare` leaves of one round, as far as a trace is concerned."""
    engine = {"kind": "emulated", "model": "tiny", "args": {"max-model-len": 4096}}
    profile = Profile.model_validate({"name": "arm", "engine": engine, "tiers": {"device": {"blocks": 300}}})
    round_ = tmp_path / "run" / "arms" / "arm" / "round-1"
    round_.mkdir(parents=True)
    (tmp_path / "run" / "schedules").mkdir()
    write_schedule(schedule, tmp_path / "run" / "schedules" / "round-1.parquet")
    write_table(round_ / "requests.parquet", simulate(schedule, profile).requests)
    manifest = {"rounds": [{"arm": "arm", "index": 1, "capacities": {"block_tokens": float(BLOCK)}}]}
    (tmp_path / "run" / "run.json").write_text(json.dumps(manifest))
    return tmp_path / "run"


def test_a_run_and_one_of_its_rounds_are_the_same_trace(run: Path, schedule: Schedule) -> None:
    trace = read_trace(run)
    assert (trace.format, trace.block_tokens, len(trace)) == ("kvbench", BLOCK, len(schedule))
    assert sorted(trace.input_tokens.tolist()) == sorted(schedule.prompt_tokens())
    assert set(trace.labels) == {"long", "agent"}
    assert (trace.previous >= 0).any(), "turns know the ones before them"
    again = read_trace(run / "arms" / "arm" / "round-1")
    assert again.blocks.tolist() == trace.blocks.tolist()


def test_its_reuse_is_that_of_the_schedule(run: Path, schedule: Schedule) -> None:
    found = analyse(read_trace(run), Question(hierarchies=()))
    expected = expected_sources(schedule, block_tokens=BLOCK, device_blocks=100_000)
    share = expected["device"] / sum(expected.values())
    # answers stay on a device but are no blocks of a trace, and turns wait for them: nearly, not exactly
    assert found["ideal"]["vllm"]["token_hit_rate"] == pytest.approx(share, abs=0.03)


def test_a_folder_that_is_no_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no recorded round"):
        read_trace(tmp_path)
