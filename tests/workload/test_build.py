"""A workload file becomes the schedule it promises: the same everywhere, and different contents in every round."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from kvbench.errors import InputError
from kvbench.spec.workload import Workload
from kvbench.workload.build import build_schedule
from kvbench.workload.schedule import PlannedRequest, Schedule
from kvbench.workload.storage import schedule_digest

from .workloads import MIXED, workload

_ALARM = 1e-4
GOLDEN = {
    ("poisson", 0): "c994481d37194dd2566cd81d1e8a41c5c879cc477e5075fd26f0ade932f9ed44",
    ("poisson", 1): "4bba910839a7b8ff2ee6a63ec8d760c97050089c4bba7c0f34775bff28c23051",
    ("gamma", 0): "4829c0275f91f0b164eaa580a3134351c0568c79d01f2829fcd0085901404eb4",
    ("constant", 0): "d68c58ced139e856e5d2bb5cf7842b40a4714fe79dfe3c7c09225aa7e9adc6ff",
    ("closed", 0): "a9d98ff3add6bb998b5b71b681249cb396ba8100019455d3168f2643745df050",
}
ARRIVALS = {
    "poisson": MIXED["arrivals"],
    "gamma": {"process": "gamma", "rate": "4/s", "gamma": {"cv": 2}},
    "constant": {"process": "constant", "rate": "4/s"},
    "closed": {"process": "closed", "closed": {"concurrency": 3}},
}
SHORT_PHASES = [{"name": "warm", "for": "5s", "measured": False}, {"name": "steady", "for": "20s"}]


def build(spec: Workload, round_index: int = 0, **facts: object) -> Schedule:
    known = {"block_tokens": 16, "capacities_tokens": None, "max_model_len": None, **facts}
    return build_schedule(spec, round_index, **known)


def golden(process: str) -> Workload:
    if process == "closed":
        return workload(arrivals=ARRIVALS[process], phases=SHORT_PHASES)
    return workload(arrivals=ARRIVALS[process])


def identities(schedule: Schedule) -> set[int]:
    return {segment.identity for request in schedule.in_order() for segment in request.segments}


@pytest.mark.parametrize(("process", "round_index"), GOLDEN)
def test_schedules_are_pinned_for_ever(process: str, round_index: int) -> None:
    assert schedule_digest(build(golden(process), round_index)) == GOLDEN[process, round_index]


@pytest.mark.parametrize("hash_seed", ["0", "1", "4242"])
def test_the_hash_seed_of_the_process_changes_nothing(hash_seed: str) -> None:
    program = (
        "import json, sys\n"
        "from kvbench.spec.workload import Workload\n"
        "from kvbench.workload.build import build_schedule\n"
        "from kvbench.workload.storage import schedule_digest\n"
        "spec = Workload.model_validate(json.load(sys.stdin))\n"
        "facts = {'block_tokens': 16, 'capacities_tokens': None, 'max_model_len': None}\n"
        "print(schedule_digest(build_schedule(spec, 1, **facts)))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(MIXED),
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(sys.path)},
    )
    assert ran.stdout.strip() == GOLDEN["poisson", 1]


def test_nothing_but_seed_round_and_file_matters() -> None:
    same = schedule_digest(build(workload()))
    assert schedule_digest(build(workload())) == same
    assert schedule_digest(build(workload(seed=2))) != same
    assert schedule_digest(build(workload(), 1)) != same


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**31), rounds=st.lists(st.integers(0, 1000), min_size=2, max_size=3, unique=True))
def test_no_round_shares_any_content_with_another(seed: int, rounds: list[int]) -> None:
    contents = [identities(build(workload(seed=seed, phases=SHORT_PHASES), index)) for index in rounds]
    for one, other in pairwise(contents):
        assert not one & other


def test_workloads_of_other_names_or_seeds_share_no_content() -> None:
    plain = identities(build(workload()))
    assert not plain & identities(build(workload(name="other")))
    assert not plain & identities(build(workload(seed=2)))


def test_every_suffix_is_its_own_and_prefixes_are_the_pools() -> None:
    schedule = build(workload(repeat=0))
    suffixes = [request.segments[-1].identity for request in schedule.in_order()]
    assert len(set(suffixes)) == len(suffixes)
    prefixes: dict[tuple[str, int], set[object]] = {}
    for request in schedule.in_order():
        if request.turn == 0:
            prefixes.setdefault((request.class_, request.prefix), set()).add(request.segments[0])
    assert all(len(segments) == 1 for segments in prefixes.values())
    assert Counter(class_ for class_, _ in prefixes) == {"short": 4, "long": 24, "agent": 6}


def test_requests_are_in_order_and_numbered_behind_the_priming() -> None:
    schedule = build(workload())
    assert [request.id for request in schedule.in_order()] == list(range(len(schedule)))
    times = [request.intended_s for request in schedule.requests if request.intended_s is not None]
    assert times == sorted(times)
    assert schedule.duration_s == 170


def test_a_request_is_of_the_phase_in_which_it_is_planned() -> None:
    schedule = build(workload())
    for request in schedule.requests:
        if request.intended_s is not None:
            phase = schedule.phase_at(request.intended_s)
            assert (request.phase, request.measured) == (phase.name, phase.measured)
            assert phase.start_s <= request.intended_s < phase.end_s
    assert {r.phase for r in schedule.requests} == {"warm", "steady", "ramp"}
    assert schedule.phase_at(-1).name == "warm"
    assert schedule.phase_at(1000).name == "ramp"


def test_classes_come_by_weight_and_the_rate_is_kept() -> None:
    schedule = build(workload(phases=[{"name": "long", "for": "1000s"}], repeat="20%"))
    starts = [request for request in schedule.requests if request.turn == 0]
    low, high = stats.poisson(4000).ppf([_ALARM / 2, 1 - _ALARM / 2])
    assert low <= len(starts) <= high
    seen = Counter(request.class_ for request in starts)
    expected = [share * len(starts) for share in (0.7, 0.2, 0.1)]
    assert stats.chisquare([seen[c] for c in ("short", "long", "agent")], expected).pvalue > _ALARM


def test_other_lengths_leave_arrivals_and_classes_as_they_are() -> None:
    classes = {**MIXED["classes"], "short": {**MIXED["classes"]["short"], "output_tokens": {"uniform": [1, 99]}}}
    one, other = build(workload()), build(workload(classes=classes))

    def starts(schedule: Schedule) -> list[object]:
        return [(r.intended_s, r.class_, r.prefix) for r in schedule.requests if r.turn == 0]

    assert starts(one) == starts(other)


# sessions


def test_a_session_carries_on_turn_by_turn() -> None:
    schedule = build(workload())
    by_id = {request.id: request for request in schedule.requests}
    later = [request for request in schedule.requests if request.turn > 0]
    assert len(later) > 20
    for request in later:
        before = by_id[request.continues]
        assert (before.session, before.turn, before.class_) == (request.session, request.turn - 1, "agent")
        assert before.id < request.id
        assert request.intended_s is None
        assert request.think_s > 0
        assert request.prefix == before.prefix
        assert len(request.segments) == 1
    assert all((r.session is not None) == (r.class_ == "agent") for r in schedule.requests)


def test_think_scale_plays_pauses_faster() -> None:
    slow, fast = (build(workload(think_scale=scale, phases=[{"name": "p", "for": "300s"}])) for scale in (1.0, 0.1))
    assert sum(r.turn > 0 for r in fast.requests) > sum(r.turn > 0 for r in slow.requests)
    fast_mean, slow_mean = (
        sum(r.think_s for r in s.requests if r.turn) / sum(r.turn > 0 for r in s.requests) for s in (fast, slow)
    )
    assert fast_mean < slow_mean / 3


def test_turns_that_cannot_be_sent_in_time_are_left_out() -> None:
    agent = {**MIXED["classes"]["agent"], "turns": 50, "think": "10s"}
    schedule = build(workload(classes={"agent": agent}, repeat=0))
    for request in schedule.requests:
        start = next(r for r in schedule.requests if r.session == request.session and r.turn == 0)
        assert start.intended_s + 10 * request.turn < schedule.duration_s


def test_prompt_lengths_count_what_sessions_carry() -> None:
    schedule = build(workload())
    sizes = dict(zip((r.id for r in schedule.in_order()), schedule.prompt_tokens(), strict=True))
    by_id = {request.id: request for request in schedule.in_order()}
    for request in schedule.in_order():
        before = by_id.get(request.continues)
        carried = 0 if before is None else sizes[before.id] + before.output_tokens
        assert sizes[request.id] == carried + sum(s.tokens for s in request.segments)


# repeats


def test_the_asked_share_is_sent_again_later_in_the_same_phase() -> None:
    schedule = build(workload(phases=[{"name": "a", "for": "500s"}, {"name": "b", "for": "500s"}]))
    by_id = {request.id: request for request in schedule.requests}
    again = [request for request in schedule.requests if request.repeat_of is not None]
    starts = sum(request.turn == 0 for request in schedule.requests)
    low, high = stats.binom(starts, 0.05).ppf([_ALARM / 2, 1 - _ALARM / 2])
    assert low <= len(again) <= high
    assert len({request.repeat_of for request in again}) == len(again)
    for request in again:
        original = by_id[request.repeat_of]
        assert original.intended_s < request.intended_s
        assert original.repeat_of is None
        for name in ("phase", "class_", "segments", "output_tokens", "prefix", "turn"):
            assert getattr(original, name) == getattr(request, name)
    assert {request.class_ for request in again} == {"short", "long", "agent"}


def test_without_repeat_nothing_is_sent_twice() -> None:
    assert all(request.repeat_of is None for request in build(workload(repeat=0)).requests)


# priming and pools


def test_priming_sends_every_prefix_once_the_most_popular_last() -> None:
    schedule = build(workload())
    assert Counter(request.class_ for request in schedule.prime) == {"short": 4, "long": 24, "agent": 6}
    for class_ in ("short", "long", "agent"):
        members = [request.prefix for request in schedule.prime if request.class_ == class_]
        assert members == sorted(members, reverse=True)
    for request in schedule.prime:
        assert (request.phase, request.measured, request.output_tokens) == ("prime", False, 1)
        assert request.segments[1].tokens < 16
    assert build(workload(prime="none")).prime == ()


def working_set(times: float, tokens: object, of: str = "device") -> Workload:
    prefix = {"tokens": tokens, "working_set": {"of": of, "times": times}}
    return workload(classes={"long": {"prefix": prefix, "suffix_tokens": 8, "output_tokens": 4}})


@given(times=st.floats(0.1, 10), capacity=st.integers(1000, 200_000), shortest=st.integers(100, 3000))
@settings(max_examples=20, deadline=None)
def test_a_working_set_just_reaches_its_share_of_the_tier(times: float, capacity: int, shortest: int) -> None:
    spec = working_set(times, {"uniform": [shortest, 2 * shortest]})
    schedule = build(spec, capacities_tokens={"device": capacity})
    pool = [request.segments[0].tokens for request in schedule.prime]
    assert sum(pool) >= times * capacity
    # priming goes from the last member to the first, and the last one was needed
    assert sum(pool[1:]) < times * capacity


@pytest.mark.parametrize("capacities", [None, {}, {"host": 100_000}, {"device": 0}])
def test_an_unknown_capacity_is_the_users_error(capacities) -> None:
    with pytest.raises(InputError, match="capacity of the device tier"):
        build(working_set(3, 8192), capacities_tokens=capacities)


def test_prefixes_too_short_for_a_block_cannot_be_a_working_set() -> None:
    with pytest.raises(InputError, match="fills a block of 128 tokens"):
        build(working_set(3, 100), block_tokens=128, capacities_tokens={"device": 10_000})
    assert build(working_set(3, 100), block_tokens=None, capacities_tokens={"device": 10_000}).prime


def test_a_pool_without_bounds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvbench.workload.pools._LARGEST_POOL", 1000)
    with pytest.raises(InputError, match="more than 1000 prefixes"):
        build(working_set(100, 1), block_tokens=1, capacities_tokens={"device": 1000})
    nothing = workload(
        classes={"long": {"prefix": {"tokens": 5, "pool": 1}, "suffix_tokens": 8, "output_tokens": 4}}
    )
    bare = nothing.classes["long"].model_copy(
        update={"prefix": nothing.classes["long"].prefix.model_copy(update={"pool": None})}
    )
    with pytest.raises(InputError, match="has no pool"):
        build(nothing.model_copy(update={"classes": {"long": bare}}))


def test_classes_without_a_prefix_share_nothing() -> None:
    schedule = build(workload(classes={"plain": {"suffix_tokens": 100, "output_tokens": 4}}, repeat=0))
    assert schedule.prime == ()
    assert all(request.prefix is None and len(request.segments) == 1 for request in schedule.requests)


# closed loops


def test_a_closed_loop_starts_as_many_as_run_at_once() -> None:
    schedule = build(golden("closed"))
    timed = [request for request in schedule.requests if request.intended_s is not None]
    assert schedule.concurrency == 3
    assert len(timed) == 3
    assert all(request.intended_s == 0 for request in timed)
    assert build(workload()).concurrency is None


def test_a_closed_loop_plans_more_than_any_engine_gets_through() -> None:
    spec = workload(
        arrivals={"process": "closed", "closed": {"concurrency": 4}},
        phases=[{"name": "p", "for": "10s"}],
        classes={"plain": {"suffix_tokens": 10, "output_tokens": 20}},
    )
    # at 5 ms + 20 × 2 ms a request, four at once
    assert len(build(spec).requests) == pytest.approx(4 * 10 / 0.045, abs=5)


@pytest.mark.parametrize("turns", [1, 100])
def test_a_closed_loop_without_end_is_refused(monkeypatch: pytest.MonkeyPatch, turns: int) -> None:
    monkeypatch.setattr("kvbench.workload.build.MOST_REQUESTS", 1000)
    spec = workload(
        arrivals={"process": "closed", "closed": {"concurrency": 10}},
        phases=[{"name": "p", "for": "10h"}],
        classes={"plain": {"turns": turns, "suffix_tokens": 10, "output_tokens": 1}},
    )
    with pytest.raises(InputError, match="more than 1000 requests"):
        build(spec)


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        ({"turns": 40}, "the sessions of one round have more than 1000 requests"),
        ({"turns": 9000}, "a single session of class 'agent' has more than 1000 requests"),
        ({"turns": 2, "branch": {"share": 1, "count": 9000}}, "a single session of class 'agent' has more"),
        ({"turns": 2, "branch": {"share": 1, "turns": 9000}}, "a single session of class 'agent' has more"),
    ],
)
def test_sessions_without_end_are_refused(
    monkeypatch: pytest.MonkeyPatch, agent: dict[str, object], words: str
) -> None:
    for module in ("build", "sidelines"):
        monkeypatch.setattr(f"kvbench.workload.{module}.MOST_REQUESTS", 1000)
    spec = workload(
        arrivals={"process": "constant", "rate": 2},
        phases=[{"name": "p", "for": "10m"}],
        classes={"agent": {**agent, "suffix_tokens": 10, "output_tokens": 1}},
    )
    with pytest.raises(InputError, match=words):
        build(spec)


def test_a_closed_loop_needs_a_concurrency() -> None:
    closed = golden("closed")
    nameless = closed.arrivals.model_copy(update={"closed": None})
    with pytest.raises(InputError, match="need a concurrency"):
        build(closed.model_copy(update={"arrivals": nameless}))


# refusals


def test_prompts_longer_than_the_model_takes_name_the_class() -> None:
    with pytest.raises(InputError, match="class 'long' plans a prompt of 8256 tokens and 64 of output"):
        build(workload(), max_model_len=8319)
    just_fits = workload(classes={"long": MIXED["classes"]["long"]})
    assert build(just_fits, max_model_len=8320).requests


def test_a_session_is_measured_at_its_last_turn() -> None:
    agent = {"turns": 10, "suffix_tokens": 100, "output_tokens": 50}
    spec = workload(classes={"agent": agent}, repeat=0)
    assert build(spec, max_model_len=1500).requests
    with pytest.raises(InputError, match=r"class 'agent'.*at turn 10 of a session"):
        build(spec, max_model_len=1499)


def test_values_do_not_change() -> None:
    request: PlannedRequest = build(workload()).requests[0]
    assert replace(request) == request
    with pytest.raises(AttributeError):
        request.turn = 3
