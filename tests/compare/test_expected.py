"""What a comparison expects of each source, before it starts and in every round: what the profile's tiers keep."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvbench.compare.plan import plan_comparison
from kvbench.compare.round import RoundJob, _expected
from kvbench.plan.planned_arm import planned_arm
from kvbench.plan.profile_sources import profile_sources
from kvbench.plan.reuse import expected_sources
from kvbench.plan.setting import Wishes
from kvbench.spec.fitness import usual_block_tokens
from kvbench.spec.loading import Experiment, load_profile, load_rules, load_workload
from kvbench.spec.profile import EngineSpec, Profile
from kvbench.spec.workload import Workload
from kvbench.workload.build import build_schedule
from kvbench.workload.storage import write_schedule

DEMO = load_workload("demo")
RULES = load_rules("demo")


def tiered(**host: object) -> Profile:
    """The device of the shipped emulated baseline, and a host tier for all of the workload."""
    shipped = load_profile("emulated/baseline").model_dump(mode="json", exclude_unset=True)
    tiers = {**shipped["tiers"], "host": {"size": "1GiB", **host}}
    return Profile.model_validate({**shipped, "name": "tiered", "tiers": tiers})


def planned(candidate: Profile, workload: Workload = DEMO) -> Any:
    return plan_comparison(Experiment(load_profile("emulated/baseline"), (candidate,), workload, RULES), [])


NEVER_STORED = [{"store_threshold": 30}, {"chunk_tokens": 4096}, {"blocks_per_chunk": 32}]


def test_a_host_tier_that_keeps_everything_is_expected_to_serve() -> None:
    assert planned(tiered()).sources["tiered"]["host"] > 0


@pytest.mark.parametrize("host", NEVER_STORED)
def test_nothing_is_expected_of_a_tier_that_rightly_stores_nothing(host: dict[str, object]) -> None:
    """Given documents seen a few times, and prompts shorter than a chunk, then a plan promises no promotion."""
    assert planned(tiered(**host)).sources["tiered"]["host"] == 0


@pytest.mark.parametrize(("host", "some"), [({}, True), *((host, False) for host in NEVER_STORED)])
def test_a_round_expects_of_the_running_engine_what_its_profile_keeps(
    host: dict[str, object], some: bool, tmp_path: Path
) -> None:
    """Given an engine that proves its sizes, then what it would store decides whether promotions may be missed."""
    schedule = build_schedule(DEMO, 1, block_tokens=128, capacities_tokens=None, max_model_len=8192)
    write_schedule(schedule, tmp_path / "schedule.parquet")
    journal: Any = SimpleNamespace(run=SimpleNamespace(schedule_path=lambda _: tmp_path / "schedule.parquet"))
    effective: Any = SimpleNamespace(block_tokens=128, device_blocks=130, host_bytes=2**30, disk=False)
    told = _expected(RoundJob(tiered(**host), 1, 0, 0), journal, effective)
    assert told is not None
    assert (told["host"] > 0) is some


def test_lmcache_keeps_its_own_chunks_where_the_profile_does_not_say(tmp_path: Path) -> None:
    """Given prompts that share 128 tokens, then blocks of 128 are shared, and LMCache's chunks of 256 are not."""
    config = {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 256}
    (tmp_path / "config.json").write_text(json.dumps(config | {"torch_dtype": "float32"}))
    shared = {"a": {"prefix": {"tokens": 128, "pool": 100}, "suffix_tokens": 120, "output_tokens": 1}}
    spec = DEMO.model_dump(mode="json", exclude_none=True)
    workload = Workload.model_validate({**spec, "classes": shared})
    schedule = build_schedule(workload, 1, block_tokens=128, capacities_tokens=None, max_model_len=1024)
    engine = {"kind": "vllm", "environment": "vllm-cpu", "model": str(tmp_path), "args": {"max-model-len": 1024}}
    expected = [
        profile_sources(
            schedule,
            Profile.model_validate({"name": "a", "engine": engine, "tiers": {"host": {"size": "1GiB", **host}}}),
            block_tokens=128,
            device_blocks=10,
            host_bytes=2**30,
            disk=False,
        )
        for host in ({}, {"via": "lmcache"}, {"via": "lmcache", "chunk_tokens": 128})
    ]
    assert [told is not None and told["host"] > 0 for told in expected] == [True, False, True]


@pytest.mark.parametrize(
    ("engine", "tokens"),
    [
        ({"kind": "emulated", "model": "any"}, 128),
        ({"kind": "emulated", "model": "any", "args": {"block-size": 16}}, 16),
        ({"kind": "vllm", "model": "tiny", "environment": "vllm-cpu"}, 128),
        ({"kind": "vllm", "model": "./m"}, 16),
        ({"kind": "vllm", "model": "./m", "args": {"block-size": 64}}, 64),
        ({"kind": "tensorrt-llm", "model": "./m"}, 32),
        ({"kind": "tensorrt-llm", "model": "./m", "args": {"tokens_per_block": 64}}, 64),
        ({"kind": "attached", "model": "./m", "base_url": "http://x"}, 16),
        ({"kind": "attached", "model": "tiny", "base_url": "http://x"}, 128),
    ],
)
def test_a_block_is_what_the_engine_makes_it(engine: dict[str, object], tokens: int) -> None:
    assert usual_block_tokens(EngineSpec.model_validate(engine)) == tokens


@pytest.mark.parametrize("name", ["emulated/host", "emulated/disk"])
def test_a_dry_run_counts_the_blocks_that_a_plan_counts(name: str) -> None:
    """Given a shipped emulated profile, then both say the same of its sources."""
    profile = load_profile(name)
    arm = planned_arm(profile, Wishes(), None)
    assert (arm.block_tokens, arm.device_blocks) == (128, 130)
    schedule = build_schedule(DEMO, 1, block_tokens=arm.block_tokens, capacities_tokens=None, max_model_len=8192)
    assert planned(profile).sources[profile.name] == expected_sources(
        schedule,
        block_tokens=arm.block_tokens,
        device_blocks=arm.device_blocks,
        host_blocks=arm.host_blocks,
        disk=arm.disk,
        host_rules=arm.host_rules,
    )


def test_a_plan_for_tensorrt_counts_its_blocks() -> None:
    engine = {"kind": "tensorrt-llm", "model": "./m", "command": ["trtllm-serve"], "args": {"tokens_per_block": 64}}
    tiers = {"device": {"memory_utilization": 0.5}}
    arm = planned_arm(
        Profile.model_validate({"name": "a", "engine": engine, "tiers": tiers}), Wishes(model="Llama-3.1-8B"), None
    )
    assert arm.block_tokens == 64


@pytest.mark.parametrize(("tier", "tokens"), [("device", 130 * 128), ("host", 2**30 // 2048)])
def test_a_pool_is_as_large_as_the_run_makes_it(tier: str, tokens: int) -> None:
    """Given a working set of a tier's size, of which only a candidate may have one, then it is that tier's size."""
    prefix = {"tokens": 1536, "working_set": {"of": tier, "times": 1}}
    sized = {"long": {"prefix": prefix, "suffix_tokens": 64, "output_tokens": 8}}
    spec = DEMO.model_dump(mode="json", exclude_none=True)
    workload = Workload.model_validate({**spec, "classes": {**spec["classes"], **sized}})
    summary = planned(tiered(), workload).summary
    assert summary is not None
    members = summary.prime_requests - spec["classes"]["short"]["prefix"]["pool"]
    assert 0 <= members * 1536 - tokens < 1536


def test_nothing_is_said_of_a_pool_that_only_the_engine_can_size() -> None:
    prefix = {"tokens": 1536, "working_set": {"of": "device", "times": 1}}
    sized = {"long": {"prefix": prefix, "suffix_tokens": 64, "output_tokens": 8}}
    spec = DEMO.model_dump(mode="json", exclude_none=True)
    workload = Workload.model_validate({**spec, "classes": {**spec["classes"], **sized}})
    one = Experiment(load_profile("emulated/baseline"), (tiered(),), workload, RULES)
    unsaid = one.baseline.tiers.device.model_copy(update={"blocks": None})
    baseline = one.baseline.model_copy(update={"tiers": one.baseline.tiers.model_copy(update={"device": unsaid})})
    assert plan_comparison(replace(one, baseline=baseline), []).summary is None
