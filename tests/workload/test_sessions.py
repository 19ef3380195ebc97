"""Side branches, compacted contexts and answers that are left early, as the schedule has them."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from kvbench.errors import InputError
from kvbench.spec.workload import Workload
from kvbench.workload.build import build_schedule
from kvbench.workload.describe import describe
from kvbench.workload.schedule import PlannedRequest, Schedule
from kvbench.workload.storage import schedule_digest

from .workloads import workload

_ALARM = 1e-4
AGENT = {
    "turns": {"uniform": [2, 8]},
    "think": {"lognormal": {"median": "2s", "p95": "9s"}},
    "prefix": {"tokens": {"uniform": [100, 200]}, "pool": 6},
    "suffix_tokens": {"uniform": [20, 90]},
    "output_tokens": {"uniform": [10, 60]},
}
BRANCH = {"share": "40%", "count": {"uniform": [1, 3]}, "turns": {"uniform": [1, 3]}, "suffix_tokens": 7}
PINNED = "8ac1f96761d33677235efa2aadfab9466f3028f3acad7bef3a56afe0c512e7e1"


def sessions(for_s: float = 600, **options: object) -> Workload:
    return workload(
        arrivals={"process": "poisson", "rate": "1/s"},
        phases=[{"name": "p", "for": for_s}],
        classes={"agent": AGENT | options},
        repeat=0,
        prime="none",
    )


def build(spec: Workload, round_index: int = 0) -> Schedule:
    return build_schedule(spec, round_index, block_tokens=16, capacities_tokens=None, max_model_len=None)


def own_turns(schedule: Schedule) -> list[PlannedRequest]:
    return [request for request in schedule.requests if request.branch is None]


def sizes(schedule: Schedule) -> dict[int, int]:
    return dict(zip((request.id for request in schedule.in_order()), schedule.prompt_tokens(), strict=True))


def within(hits: int, trials: int, share: float) -> bool:
    low, high = stats.binom(trials, share).ppf([_ALARM / 2, 1 - _ALARM / 2])
    return bool(low <= hits <= high)


def test_a_schedule_with_all_options_is_pinned_for_ever() -> None:
    spec = sessions(
        120,
        branch=BRANCH,
        compact={"after_tokens": 400, "to_tokens": 250},
        abort={"share": "20%", "after_tokens": {"uniform": [1, 9]}},
    )
    assert schedule_digest(build(spec)) == PINNED
    assert schedule_digest(build(spec, 1)) != PINNED


# branches


def test_branches_start_from_a_turn_that_another_follows_and_the_next_turn_waits_for_their_ends() -> None:
    schedule = build(sessions(branch=BRANCH))
    by_id = {request.id: request for request in schedule.requests}
    followed = {request.continues: request for request in own_turns(schedule)}
    branches: dict[tuple[int | None, int], list[PlannedRequest]] = {}
    for request in schedule.requests:
        if request.branch is not None:
            branches.setdefault((request.session, request.branch), []).append(request)
    assert len(branches) > 100
    for requests in branches.values():
        origin = by_id[requests[0].continues or 0]
        assert origin.branch is None
        assert [request.continues for request in requests[1:]] == [request.id for request in requests[:-1]]
        assert [request.turn for request in requests] == [origin.turn + 1 + step for step in range(len(requests))]
        assert all(len(request.segments) == 1 and request.segments[0].tokens == 7 for request in requests)
        assert all(request.carries and request.intended_s is None for request in requests)
        after = followed.get(origin.id)  # None: the round is over before it
        if after is not None:
            assert requests[-1].id in after.waits_for
            assert requests[-1].id < after.id
    awaited = [id_ for request in schedule.requests for id_ in request.waits_for]
    assert len(set(awaited)) == len(awaited)
    contents = [request.segments[-1].identity for request in schedule.requests]
    assert len(set(contents)) == len(contents)


def test_the_asked_share_of_turns_has_branches_as_many_and_as_long_as_asked() -> None:
    schedule = build(sessions(1000, branch=BRANCH))
    followed = [request for request in own_turns(schedule) if request.turn > 0]
    origins = {request.continues for request in followed if request.waits_for}
    assert within(len(origins), len(followed), 0.4)
    assert set(Counter(len(request.waits_for) for request in followed if request.waits_for)) == {1, 2, 3}
    lengths = Counter(
        (request.session, request.branch) for request in schedule.requests if request.branch is not None
    )
    assert set(lengths.values()) == {1, 2, 3}


def test_a_session_that_does_not_wait_goes_on_as_if_it_had_no_branches() -> None:
    plain, beside = build(sessions()), build(sessions(branch=BRANCH | {"wait": False}))
    assert len(beside.requests) > len(plain.requests)

    def told(schedule: Schedule) -> list[object]:
        turns = own_turns(schedule)
        return [(t.session, t.turn, t.intended_s, t.think_s, t.segments, t.output_tokens) for t in turns]

    assert told(beside) == told(plain)
    assert all(not request.waits_for for request in beside.requests)


def test_think_time_in_branches_is_scaled_and_lengths_are_the_classs_unless_given() -> None:
    spec = sessions(branch={"share": 1, "turns": 3, "think": "10s", "output_tokens": 5})
    schedule = build(spec.model_copy(update={"think_scale": 0.1}))
    inside = [request for request in schedule.requests if request.branch is not None]
    first = [request for request in inside if request.turn == 1]
    assert first
    assert all(request.think_s == 0 for request in first)
    assert {request.think_s for request in inside} == {0.0, 1.0}
    assert {request.output_tokens for request in inside} == {5}
    assert all(20 <= request.segments[0].tokens <= 90 for request in inside)


def test_requests_of_branches_carry_what_came_before_them() -> None:
    schedule = build(sessions(branch=BRANCH))
    size, by_id = sizes(schedule), {request.id: request for request in schedule.requests}
    for request in schedule.requests:
        if request.continues is not None:
            before = by_id[request.continues]
            carried = size[before.id] + before.output_tokens
            assert size[request.id] == carried + request.own_prompt_tokens


def test_a_closed_loop_plans_sessions_with_their_branches() -> None:
    closed = {
        "arrivals": {"process": "closed", "closed": {"concurrency": 2}},
        "phases": [{"name": "p", "for": "20s"}],
    }
    counts = []
    for options in ({}, {"branch": {"share": 1, "turns": 5, "output_tokens": 500}}):
        schedule = build(workload(**closed, classes={"agent": AGENT | {"think": "0s"} | options}, repeat=0))
        assert sum(request.intended_s is not None for request in schedule.requests) == 2
        counts.append(sum(request.turn == 0 for request in schedule.requests))
    assert counts[1] < counts[0] / 3  # each takes longer, so fewer can come


# compacted contexts


@settings(max_examples=8, deadline=None)
@given(after=st.integers(300, 900), to=st.integers(201, 290))
def test_a_context_is_rewritten_exactly_when_it_has_become_too_long(after: int, to: int) -> None:
    schedule = build(sessions(120, compact={"after_tokens": after, "to_tokens": to}))
    size, by_id = sizes(schedule), {request.id: request for request in schedule.requests}
    firsts = {request.session: request for request in schedule.requests if request.turn == 0}
    seen = Counter(request.carries for request in schedule.requests if request.turn)
    for request in schedule.requests:
        if request.continues is None:
            assert request.carries
            continue
        before = by_id[request.continues]
        context = size[before.id] + before.output_tokens
        assert request.carries == (context <= after)
        if not request.carries:
            prefix, summary, suffix = request.segments
            assert prefix == firsts[request.session].segments[0]
            assert prefix.tokens + summary.tokens == to
            assert size[request.id] == to + suffix.tokens
    assert seen[True]


def test_compacted_sessions_fit_an_engine_that_others_outgrow() -> None:
    long = {"turns": 30, "think": "0s"}
    limit = {"block_tokens": 16, "capacities_tokens": None, "max_model_len": 1200}
    with pytest.raises(InputError, match=r"of a session, but the engine takes 1200"):
        build_schedule(sessions(60, **long), 0, **limit)
    compact = {"after_tokens": 900, "to_tokens": 300}
    assert build_schedule(sessions(60, **long, compact=compact), 0, **limit).requests


def test_a_new_context_that_cannot_hold_the_prefix_is_the_users_error() -> None:
    with pytest.raises(InputError, match=r"class 'agent' compacts to 120 tokens, but a prefix has 1\d\d"):
        build(sessions(compact={"after_tokens": 400, "to_tokens": 120}))


# answers that are left


def test_the_asked_share_is_left_after_tokens_and_the_next_turn_carries_those() -> None:
    schedule = build(sessions(1000, abort={"share": "25%", "after_tokens": {"uniform": [1, 9]}}))
    left = [request for request in schedule.requests if request.abort_after_tokens is not None]
    assert within(len(left), len(schedule.requests), 0.25)
    assert all(1 <= request.returned_tokens <= 9 and request.aborts for request in left)
    size, by_id = sizes(schedule), {request.id: request for request in schedule.requests}
    for request in schedule.requests:
        if request.continues is not None:
            before = by_id[request.continues]
            assert size[request.id] == size[before.id] + before.returned_tokens + request.own_prompt_tokens


def test_one_may_leave_after_a_time_and_then_the_next_turn_may_come_earlier() -> None:
    spec = sessions(600, abort={"share": "30%", "after": {"lognormal": {"median": "1s", "p95": "4s"}}})
    schedule = build(spec)
    left = [request for request in schedule.requests if request.abort_after_s is not None]
    assert within(len(left), len(schedule.requests), 0.3)
    assert 0.5 < sorted(request.abort_after_s or 0 for request in left)[len(left) // 2] < 2
    assert all(request.aborts and request.returned_tokens == request.output_tokens for request in left)
    at_once = sessions(600, turns=8, think="0s", abort={"share": 1, "after": "0s"})
    turns = Counter(request.session for request in build(at_once).requests)
    assert set(turns.values()) == {8}


def test_whoever_stays_beyond_the_end_of_the_answer_does_not_leave() -> None:
    schedule = build(sessions(abort={"share": 1, "after_tokens": 60}))
    assert not any(request.aborts for request in schedule.requests)


def test_options_leave_all_other_draws_alone() -> None:
    plain = build(sessions())
    leaving = build(sessions(abort={"share": "30%", "after_tokens": 100}))

    def told(schedule: Schedule) -> list[object]:
        return [(r.session, r.turn, r.think_s, r.segments, r.output_tokens) for r in schedule.requests]

    assert told(leaving) == told(plain)


def test_neither_prompts_sent_again_nor_branches_are_left_early() -> None:
    spec = sessions(1000, branch=BRANCH, abort={"share": "50%", "after_tokens": 2})
    schedule = build(spec.model_copy(update={"repeat": 0.3}))
    by_id = {request.id: request for request in schedule.requests}
    again = [request for request in schedule.requests if request.repeat_of is not None]
    assert len(again) > 50
    assert not any(request.aborts or by_id[request.repeat_of].aborts for request in again)
    assert not any(request.aborts for request in schedule.requests if request.branch is not None)


# what is shown before a run


def test_the_summary_counts_the_options() -> None:
    spec = sessions(
        300,
        branch=BRANCH,
        compact={"after_tokens": 500, "to_tokens": 250},
        abort={"share": "20%", "after_tokens": 3},
    )
    schedule = build(spec)
    summary = describe(schedule, 16)
    assert summary.branch_requests == sum(request.branch is not None for request in schedule.requests) > 0
    assert summary.compactions == sum(not request.carries for request in schedule.requests) > 0
    assert summary.aborts == sum(request.aborts for request in schedule.requests) > 0
    assert summary.prompt_tokens == sum(schedule.prompt_tokens())
    assert summary.classes["agent"].conversations == sum(request.turn == 0 for request in schedule.requests)
    plain = describe(build(sessions(300)), 16)
    assert (plain.branch_requests, plain.compactions, plain.aborts) == (0, 0, 0)
