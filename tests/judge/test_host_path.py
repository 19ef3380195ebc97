"""What the host did while each arm was measured: over all rounds, the measured part alone, absent where unseen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import pytest

from kvbench.judge.host_path import arm_host, host_paths
from kvbench.judge.judge import judge
from kvbench.judge.quality import ArmHost
from kvbench.record.tables import HOST
from kvbench.spec.profile import DeviceTier
from tests.judge.build import TIERED, as_table, comparison, good_pairs
from tests.judge.change import with_candidate

UNMEASURED_S, MEASURED_S = 3.0, 50.0


def samples(figures: Mapping[str, Sequence[float]], at_s: float = MEASURED_S) -> pd.DataFrame:
    """One a second."""
    rows = [
        {"t_s": at_s + place, "name": name, "value": value}
        for name, values in figures.items()
        for place, value in enumerate(values)
    ]
    return as_table(pd.DataFrame(rows, columns=HOST.names), HOST)


def tiered(*rounds: pd.DataFrame, **more: object) -> ArmHost:
    """What is told of the candidate whose rounds have these samples."""
    pairs = good_pairs()
    for place, host in enumerate(rounds):
        pairs = with_candidate(pairs, place, host=host, **more)
    (found,) = [arm for arm in host_paths(comparison(pairs[: len(rounds)])) if arm.arm == TIERED.name]
    return found


def test_figures_are_over_the_measured_parts_of_all_rounds() -> None:
    before = samples({"disk_read_latency_s": [9.0]}, UNMEASURED_S)
    first = pd.concat([before, samples({"disk_read_latency_s": [0.001, 0.002], "cpu_busy_cores": [2.0]})])
    found = tiered(first, samples({"disk_read_latency_s": [0.006]}))
    assert [(r.name, r.unit, r.n) for r in found.readings] == [
        ("cpu_busy_cores", "cores", 1),
        ("disk_read_latency_s", "s", 3),
    ], "in the order of the table"
    latency = found.readings[1]
    assert (latency.p50, latency.max, latency.min) == (0.002, 0.006, 0.001)


def test_gpus_are_told_one_after_the_other() -> None:
    found = tiered(samples({"gpu10_busy_share": [1.0], "gpu2_pcie_lanes": [16.0], "gpu2_memory_used_bytes": [1.0]}))
    assert [r.name for r in found.readings] == ["gpu2_memory_used_bytes", "gpu2_pcie_lanes", "gpu10_busy_share"]
    assert found.no_gpu is None


@pytest.mark.parametrize(
    ("code", "words"), [(1, "no GPU: this host has no driver"), (2, "nvidia-ml-py"), (9, "no GPU")]
)
def test_no_gpu_is_said_with_its_reason(code: int, words: str) -> None:
    found = tiered(samples({"gpu_absent_code": [code], "cpu_busy_cores": [1.0]}))
    assert found.no_gpu is not None
    assert words in found.no_gpu


def test_what_the_tier_asked_for_stands_beside_what_the_engine_proved() -> None:
    host = samples({"engine_shm_mapped_bytes": [60e6], "shm_used_bytes": [61e6]})
    found = tiered(host, capacities={"host_bytes": 65e6})
    assert (found.host_tier_asked_bytes, found.host_tier_proven_bytes) == (64 * 2.0**20, 65e6)
    assert {r.name: r.max for r in found.readings} == {"engine_shm_mapped_bytes": 60e6, "shm_used_bytes": 61e6}
    assert tiered(host).host_tier_proven_bytes is None


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ({"blocks": 130}, "130 blocks"),
        ({"memory_utilization": 0.85}, "85 % of the GPU's memory"),
        ({}, "what the engine takes"),
    ],
)
def test_what_the_device_was_asked_for_stands_beside_what_the_engine_has(device: dict, words: str) -> None:
    arm = TIERED.model_copy(update={"tiers": TIERED.tiers.model_copy(update={"device": DeviceTier(**device)})})
    sampled = samples({"cpu_busy_cores": [1.0]})
    pairs = with_candidate(good_pairs(), 0, host=sampled, capacities={"device_blocks": 129.0})
    found = arm_host(arm, [pairs[0].candidate], comparison(pairs).workload)
    assert found is not None
    assert (found.device_asked, found.device_proven_blocks) == (words, 129)


def test_a_verdict_has_both_arms_and_nothing_of_one_that_was_not_sampled() -> None:
    assert [arm.arm for arm in judge(comparison(good_pairs())).host] == ["base", "tiered"]
    pairs = good_pairs(1)
    assert [arm.arm for arm in host_paths(comparison(with_candidate(pairs, 0, host=samples({}))))] == ["base"]
    clocks = samples({"clock_wall_s": [1.0]})
    assert [arm.arm for arm in host_paths(comparison(with_candidate(pairs, 0, host=clocks)))] == ["base"]
