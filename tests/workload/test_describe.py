"""The figures shown before a run are those of the schedule."""

from __future__ import annotations

import pytest

from kvbench.workload.build import build_schedule
from kvbench.workload.describe import describe
from kvbench.workload.schedule import PhaseSpan, PlannedRequest, Schedule, Segment

from .workloads import MIXED, workload


def planned(id_: int, *segments: Segment, measured: bool = True, **more: object) -> PlannedRequest:
    given = {
        "phase": "p",
        "class_": "c",
        "session": None,
        "turn": 0,
        "intended_s": float(id_),
        "think_s": 0.0,
        "continues": None,
        "output_tokens": 4,
        "prefix": 0,
        "repeat_of": None,
    }
    return PlannedRequest(id=id_, measured=measured, segments=segments, **{**given, **more})


def schedule_of(*requests: PlannedRequest, prime: tuple[PlannedRequest, ...] = ()) -> Schedule:
    phases = (PhaseSpan("warm", 0.0, 5.0, False), PhaseSpan("p", 5.0, 15.0, True))
    return Schedule("w", 1, 0, phases, prime, requests, None, 60.0)


def test_reuse_is_in_leading_whole_blocks_seen_before() -> None:
    shared = Segment(1, 25)
    schedule = schedule_of(
        planned(0, shared, Segment(10, 15), measured=False),
        planned(1, shared, Segment(11, 15)),  # 20 of 40: the third block differs after token 25
        planned(2, shared, Segment(11, 15)),  # 30 of 40: the last token is computed, so the last block is
        planned(3, Segment(2, 10), shared),  # 0 of 35: nothing in front is shared
    )
    summary = describe(schedule, 10)
    assert summary.ideal_reuse_share == pytest.approx((20 + 30 + 0) / (40 + 40 + 35))


def test_answers_of_earlier_turns_can_be_reused() -> None:
    schedule = schedule_of(
        planned(0, Segment(1, 8), session=0, output_tokens=13),
        planned(1, Segment(2, 9), session=0, turn=1, continues=0),
    )
    # the first turn leaves 8 + 12 tokens in the cache (the last one's KV is never computed): two blocks of 10
    assert describe(schedule, 10).ideal_reuse_share == pytest.approx(20 / (8 + 30))
    shorter = schedule_of(
        planned(0, Segment(1, 8), session=0, output_tokens=12),
        planned(1, Segment(2, 10), session=0, turn=1, continues=0),
    )
    assert describe(shorter, 10).ideal_reuse_share == pytest.approx(10 / (8 + 30))


def test_counts_by_class() -> None:
    schedule = build_schedule(workload(), 0, block_tokens=16, capacities_tokens=None, max_model_len=None)
    summary = describe(schedule, 16)
    for class_, figures in summary.classes.items():
        own = [request for request in schedule.requests if request.class_ == class_]
        assert figures.requests == len(own)
        assert figures.measured == sum(request.measured for request in own)
        assert figures.output_tokens == sum(request.output_tokens for request in own)
    assert summary.requests == len(schedule.requests)
    assert summary.measured == sum(request.measured for request in schedule.requests)
    assert summary.prime_requests == 34
    assert summary.prime_tokens == sum(request.own_prompt_tokens for request in schedule.prime)
    assert summary.prompt_tokens + summary.prime_tokens == sum(schedule.prompt_tokens())
    assert summary.output_tokens == sum(request.output_tokens for request in schedule.requests)
    assert summary.longest_prompt_tokens == max(schedule.prompt_tokens())
    assert summary.repeats == sum(request.repeat_of is not None for request in schedule.requests)
    assert summary.classes["short"].working_set_tokens == 4 * 256
    assert summary.classes["long"].working_set_tokens == 24 * 8192
    assert summary.working_set_tokens == sum(c.working_set_tokens for c in summary.classes.values())
    assert summary.classes["agent"].conversations < summary.classes["agent"].requests
    assert summary.duration_s == 170


def test_the_rate_is_that_of_measured_time() -> None:
    constant = workload(
        arrivals={"process": "constant", "rate": "5/s"},
        phases=[{"name": "warm", "for": "10s", "measured": False}, {"name": "p", "for": "20s"}],
        classes={"short": MIXED["classes"]["short"]},
    )
    schedule = build_schedule(constant, 0, block_tokens=16, capacities_tokens=None, max_model_len=None)
    assert describe(schedule, 16).rate_per_s == pytest.approx(5)


def test_a_closed_loop_has_no_rate_of_its_own() -> None:
    closed = workload(
        arrivals={"process": "closed", "closed": {"concurrency": 2}}, phases=[{"name": "p", "for": "5s"}]
    )
    summary = describe(build_schedule(closed, 0, block_tokens=16, capacities_tokens=None, max_model_len=None), 16)
    assert summary.rate_per_s is None
    assert summary.upper_bound


def test_nothing_measured_has_no_share() -> None:
    summary = describe(schedule_of(planned(0, Segment(1, 50), measured=False)), 10)
    assert summary.ideal_reuse_share == 0
    assert describe(schedule_of(), 10).longest_prompt_tokens == 0
