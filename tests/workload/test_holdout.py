"""Requests that are held out of the secondary tier: which, and that nothing else changes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvbench.load.bodies import Bodies
from kvbench.load.plan import LoadPlan
from kvbench.workload.build import build_schedule
from kvbench.workload.schedule import Schedule, Segment
from kvbench.workload.storage import read_schedule, schedule_digest, write_schedule
from tests.workload.workloads import workload


def build(share: str, round_: int = 1) -> Schedule:
    spec = workload(tier_holdout=share)
    return build_schedule(spec, round_, block_tokens=16, capacities_tokens=None, max_model_len=None)


def held(schedule: Schedule) -> list[int]:
    return [request.id for request in schedule.requests if request.holdout]


def test_the_share_is_held_out_and_nothing_else_changes() -> None:
    plain, some = build("0%"), build("10%")
    share = len(held(some)) / len(some.requests)
    assert share == pytest.approx(0.1, abs=0.04)
    assert replace(some, requests=tuple(replace(r, holdout=False) for r in some.requests)) == plain
    assert not any(request.holdout for request in some.prime)


def test_who_is_held_out_is_a_matter_of_seed_and_round() -> None:
    assert held(build("10%")) == held(build("10%"))
    assert held(build("10%")) != held(build("10%", round_=2))


def test_it_is_stored_and_a_schedule_without_keeps_its_digest(tmp_path: Path) -> None:
    some = build("10%")
    write_schedule(some, tmp_path / "s.parquet")
    assert read_schedule(tmp_path / "s.parquet") == some
    assert schedule_digest(some) != schedule_digest(build("0%"))


def test_a_held_out_request_says_so_and_the_others_do_not() -> None:
    wish = {"kv_transfer_params": {"kv_load_tiers": []}}
    plan = LoadPlan(
        schedule=Path("s"),
        out=Path("o"),
        arm="tiered",
        round=1,
        base_url="http://127.0.0.1:1",
        model="tiny",
        token_id_range=(32, 255),
        past_secondary=wish,
    )
    bodies, prompt = Bodies(plan), (Segment(1, 64),)
    held, kept = (json.loads(bodies.make(prompt, 8, holdout=holdout).content) for holdout in (True, False))
    assert held == kept | wish
    without = Bodies(plan.model_copy(update={"past_secondary": None})).make(prompt, 8, holdout=True)
    assert json.loads(without.content) == kept, "an arm that has no such tier"
