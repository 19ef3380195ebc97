"""The core: conservation, capacity, determinism, time that only runs forward, blocks as a naive model has them."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.engine.emulated.device import DeviceBlocks
from kvbench.engine.emulated.path import Job, TransferPath
from kvbench.engine.emulated.request import Request
from kvbench.spec.emulation import Costs, Noise
from kvbench.spec.profile import Profile
from tests.engine.emulated.build import APART_S, BLOCK, a_core, a_profile, a_request, play

LOADS = st.lists(
    st.tuples(
        st.floats(0, 0.4),  # until the next
        st.integers(0, 5),  # document
        st.integers(1, 400),  # tokens
        st.integers(1, 40),  # output
    ),
    min_size=1,
    max_size=40,
)
TIERS = st.sampled_from([(0, False), (40, False), (40, True), (400, True)])


def requests_of(load: list[tuple[float, int, int, int]]) -> list[tuple[float, Request]]:
    made, now_s = [], 0.0
    for number, (gap_s, document, tokens, output) in enumerate(load):
        now_s += gap_s
        made.append((now_s, a_request(number, document, tokens, output)))
    return made


@settings(max_examples=60, deadline=None)
@given(load=LOADS, tiers=TIERS, seed=st.integers(0, 3), policy=st.sampled_from(["lru", "arc"]))
def test_whatever_is_asked_everything_is_answered_once_and_every_token_has_one_source(
    load: list[tuple[float, int, int, int]], tiers: tuple[int, bool], seed: int, policy: str
) -> None:
    host, disk = tiers
    options = {"policy": policy} if host else {}
    core = a_core(a_profile(40, host, disk=disk, **options), noise=Noise(), seed=seed)
    done = play(core, requests_of(load))
    assert sorted(r.id for r in done) == list(range(len(load)))
    for request in done:
        assert len(request.times) == request.output_tokens
        assert request.finish_reason == "length"
        assert request.arrived_s <= request.times[0]
        assert list(request.times) == sorted(request.times)
        assert 0 <= request.cached_tokens <= request.prompt_tokens
        assert min(request.device_tokens, request.host_tokens, request.disk_tokens) >= 0
    c = core.counters
    prompts = sum(r.prompt_tokens for r in done)
    assert c.prompt_tokens == prompts
    assert c.computed_tokens + c.device_tokens + c.external_tokens == prompts
    assert (c.admitted_device, c.admitted_host + c.admitted_disk) == (c.device_tokens, c.external_tokens)
    assert c.generation_tokens == sum(r.output_tokens for r in done)
    assert core.free_device_blocks == 39, "every block was given back"


@settings(max_examples=40, deadline=None)
@given(load=LOADS, tiers=TIERS)
def test_at_no_time_are_more_blocks_in_use_than_there_are(
    load: list[tuple[float, int, int, int]], tiers: tuple[int, bool]
) -> None:
    core = a_core(a_profile(40, tiers[0], disk=tiers[1]))
    for at_s, request in requests_of(load):
        core.advance(at_s)
        core.submit(request, at_s)
        while core.next_s < at_s + 0.05:
            core.advance(core.next_s)
            assert 0 <= core.free_device_blocks <= 39
            assert 0.0 <= core.read_gauges().usage <= 1.0


@settings(max_examples=20, deadline=None)
@given(load=LOADS, tiers=TIERS, seed=st.integers(0, 10**6))
def test_the_same_seed_gives_the_same_times(
    load: list[tuple[float, int, int, int]], tiers: tuple[int, bool], seed: int
) -> None:
    def times() -> list[list[float]]:
        core = a_core(a_profile(40, tiers[0], disk=tiers[1]), noise=Noise(), seed=seed)
        return [list(r.times) for r in play(core, requests_of(load))]

    assert times() == times()


@settings(max_examples=30, deadline=None)
@given(load=LOADS, looks=st.lists(st.floats(0, 20), max_size=30))
def test_looking_more_often_changes_nothing(load: list[tuple[float, int, int, int]], looks: list[float]) -> None:
    """Decode steps that are taken together are the steps that would have been taken one by one."""
    told = requests_of(load)
    one = play(a_core(a_profile(60)), told)
    core = a_core(a_profile(60))
    again = requests_of(load)
    events = sorted(
        [(at_s, i, request) for i, (at_s, request) in enumerate(again)] + [(t, -1, None) for t in looks],
        key=lambda event: (event[0], event[1]),
    )
    for at_s, _, request in events:
        core.advance(at_s)
        if request is not None:
            core.submit(request, at_s)
    core.advance(told[-1][0] + APART_S)
    expected = {r.id: [round(t, 9) for t in r.times] for r in one}
    assert {r.id: [round(t, 9) for t in r.times] for r in core.take_finished()} == expected


def chunked(tokens: int) -> Profile:
    """An engine that computes at most so many tokens in a step."""
    profile = a_profile(65)
    args = {**profile.engine.args, "max-num-batched-tokens": tokens}
    return profile.model_copy(update={"engine": profile.engine.model_copy(update={"args": args})})


def test_a_prompt_longer_than_a_step_takes_several_and_costs_their_fixed_part_more() -> None:
    """160 tokens at 64 a step: 64, 64 and 32, each with what every step costs."""
    (whole,), (split,) = (play(a_core(chunked(most)), [(0.0, a_request(1, 1))]) for most in (160, 64))
    assert split.times[0] == pytest.approx(whole.times[0] + 2 * Costs().step)
    assert np.diff(split.times) == pytest.approx(np.diff(whole.times))
    again = play(a_core(chunked(64)), [(0.0, a_request(1, 1)), (100.0, a_request(2, 1))])
    assert [each.device_tokens for each in again] == [0, 80], "blocks of the first half, computed in two steps"


def test_who_decodes_gets_a_token_with_every_part_of_another_prompt() -> None:
    """63 tokens of the prompt beside each token of the answer, and the answer's gaps are shorter for it."""

    def beside(most: int) -> tuple[int, float]:
        answer, prompt = a_request(1, 1, 32, 40), a_request(2, 2, 160, 1)
        core = a_core(chunked(most))
        play(core, [(0.0, answer), (0.1, prompt)])
        during = [t for t in answer.times if 0.1 < t <= prompt.times[0]]
        return len(during), max(np.diff(answer.times))

    (steps, longest), (undivided, longest_undivided) = beside(64), beside(1024)
    assert (steps, undivided) == (4, 2), "the step that was under way, and three parts or one"
    assert longest < 0.7 * longest_undivided


@settings(max_examples=30, deadline=None)
@given(load=LOADS)
def test_prompts_in_parts_are_answered_in_full_and_each_of_their_tokens_is_computed_once(
    load: list[tuple[float, int, int, int]],
) -> None:
    core = a_core(chunked(64))
    done = play(core, requests_of(load))
    assert [len(each.times) for each in done] == [each.output_tokens for each in done]
    assert core.counters.computed_tokens + core.counters.device_tokens == sum(each.prompt_tokens for each in done)
    assert core.free_device_blocks == 64


class NaiveDevice:
    """Blocks of one size in an LRU by key, for requests one after the other."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.order: OrderedDict[int, None] = OrderedDict()

    def serve(self, keys: list[int], tokens: int) -> int:
        """Leading hits; then the request's blocks are the newest, its first the last to go."""
        hits = 0
        while hits < min(len(keys), (tokens - 1) // BLOCK) and keys[hits] in self.order:
            hits += 1
        unfinished = tokens % BLOCK != 0
        for key in keys[:hits]:
            del self.order[key]
        room = self.blocks - unfinished - len(keys)
        # A whole block that could hit but for the last token is computed again, beside its old copy.
        for key in keys[hits:]:
            self.order.pop(key, None)
        while len(self.order) > room:
            self.order.popitem(last=False)
        for key in reversed(keys):
            self.order[key] = None
        return hits


@settings(max_examples=60, deadline=None)
@given(
    load=st.lists(
        st.tuples(st.integers(0, 6), st.integers(17, 400)).filter(lambda r: (r[1]) % BLOCK != 0),
        min_size=1,
        max_size=60,
    )
)
def test_one_request_after_the_other_the_device_is_a_naive_lru(load: list[tuple[int, int]]) -> None:
    core, naive = a_core(a_profile(40)), NaiveDevice(39)
    for number, (document, tokens) in enumerate(load):
        request = a_request(number, document, tokens, 1)
        expected = naive.serve(list(request.keys), tokens)
        (done,) = play(core, [(number * APART_S, request)])
        assert done.device_tokens == expected * BLOCK


def test_heads_outlive_tails() -> None:
    """Given a request's blocks are freed, when others need room, then its last block goes first."""
    device = DeviceBlocks(5)
    blocks = device.allocate(4)
    device.register(blocks, [1, 2, 3, 4])
    device.release(blocks)
    device.allocate(2)
    assert device.leading([1, 2, 3, 4], 4) == blocks[:2]


def test_a_second_copy_of_a_block_serves_when_the_first_is_gone() -> None:
    device = DeviceBlocks(4)
    first, second = device.allocate(1), device.allocate(1)
    device.register(first, [7])
    device.register(second, [7])
    device.release(first)
    device.allocate(2)
    assert device.leading([7], 1) == second


def test_under_pressure_requests_are_preempted_and_still_answered_in_full() -> None:
    """Given room for the prompts but not for all their outputs."""
    core = a_core(a_profile(21))
    done = play(core, [(0.0, a_request(n, n, 60, 100)) for n in range(4)])
    assert core.counters.preemptions > 0
    assert [len(r.times) for r in done] == [100] * 4


def test_two_jobs_share_a_path_and_a_third_in_the_same_lane_waits() -> None:
    path: TransferPath[str] = TransferPath({"load": 1, "store": 1})
    path.submit(Job("load", 1.0, "first"), 0.0)
    path.submit(Job("store", 1.0, "second"), 0.0)
    path.submit(Job("load", 1.0, "third"), 0.0)
    ends = {job.content: round(job.ended_s, 9) for job in path.ended(10.0)}
    assert ends == {"first": 2.0, "second": 2.0, "third": 3.0}


@settings(max_examples=60, deadline=None)
@given(
    jobs=st.lists(st.tuples(st.floats(0, 1), st.floats(0.001, 1), st.sampled_from("ab")), min_size=1, max_size=30)
)
def test_a_path_does_no_more_work_than_it_has_time_for(jobs: list[tuple[float, float, str]]) -> None:
    path: TransferPath[int] = TransferPath({"a": 2, "b": 1})
    now_s, done = 0.0, []
    for number, (gap_s, work_s, kind) in enumerate(jobs):
        now_s += gap_s
        done += path.ended(now_s)
        path.submit(Job(kind, work_s, number), now_s)
    done += path.ended(1e9)
    assert sorted(job.content for job in done) == list(range(len(jobs)))
    assert all(job.ended_s >= job.began_s + job.work_s - 1e-9 for job in done)
    first = min(job.began_s for job in done)
    assert max(job.ended_s for job in done) - first >= sum(job.work_s for job in done) - 1e-6 - sum(
        gap for gap, _, _ in jobs
    )


def test_a_demoted_prompt_comes_back_from_host_and_one_demoted_further_from_disk() -> None:
    """Given a device for two prompts, a host for four and a disk; six prompts are sent, then the first again."""
    for host_blocks, source in ((400, "host"), (24, "disk")):
        core = a_core(a_profile(25, host_blocks, disk=source == "disk"))
        for number in range(6):
            play(core, [(number * APART_S, a_request(number, number, 160, 1))])
        again = Request(9, 160, 1, a_request(0, 0, 160, 1).keys)
        (done,) = play(core, [(9 * APART_S, again)])
        assert getattr(done, f"{source}_tokens") >= 128, source
        assert done.device_tokens == 0
