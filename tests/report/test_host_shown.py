"""The host and the transfer path: one table, the same in every format."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kvbench.judge.quality import ArmHost, HostReading
from kvbench.report.data import ReportData
from kvbench.report.host import host_tables
from kvbench.report.markdown import render_markdown
from kvbench.report.verdict_json import render_verdict_json
from kvbench.report.view import view
from tests.report.conftest import page_of
from tests.report.test_who_pays_shown import terminal

HEADING = "Host and transfer path"


def reading(name: str, unit: str | None, p50: float, most: float, least: float = 0.0) -> HostReading:
    return HostReading(name=name, unit=unit, n=120, p50=p50, max=most, min=least)


BASELINE = ArmHost(
    arm="baseline",
    readings=[reading("cpu_busy_cores", "cores", 1.2, 2.0)],
    no_gpu="no GPU: this host has no driver of one",
)
CANDIDATE = ArmHost(
    arm="host-and-disk",
    readings=[
        reading("cpu_busy_cores", "cores", 1.4, 2.0),
        reading("cgroup_memory_limit_bytes", "bytes", 2.0**33, 2.0**33, 2.0**33),
        reading("memory_available_bytes", "bytes", 4 * 2.0**30, 5 * 2.0**30, 2.0**30),
        reading("disk_read_bytes_per_s", "bytes/s", 2.0**20, 2.0**21),
        reading("disk_read_latency_s", "s", 0.0004, 0.031),
        reading("gpu0_clock_hz", "Hz", 1980e6, 1980e6, 1200e6),
        reading("gpu0_pcie_generation", None, 5, 5, 1),
    ],
    device_asked="130 blocks",
    device_proven_blocks=129,
    host_tier_asked_bytes=64 * 2.0**20,
    host_tier_proven_bytes=60 * 2.0**20,
)


@pytest.fixture
def told(go: ReportData) -> ReportData:
    return replace(go, verdict=go.verdict.model_copy(update={"host": [BASELINE, CANDIDATE]}))


def test_every_figure_stands_in_a_row_with_a_column_for_each_arm() -> None:
    (table,) = host_tables([BASELINE, CANDIDATE])
    assert table.header == ("Figure", "baseline", "host-and-disk")
    assert table.rows == (
        ("device tier asked for", "what the engine takes", "130 blocks"),
        ("device tier as proven", "–", "129 blocks"),
        ("host tier asked for", "none", "64 MiB"),
        ("host tier as proven", "none", "60 MiB"),
        ("CPU in use", "1.2 cores / 2 cores", "1.4 cores / 2 cores"),
        ("memory limit of the control group", "–", "8 GiB"),
        ("memory available", "–", "4 GiB / 1 GiB"),
        ("read from the tier's disk", "–", "1 MiB/s / 2 MiB/s"),
        ("latency of a read from the tier's disk", "–", "400 µs / 31 ms"),
        ("GPU 0: SM clock", "–", "1,980 MHz / 1,200 MHz"),
        ("GPU 0: PCIe generation", "–", "5 / 1"),
        ("GPU", "no GPU: this host has no driver of one", "read, see above"),
    )


def test_it_is_in_every_format(told: ReportData) -> None:
    for text in (render_markdown(told), page_of(told), terminal(told, width=160)):
        assert HEADING in text
        assert "no GPU: this host has no driver of one" in text
        assert "1.4 cores / 2 cores" in text
    assert HEADING not in terminal(told, width=80), "where room is short the reports have it"
    host = json.loads(render_verdict_json(told))["host"]
    assert host[1]["readings"][4] == {
        "name": "disk_read_latency_s",
        "unit": "s",
        "n": 120,
        "p50": 0.0004,
        "max": 0.031,
        "min": 0.0,
    }


def test_without_samples_there_is_no_table(go: ReportData) -> None:
    assert view(go).candidates[0].host == ()
    assert HEADING not in page_of(go)
