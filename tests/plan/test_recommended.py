"""What a plan recommends, and the figures beside it: sweeps, break-even lengths, writes, stages of a pipeline."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvbench.errors import InputError
from kvbench.plan.break_even import break_even_rows, break_even_tokens
from kvbench.plan.budget import Memory, memory_budget
from kvbench.plan.named_model import named_model
from kvbench.plan.planning import Traffic, planned_schedule
from kvbench.plan.setting import DISK_BYTES, PATH_BYTES_PER_S
from kvbench.plan.sweep import parse_sweep
from kvbench.spec.emulation import Costs
from kvbench.spec.profile import Profile
from tests.plan.test_planning import BLOCK, BLOCK_BYTES, arm_of, gpu_arm, plan_of, profile, workload


def with_host(spec: Profile, **changes: object) -> Profile:
    host = spec.tiers.host
    assert host is not None
    tiers = spec.tiers.model_copy(update={"host": host.model_copy(update=changes)})
    return spec.model_copy(update={"tiers": tiers})


def test_a_sweep_that_begins_above_nothing_is_held_against_the_device_alone() -> None:
    """Given sizes that all hold everything, then the smallest of them is recommended, and what it adds is told."""
    whole, upper = (plan_of(profile(host=96), sweep=f"host={low}MiB..128MiB") for low in (0, 64))
    alone = f"the device's {whole['sweep'][0]['served']:.1%}"
    assert upper["sweep"][0]["size_bytes"] == 64 * 2**20
    assert upper["sweep"][0]["served"] > whole["sweep"][0]["served"] + 0.2
    for found in (whole, upper):
        assert alone in found["recommendation"]["reason"]
    assert upper["recommendation"]["host_bytes"] == upper["knee"]["size_bytes"] == 64 * 2**20


def test_a_path_that_is_hardly_faster_than_computing_gets_no_tier() -> None:
    """Given loads that pay from some 350 tokens on and save 3 % of prompts of 1,056."""
    found = plan_of(profile(load_block=1.25e-4 * BLOCK))
    assert 0 < found["break_even"]["own"]["host"] <= 512
    assert found["recommendation"]["host_bytes"] == 0
    assert "to load instead of" in found["recommendation"]["reason"]
    assert plan_of(profile(load_block=0.5e-4 * BLOCK))["recommendation"]["host_bytes"] > 0


def test_a_disk_whose_reads_are_hardly_faster_is_not_recommended() -> None:
    slow = plan_of(
        profile(host=40, disk=True, read_block=1.22e-4 * BLOCK), workload(pool=40), sweep="host=0..20MiB"
    )
    assert slow["recommendation"]["host_bytes"] > 0
    assert slow["recommendation"]["disk_bytes"] == 0
    assert "to load instead of" in slow["recommendation"]["reason"]


@pytest.mark.parametrize("bend", [0.0, 1e-40, 1e-24, 1e-18])
def test_a_bend_too_small_to_matter_does_not_matter(bend: float) -> None:
    costs = Costs(token=1e-4, token_context=bend)
    assert break_even_tokens(costs, 2048, 1e12, base_s=0.1) == 1001  # 0.1 s / (100 µs - 2.048 ns), rounded up


def test_break_even_lengths_are_those_counted_by_hand() -> None:
    """128 KiB a token, 40 µs to compute one, 2 ms before a copy begins and 1 ms before a read."""
    costs = Costs(token=40e-6, token_context=0, transfer=2e-3, lookup=0.5e-3, disk_transfer=0.5e-3)
    rows = {row.path: row.tokens for row in break_even_rows(costs, 131_072, block_tokens=16, longest=None)}
    # PCIe 4.0 x16: 1.969 × 16 × 0.8 = 25.2 GB/s, 5.2 µs a token; 2 ms / 34.8 µs = 57.5 tokens, 4 blocks
    assert rows["PCIe 4.0 x16"] == 64
    # PCIe 3.0 x4: 0.985 × 4 × 0.8 = 3.152 GB/s, 41.6 µs a token: never
    assert rows["PCIe 3.0 x4"] is None
    # PCIe 5.0 x4: 3.938 × 4 × 0.8 = 12.6 GB/s, 10.4 µs a token; 2 ms / 29.6 µs = 67.6 tokens, 5 blocks
    assert rows["PCIe 5.0 x4"] == 80
    # 7 GB/s: 18.7 and 5.2 µs a token; 3 ms / 16.1 µs = 186.5 tokens, 12 blocks
    assert rows["7 GB/s behind PCIe 4.0 x16"] == 192
    # 3 GB/s: 43.7 µs a token to read alone
    assert rows["3 GB/s behind PCIe 4.0 x16"] is None


def test_writes_are_those_of_what_the_host_takes_in() -> None:
    """Given prompts of eight shared blocks and a rest, and answers of 200 tokens that the tier keeps or not."""
    longer = workload(pool=6).model_dump(mode="json", exclude_none=True)
    longer["classes"]["long"]["output_tokens"] = 200
    traffic = type(workload()).model_validate(longer)
    spec = profile(host=96)
    plain, answers, rare = (
        plan_of(each, traffic)["disk_writes"]
        for each in (spec, with_host(spec, offload_prompt_only=False), with_host(spec, store_threshold=2))
    )
    requests = plan_of(spec, traffic)["requests"]
    assert plain["bytes_per_day"] == pytest.approx(6 * 8 * BLOCK_BYTES * 1440)
    # 1,024 + 32 + 199 tokens are one more whole block for every answer
    assert answers["bytes_per_day"] == pytest.approx((6 * 8 + requests) * BLOCK_BYTES * 1440)
    assert rare["bytes_per_day"] == pytest.approx(plain["bytes_per_day"]), "every prefix comes again"
    seldom = plan_of(with_host(spec, store_threshold=1000), traffic)["disk_writes"]
    assert seldom["bytes_per_day"] == 0
    assert seldom["years"] is None


def test_a_drive_that_nobody_named_is_assumed_and_not_as_small_as_the_traffic() -> None:
    writes = plan_of(profile())["disk_writes"]
    assert (writes["drive_bytes"], writes["drive_source"]) == (DISK_BYTES, "assumed")
    assert writes["years"] == pytest.approx(5 * DISK_BYTES / writes["bytes_per_day"])
    small = profile(disk=True)
    disk = small.tiers.disk
    assert disk is not None
    tiers = small.tiers.model_copy(update={"disk": disk.model_copy(update={"size_limit": BLOCK_BYTES})})
    assert plan_of(small.model_copy(update={"tiers": tiers}))["disk_writes"]["at_least"]
    assert not writes["at_least"]


def test_a_trace_of_lengths_alone_cannot_be_planned(tmp_path: Path) -> None:
    table = tmp_path / "azure.csv"
    table.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,480,10\n")
    bare = tmp_path / "bare.jsonl"
    bare.write_text(json.dumps({"timestamp": 0, "input_length": 100, "output_length": 1, "hash_ids": []}) + "\n")
    for path in (table, bare):
        with pytest.raises(InputError, match="lengths only") as raised:
            planned_schedule(Traffic(trace=path), arm_of(profile()))
        assert str(path) in str(raised.value)


def test_stages_of_a_pipeline_are_gpus_as_well() -> None:
    arm = gpu_arm(**{"tensor-parallel-size": 2, "pipeline-parallel-size": 4})
    model = named_model("Llama-3.3-70B")
    budget = memory_budget(model, Memory(80 * 2**30), tensor_parallel=2, pipeline_parallel=4)
    assert arm.device_blocks == pytest.approx(budget.blocks, rel=1e-4)
    assert arm.setting.ranks == 8
    assert arm.setting.path_bytes_per_s == 8 * PATH_BYTES_PER_S
    assert any("92% of 8 × 80 GiB" in note for note in arm.assumptions), arm.assumptions
    with pytest.raises(InputError, match="0 stages cannot share"):
        gpu_arm(**{"tensor-parallel-size": 8, "pipeline-parallel-size": 0})


@pytest.mark.parametrize(
    "text", ["host=..", "host=0..", "host=0..0", "host=1GiB..1GiB", "host=-1GiB..1GiB", "host=0..1e400", "=0..1GiB"]
)
def test_an_empty_or_impossible_sweep_is_told(text: str) -> None:
    with pytest.raises(InputError, match="--sweep"):
        parse_sweep(text)
