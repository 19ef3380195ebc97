"""The table of the host and the transfer path: one row a figure, one column an arm."""

from __future__ import annotations

from collections.abc import Sequence

from kvbench.judge.quality import ArmHost, HostReading
from kvbench.report.parts import TableView
from kvbench.report.plain import plain
from kvbench.report.wording import MISSING, show_value
from kvbench.spec.host_figures import host_figure

__all__ = ["host_tables"]

NOTE = (
    "The machine that kvbench ran on, sampled once a second in the measured parts of all rounds: p50, then the "
    "most. Where less is worse the least stands last."
)
LESS_IS_WORSE = ("memory_available_bytes", "pcie_generation", "pcie_lanes", "clock_hz")
CONSTANT = ("limit_cores", "limit_bytes", "shm_size_bytes")
"""One figure says it all."""


def host_tables(arms: Sequence[ArmHost]) -> tuple[TableView, ...]:
    """None where nothing was sampled."""
    rows = [*_tier_rows(arms), *_reading_rows(arms), *_gpu_rows(arms)]
    if not rows:
        return ()
    header = ("Figure", *(plain(arm.arm) for arm in arms))
    return (TableView("Host and transfer path", NOTE, header, tuple(rows), right=1, wide=True),)


def _tier_rows(arms: Sequence[ArmHost]) -> list[tuple[str, ...]]:
    """What the tiers asked for and what the engine proved to have; the samples below say what it maps and fills."""
    if not arms:
        return []
    device = [
        ("device tier asked for", *(plain(arm.device_asked) for arm in arms)),
        (
            "device tier as proven",
            *(MISSING if (n := arm.device_proven_blocks) is None else f"{n:,} blocks" for arm in arms),
        ),
    ]
    if all(arm.host_tier_asked_bytes is None for arm in arms):
        return device
    return [
        *device,
        ("host tier asked for", *(_tier(arm, arm.host_tier_asked_bytes) for arm in arms)),
        ("host tier as proven", *(_tier(arm, arm.host_tier_proven_bytes) for arm in arms)),
    ]


def _tier(arm: ArmHost, size: float | None) -> str:
    return "none" if arm.host_tier_asked_bytes is None else show_value(size, "bytes")


def _reading_rows(arms: Sequence[ArmHost]) -> list[tuple[str, ...]]:
    found = [{reading.name: reading for reading in arm.readings} for arm in arms]
    names = dict.fromkeys(reading.name for arm in arms for reading in arm.readings)
    rows = []
    for name in names:
        figure = host_figure(name)
        if figure is not None:
            rows.append((figure.words, *(_cell(readings.get(name)) for readings in found)))
    return rows


def _gpu_rows(arms: Sequence[ArmHost]) -> list[tuple[str, ...]]:
    if all(arm.no_gpu is None for arm in arms):
        return []
    return [("GPU", *(arm.no_gpu or "read, see above" for arm in arms))]


def _cell(reading: HostReading | None) -> str:
    if reading is None:
        return MISSING
    if reading.name.endswith(CONSTANT):
        return _shown(reading.max, reading.unit)
    last = reading.min if reading.name.endswith(LESS_IS_WORSE) else reading.max
    return f"{_shown(reading.p50, reading.unit)} / {_shown(last, reading.unit)}"


def _shown(value: float, unit: str | None) -> str:
    if unit == "bytes/s":
        return f"{show_value(value, 'bytes')}/s"
    return f"{value / 1e6:,.0f} MHz" if unit == "Hz" else show_value(value, unit)
