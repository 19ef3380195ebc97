"""The client measures itself against a server of its own, once per host, and knows what is too much for it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from kvbench.errors import InputError
from kvbench.load.calibrate import Calibration, _host_key, calibrated
from kvbench.load.calibrate_demand import check_capacity, demand, require_capacity, usable_cores
from kvbench.spec.crew import Crew
from kvbench.workload.schedule import Segment
from tests.load.play import request, schedule

MEASURED = Calibration(
    capacity_events_per_s=20_000,
    prompt_tokens_per_s=10_000_000,
    text_prompt_tokens_per_s=2_000_000,
    request_cpu_s=0.0,
    timestamp_error_p50_s=1e-5,
    timestamp_error_p99_s=1e-4,
    send_lag_p50_s=1e-4,
    send_lag_p99_s=1e-3,
    events=1,
    measured_unix_s=0.0,
)


def test_the_host_is_calibrated_once_and_everything_is_gone_afterwards(tmp_path: Path) -> None:
    told: list[str] = []
    before = _children()
    measured = calibrated(told.append, directory=tmp_path)
    assert measured.capacity_events_per_s > 1_000
    assert measured.events > 30_000
    assert measured.prompt_tokens_per_s > measured.text_prompt_tokens_per_s > 100_000
    assert 0 <= measured.timestamp_error_p50_s <= measured.timestamp_error_p99_s < 1
    assert measured.send_lag_p50_s <= measured.send_lag_p99_s < 1
    assert 1e-5 < measured.request_cpu_s < 1e-2
    assert [text.partition(" ")[0].rstrip(":") for text in told] == ["calibrating", "calibrated"]
    assert _children() == before

    assert calibrated(told.append, directory=tmp_path) == measured
    assert len(told) == 2
    [kept] = tmp_path.iterdir()
    assert json.loads(kept.read_text())["events"] == measured.events


def _children() -> set[str]:
    command = ["ps", "-o", "pid=,args=", "--ppid", str(os.getpid())]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    return {line for line in listed.stdout.splitlines() if "kvbench" in line}


def test_a_kept_calibration_is_read(tmp_path: Path) -> None:
    (tmp_path / f"{_host_key()}.json").write_text(MEASURED.model_dump_json())
    assert calibrated(pytest.fail, directory=tmp_path) == MEASURED


def test_a_calibration_that_does_not_know_what_a_request_costs_is_made_anew_and_the_better_figures_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"{_host_key()}.json"
    path.write_text(MEASURED.model_dump_json(exclude={"request_cpu_s"}))
    assert Calibration.model_validate_json(path.read_bytes()).request_cpu_s is None
    busy = MEASURED.model_copy(update={"capacity_events_per_s": 9_000.0, "request_cpu_s": 3e-4})
    monkeypatch.setattr("kvbench.load.calibrate.calibrate", lambda: busy)
    known = MEASURED.model_copy(update={"request_cpu_s": 3e-4})
    assert calibrated(lambda _: None, directory=tmp_path) == known
    assert calibrated(pytest.fail, directory=tmp_path) == known


def test_before_a_workload_is_refused_the_host_is_calibrated_again_and_the_better_figure_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heavy = schedule(*(request(i, i / 100, output_tokens=250) for i in range(1000)), for_s=10.0)
    (tmp_path / f"{_host_key()}.json").write_text(MEASURED.model_dump_json())
    for capacity, expected in ((10_000.0, 20_000.0), (60_000.0, 60_000.0)):
        now = MEASURED.model_copy(update={"capacity_events_per_s": capacity})
        monkeypatch.setattr("kvbench.load.calibrate.calibrate", lambda now=now: now)
        if expected > 50_000:
            check_capacity(heavy, Crew(), as_text=False, progress=lambda _: None, directory=tmp_path)
        else:
            with pytest.raises(InputError, match="output tokens/s"):
                check_capacity(heavy, Crew(), as_text=False, progress=lambda _: None, directory=tmp_path)
        kept = calibrated(pytest.fail, directory=tmp_path)
        assert kept.capacity_events_per_s == expected


class TestDemand:
    def test_is_that_of_the_busiest_ten_seconds(self) -> None:
        calm = [request(i, float(i), output_tokens=100) for i in range(100)]
        burst = [request(100 + i, 50.0 + i / 100, output_tokens=100) for i in range(500)]
        needed = demand(schedule(*calm, for_s=100.0), MEASURED)
        assert needed.output_tokens_per_s == pytest.approx(100.0)
        assert needed.prompt_tokens_per_s == pytest.approx(20.0)
        assert demand(schedule(*calm, *burst, for_s=100.0), MEASURED).output_tokens_per_s == pytest.approx(5_100.0)
        assert demand(schedule(), MEASURED).workers == 1

    def test_spreads_later_turns_over_the_round_and_counts_the_prompts_that_they_carry(self) -> None:
        first = request(0, 0.0, session=1, output_tokens=500)
        later = request(1, None, session=1, turn=1, continues=0, output_tokens=500)
        needed = demand(schedule(first, later, for_s=10.0), MEASURED)
        assert needed.output_tokens_per_s == pytest.approx(100.0)
        assert needed.prompt_tokens_per_s == pytest.approx((20 + (20 + 500 + 20)) / 10)

    def test_counts_prompts_as_what_they_take_to_make(self) -> None:
        """Given hardly any output, then prompts alone can be too much for one worker, sooner as text."""
        prompts = schedule(
            *(request(i, i / 10, segments=(Segment(i, 131_072),), output_tokens=1) for i in range(100)), for_s=10.0
        )
        needed = demand(prompts, MEASURED)
        assert needed.prompt_tokens_per_s == pytest.approx(1_310_720)
        assert needed.cores == pytest.approx(0.131072 + 10 / 20_000)
        require_capacity(needed, Crew(), cores=2)
        as_text = demand(prompts, MEASURED, as_text=True)
        assert as_text.workers == 2
        with pytest.raises(InputError, match="1,310,720 prompt tokens/s") as refused:
            require_capacity(as_text, Crew(), cores=2)
        assert "--workers 2" in str(refused.value)

    def test_counts_a_request_beside_its_tokens(self) -> None:
        """Given answers of one token, then it is the requests that are too much for one worker."""
        measured = MEASURED.model_copy(update={"request_cpu_s": 2e-4})
        short = schedule(*(request(i, i / 5000, output_tokens=1) for i in range(5000)), for_s=1.0)
        needed = demand(short, measured)
        assert needed.output_tokens_per_s == needed.requests_per_s == pytest.approx(5000)
        assert needed.cores == pytest.approx(5000 / 20_000 + 5000 * 20 / 10_000_000 + 5000 * 2e-4)
        with pytest.raises(InputError, match=r"5,000 requests/s") as refused:
            require_capacity(needed, Crew(), cores=4)
        assert "--workers 3" in str(refused.value)
        require_capacity(demand(short, MEASURED), Crew(), cores=1)

    def test_looks_for_the_stretch_in_which_outputs_and_prompts_together_are_most(self) -> None:
        answers = [request(i, 5.0 + i / 100, output_tokens=100) for i in range(100)]
        prompts = [
            request(100 + i, 50.0 + i / 100, segments=(Segment(i, 100_000),), output_tokens=1) for i in range(100)
        ]
        needed = demand(schedule(*answers, *prompts, for_s=100.0), MEASURED)
        assert needed.output_tokens_per_s == pytest.approx(10.0)
        assert needed.prompt_tokens_per_s == pytest.approx(1_000_000)

    def test_of_a_closed_loop_is_what_its_slots_can_come_to_at_a_fast_server(self) -> None:
        """51 tokens take 550 ms there, and ten slots give as many such answers at a time."""
        closed = schedule(*(request(i, None, output_tokens=51) for i in range(900)), concurrency=10, for_s=10.0)
        needed = demand(closed, MEASURED)
        assert needed.output_tokens_per_s == pytest.approx(10 * 51 / 0.55)
        assert needed.prompt_tokens_per_s == pytest.approx(10 * 20 / 0.55)
        require_capacity(needed, Crew(), cores=1)

    def test_of_a_closed_loop_of_many_slots_is_too_much_for_one_worker(self) -> None:
        closed = schedule(*(request(i, None, output_tokens=200) for i in range(9)), concurrency=300, for_s=10.0)
        with pytest.raises(InputError, match="300 slots can come to 29,") as refused:
            require_capacity(demand(closed, MEASURED), Crew(), cores=4)
        assert "--workers 3" in str(refused.value)
        assert "fewer slots" in str(refused.value)

    def test_of_sessions_that_think_holds_a_slot_longer(self) -> None:
        first = request(0, None, session=1, output_tokens=51)
        later = request(1, None, session=1, turn=1, continues=0, output_tokens=51, think_s=8.9)
        needed = demand(schedule(first, later, concurrency=10, for_s=10.0), MEASURED)
        assert needed.output_tokens_per_s == pytest.approx(10 * 102 / 10.0)


class TestCapacity:
    heavy = demand(schedule(*(request(i, i / 100, output_tokens=249) for i in range(1000)), for_s=10.0), MEASURED)
    """1.25 cores' work: three workers."""

    def test_more_than_half_of_it_asks_for_more_workers(self) -> None:
        require_capacity(self.heavy, Crew(local=3), cores=8)
        with pytest.raises(InputError, match="24,900 output tokens/s") as refused:
            require_capacity(self.heavy, Crew(local=2), cores=8)
        assert "--workers 3" in str(refused.value)
        light = schedule(*(request(i, i / 100, output_tokens=90) for i in range(1000)), for_s=10.0)
        require_capacity(demand(light, MEASURED), Crew(), cores=1)

    def test_workers_beyond_the_cores_of_this_host_are_no_help(self) -> None:
        with pytest.raises(InputError, match=r"2 workers \(of 3 here only 2 can have a core\) may") as refused:
            require_capacity(self.heavy, Crew(local=3), cores=2)
        assert "join 1 worker on other machines (--expect-workers)" in str(refused.value)
        assert "--workers" not in str(refused.value).replace("--expect-workers", "")

    def test_workers_on_other_machines_are(self) -> None:
        require_capacity(self.heavy, Crew(local=2, joining=1), cores=2)
        with pytest.raises(InputError, match=r"2 workers \(of 2 here only 1 can have a core\) may") as refused:
            require_capacity(self.heavy, Crew(local=2, joining=1), cores=1)
        assert "join 2 workers on other machines" in str(refused.value)

    def test_what_a_process_may_use_is_its_affinity(self) -> None:
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(before)})
        try:
            assert usable_cores() == 1
        finally:
            os.sched_setaffinity(0, before)
        assert 1 <= usable_cores() <= len(before)
