"""The client measures itself against a server of its own, once per host, and knows what is too much for it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from kvbench.errors import InputError
from kvbench.load.calibrate import Calibration, _host_key, calibrated
from kvbench.load.calibrate_demand import check_capacity, output_tokens_per_s, require_capacity, workers_needed
from tests.load.play import request, schedule

MEASURED = Calibration(
    capacity_events_per_s=20_000,
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
    assert 0 <= measured.timestamp_error_p50_s <= measured.timestamp_error_p99_s < 1
    assert measured.send_lag_p50_s <= measured.send_lag_p99_s < 1
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


def test_before_a_workload_is_refused_the_host_is_calibrated_again_and_the_better_figure_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heavy = schedule(*(request(i, i / 100, output_tokens=250) for i in range(1000)), for_s=10.0)
    (tmp_path / f"{_host_key()}.json").write_text(MEASURED.model_dump_json())
    for capacity, expected in ((10_000.0, 20_000.0), (60_000.0, 60_000.0)):
        now = MEASURED.model_copy(update={"capacity_events_per_s": capacity})
        monkeypatch.setattr("kvbench.load.calibrate.calibrate", lambda now=now: now)
        if expected > 50_000:
            check_capacity(heavy, workers=1, progress=lambda _: None, directory=tmp_path)
        else:
            with pytest.raises(InputError, match="output tokens/s"):
                check_capacity(heavy, workers=1, progress=lambda _: None, directory=tmp_path)
        kept = calibrated(pytest.fail, directory=tmp_path)
        assert kept.capacity_events_per_s == expected


def test_what_a_schedule_needs_is_its_busiest_ten_seconds() -> None:
    calm = [request(i, float(i), output_tokens=100) for i in range(100)]
    burst = [request(100 + i, 50.0 + i / 100, output_tokens=100) for i in range(500)]
    assert output_tokens_per_s(schedule(*calm, for_s=100.0)) == pytest.approx(100.0)
    assert output_tokens_per_s(schedule(*calm, *burst, for_s=100.0)) == pytest.approx(100.0 + 5_000.0)
    later = request(700, None, continues=0, output_tokens=1_000)
    assert output_tokens_per_s(schedule(*calm, later, for_s=100.0)) == pytest.approx(110.0)
    assert output_tokens_per_s(schedule(*(request(i, None) for i in range(9)), concurrency=3)) is None
    assert output_tokens_per_s(schedule()) is None


def test_more_than_half_of_the_capacity_asks_for_more_workers() -> None:
    heavy = schedule(*(request(i, i / 100, output_tokens=250) for i in range(1000)), for_s=10.0)
    assert workers_needed(heavy, MEASURED) == 3
    require_capacity(heavy, MEASURED, workers=3)
    with pytest.raises(InputError, match="25,000 output tokens/s") as refused:
        require_capacity(heavy, MEASURED, workers=2)
    assert "--workers 3" in str(refused.value)
    light = schedule(*(request(i, i / 100, output_tokens=90) for i in range(1000)), for_s=10.0)
    require_capacity(light, MEASURED, workers=1)
    require_capacity(schedule(request(0, None), concurrency=1), MEASURED, workers=1)
