"""The fast replay by runs gives what a slow, obvious replay block by block gives."""

from __future__ import annotations

from collections import OrderedDict
from random import Random

import pytest

from kvbench.plan.reuse import expected_sources
from kvbench.workload.schedule import PhaseSpan, PlannedRequest, Schedule, Segment
from tests.plan.slow_arc import SlowArc

Block = tuple[tuple[int, int], ...]
"""All tokens up to a block's end, each as (identity, position): what a chained block hash stands for."""


def planned(id_: int, segments: tuple[Segment, ...], output: int = 1, **more: object) -> PlannedRequest:
    given = {
        "phase": "p",
        "measured": True,
        "class_": "c",
        "session": None,
        "turn": 0,
        "intended_s": float(id_),
        "think_s": 0.0,
        "continues": None,
        "prefix": None,
        "repeat_of": None,
    }
    return PlannedRequest(id=id_, segments=segments, output_tokens=output, **{**given, **more})


def schedule_of(requests: list[PlannedRequest], prime: tuple[PlannedRequest, ...] = ()) -> Schedule:
    return Schedule("w", 1, 0, (PhaseSpan("p", 0.0, 1.0, True),), prime, tuple(requests), None, 60.0)


def blocks_of(tokens: list[tuple[int, int]], block_tokens: int) -> list[Block]:
    return [tuple(tokens[:end]) for end in range(block_tokens, len(tokens) + 1, block_tokens)]


def touch(tier: OrderedDict[Block, None], blocks: list[Block], capacity: int) -> None:
    for block in reversed(blocks):
        tier[block] = None
        tier.move_to_end(block)
    while len(tier) > max(capacity, 0):
        tier.popitem(last=False)


def slow_sources(
    schedule: Schedule,
    *,
    block_tokens: int,
    device_blocks: int,
    host_blocks: int,
    disk: bool,
    host_policy: str,
) -> dict[str, int]:
    """Every token and every block by itself."""
    device: OrderedDict[Block, None] = OrderedDict()
    host: OrderedDict[Block, None] | SlowArc = OrderedDict() if host_policy == "lru" else SlowArc(host_blocks)
    stored: set[Block] = set()
    found = dict.fromkeys(("device", "host", "disk", "computed"), 0)
    said: dict[int, list[tuple[int, int]]] = {}
    for request in (*schedule.prime, *schedule.requests):
        prompt = list(said[request.continues]) if request.continues is not None and request.carries else []
        for segment in request.segments:
            prompt += [(segment.identity, position) for position in range(segment.tokens)]
        came = min(request.output_tokens, request.abort_after_tokens or request.output_tokens)
        answer = [(-1 - request.id, position) for position in range(came)]
        said[request.id] = prompt + answer
        blocks = blocks_of(prompt, block_tokens)
        sources: list[str] = []
        for block in blocks[: max(len(prompt) - 1, 0) // block_tokens]:
            from_tiers = sum(source != "device" for source in sources)
            if block in device and not from_tiers:
                sources.append("device")
            elif host_blocks and from_tiers < host_blocks and block in host:
                sources.append("host")
            elif host_blocks and from_tiers < host_blocks and disk and block in stored:
                sources.append("disk")
            else:
                break
        if request.measured:
            for source in sources:
                found[source] += block_tokens
            found["computed"] += len(prompt) - len(sources) * block_tokens
        kept = prompt + answer[:-1]
        touch(device, blocks_of(kept, block_tokens), device_blocks - 1 - (len(kept) % block_tokens != 0))
        if isinstance(host, SlowArc):
            host.use(blocks)
        else:
            touch(host, blocks, host_blocks)
        stored.update(blocks)
    return found


def random_trace(random: Random) -> Schedule:
    """Contents of several lengths under few names, suffixes that recur, sessions that branch, a little priming."""
    requests: list[PlannedRequest] = []
    for id_ in range(random.randint(1, 14)):
        continues = random.randrange(id_) if id_ and random.random() < 0.3 else None
        names = [random.randint(0, 4) for _ in range(random.randint(1, 3))]
        segments = tuple(Segment(name, random.choice([1, 2, 3, 5, 8, 9, 12])) for name in names)
        measured = random.random() < 0.7
        requests.append(
            planned(
                id_,
                segments,
                random.randint(1, 6),
                measured=measured,
                continues=continues,
                session=0,
                carries=continues is None or random.random() < 0.8,
                abort_after_tokens=random.choice([None, None, 1, 3]),
            )
        )
    primes = random.randint(0, 2) if all(request.continues is None for request in requests[:2]) else 0
    return schedule_of(requests[primes:], tuple(requests[:primes]))


@pytest.mark.parametrize("batch", range(8))
def test_fast_and_slow_replay_agree(batch: int) -> None:
    random = Random(batch)
    sources: set[str] = set()
    for _ in range(500):
        schedule = random_trace(random)
        sizes = {
            "block_tokens": random.randint(1, 5),
            "device_blocks": random.randint(1, 30),
            "host_blocks": random.choice([0, random.randint(1, 40)]),
            "disk": random.random() < 0.5,
            "host_policy": random.choice(["lru", "arc"]),
        }
        found = slow_sources(schedule, **sizes)
        assert expected_sources(schedule, **sizes) == found, (schedule, sizes)
        sources |= {source for source, tokens in found.items() if tokens}
    assert sources == {"device", "host", "disk", "computed"}


def requests(*names: int, tokens: int = 41) -> list[PlannedRequest]:
    return [planned(id_, (Segment(name, tokens),)) for id_, name in enumerate(names)]


def test_the_last_token_is_always_computed() -> None:
    # given a prompt of exactly four blocks, sent twice
    sources = expected_sources(schedule_of(requests(1, 1, tokens=40)), block_tokens=10, device_blocks=100)
    assert sources == {"device": 30, "host": 0, "disk": 0, "computed": 50}


def test_what_the_device_lost_comes_from_the_host_and_then_from_the_disk() -> None:
    # given a device for one prompt of four blocks (and the unfinished one, and the null block)
    sizes = {"block_tokens": 10, "device_blocks": 6}
    trace = schedule_of(requests(1, 2, 3, 1))
    assert expected_sources(trace, **sizes)["computed"] == 4 * 41
    assert expected_sources(trace, **sizes, host_blocks=12)["host"] == 40
    assert expected_sources(trace, **sizes, host_blocks=8)["host"] == 0
    assert expected_sources(trace, **sizes, host_blocks=8, disk=True)["disk"] == 40
    assert expected_sources(trace, **sizes, disk=True)["computed"] == 4 * 41


def test_promotion_brings_a_prompt_back_into_host_and_device() -> None:
    sizes = {"block_tokens": 10, "device_blocks": 6, "host_blocks": 8, "disk": True}
    trace = schedule_of(requests(1, 2, 3, 1, 1, 4, 1))
    assert expected_sources(trace, **sizes) == {"device": 40, "host": 40, "disk": 40, "computed": 4 * 41 + 3}


def test_heads_outlive_tails() -> None:
    # given room for six of eight blocks, the first prompt loses its last two
    trace = schedule_of(requests(1, 2, 1))
    assert expected_sources(trace, block_tokens=10, device_blocks=8)["device"] == 20


def test_only_measured_requests_count_but_all_fill() -> None:
    first = planned(0, (Segment(1, 41),), measured=False)
    again = planned(1, (Segment(1, 41),))
    for schedule in (schedule_of([first, again]), schedule_of([again], prime=(first,))):
        sources = expected_sources(schedule, block_tokens=10, device_blocks=100)
        assert sources == {"device": 40, "host": 0, "disk": 0, "computed": 1}


def test_answers_stay_on_the_device_only() -> None:
    turns = [
        planned(0, (Segment(1, 20),), 21, session=0),
        planned(1, (Segment(2, 9),), 5, session=0, turn=1, continues=0),
    ]
    sizes = {"block_tokens": 10, "host_blocks": 50}
    assert expected_sources(schedule_of(turns), device_blocks=50, **sizes)["device"] == 40
    crowded = [turns[0], planned(5, (Segment(9, 41),)), turns[1]]
    assert expected_sources(schedule_of(crowded), device_blocks=6, **sizes)["host"] == 20


def test_a_branch_reuses_the_context_it_starts_from_and_a_compacted_turn_only_the_prefix() -> None:
    first = planned(0, (Segment(1, 20), Segment(2, 20)), 11, session=0)
    branch = planned(1, (Segment(3, 9),), 5, session=0, turn=1, continues=0, branch=0)
    following = planned(2, (Segment(4, 9),), 5, session=0, turn=1, continues=0, waits_for=(1,))
    compacted = planned(3, (Segment(1, 20), Segment(5, 15)), 5, session=0, turn=2, continues=2, carries=False)
    sizes = {"block_tokens": 10, "device_blocks": 100}
    assert expected_sources(schedule_of([first, branch]), **sizes)["device"] == 50
    assert expected_sources(schedule_of([first, branch, following]), **sizes)["device"] == 50 + 50
    sources = expected_sources(schedule_of([first, branch, following, compacted]), **sizes)
    assert sources["device"] == 50 + 50 + 20
    assert sum(sources.values()) == 40 + 60 + 60 + 35


def test_of_an_answer_that_is_left_only_what_came_is_carried() -> None:
    first = planned(0, (Segment(1, 20),), 30, session=0, abort_after_tokens=11)
    second = planned(1, (Segment(2, 9),), 5, session=0, turn=1, continues=0)
    sources = expected_sources(schedule_of([first, second]), block_tokens=10, device_blocks=100)
    assert sources == {"device": 30, "host": 0, "disk": 0, "computed": 20 + 10}


@pytest.mark.parametrize("device_blocks", [1, 2])
def test_a_device_too_small_for_anything_serves_nothing(device_blocks: int) -> None:
    sources = expected_sources(schedule_of(requests(1, 1)), block_tokens=10, device_blocks=device_blocks)
    assert sources["device"] == 0
