"""The fast replay by runs gives what a slow, obvious replay block by block gives."""

from __future__ import annotations

from collections import Counter, OrderedDict
from random import Random

import numpy as np
import pytest

from kvbench.engine.emulated.virtual import simulate
from kvbench.plan.host_rules import HostRules, host_rules
from kvbench.plan.reuse import expected_sources
from kvbench.spec.profile import HostTier
from kvbench.workload.schedule import PhaseSpan, PlannedRequest, Schedule, Segment
from tests.engine.emulated.build import BLOCK, a_profile, a_schedule
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


def store(tier: OrderedDict[Block, None], blocks: list[Block], capacity: int) -> None:
    """All that are missing, or none where only blocks of the same request could make room."""
    missing = [block for block in blocks if block not in tier]
    others = [block for block in tier if block not in blocks]
    surplus = max(len(tier) + len(missing) - capacity, 0)
    if surplus <= len(others):
        for block in others[:surplus]:
            del tier[block]
        tier.update(dict.fromkeys(missing))
    for block in reversed(blocks):
        if block in tier:
            tier.move_to_end(block)


def slow_sources(
    schedule: Schedule,
    *,
    block_tokens: int,
    device_blocks: int,
    host_blocks: int,
    disk: bool,
    host_rules: HostRules,
) -> dict[str, int]:
    """Every token, block and chunk by itself."""
    size = host_rules.chunk_tokens or block_tokens
    room, often = host_blocks * block_tokens // size, host_rules.store_threshold
    device: OrderedDict[Block, None] = OrderedDict()
    host: OrderedDict[Block, None] | SlowArc = OrderedDict() if host_rules.policy == "lru" else SlowArc(room)
    offers: Counter[Block] = Counter()
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
        most = max(len(prompt) - 1, 0)
        here = 0
        for block in blocks_of(prompt, block_tokens)[: most // block_tokens]:
            if block not in device:
                break
            here += block_tokens
        sources: list[str] = []
        for chunk in blocks_of(prompt, size)[here // size : most // size]:
            if len(sources) == room or (chunk not in host and not (disk and room and chunk in stored)):
                break
            sources.append("host" if chunk in host else "disk")
        inside = here % size
        if len(sources) * size - inside < size:
            sources = []
        if request.measured:
            found["device"] += here
            for place, source in enumerate(sources):
                found[source] += size - (inside if place == 0 else 0)
            found["computed"] += len(prompt) - here - (len(sources) * size - inside if sources else 0)
        kept = prompt + answer[:-1]
        touch(device, blocks_of(kept, block_tokens), device_blocks - 1 - (len(kept) % block_tokens != 0))
        chunks = blocks_of(prompt if host_rules.prompt_only else kept, size)
        offers.update(chunks)
        wanted = [chunk for chunk in chunks if offers[chunk] >= often or chunk in host]
        if isinstance(host, SlowArc):
            host.use(wanted)
        elif often >= 2:
            store(host, wanted, room)
        else:
            touch(host, wanted, room)
        stored.update(chunk for chunk in chunks if often < 2 or chunk in host)
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
        block_tokens = random.randint(1, 5)
        sizes = {
            "block_tokens": block_tokens,
            "device_blocks": random.randint(1, 30),
            "host_blocks": random.choice([0, random.randint(1, 40)]),
            "disk": random.random() < 0.5,
            "host_rules": HostRules(
                policy=random.choice(["lru", "arc"]),
                chunk_tokens=random.choice([None, None, 2 * block_tokens, 3 * block_tokens]),
                store_threshold=random.choice([0, 0, 2, 3]),
                prompt_only=random.random() < 0.7,
            ),
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


def test_only_whole_chunks_are_stored_and_found() -> None:
    """Given prompts of four blocks and chunks of three, then three blocks come back, and of chunks of five none."""
    sizes = {"block_tokens": 10, "device_blocks": 6, "host_blocks": 30}
    trace = schedule_of(requests(1, 2, 3, 1))
    assert expected_sources(trace, **sizes, host_rules=HostRules(chunk_tokens=30))["host"] == 30
    assert expected_sources(trace, **sizes, host_rules=HostRules(chunk_tokens=50))["host"] == 0


def test_a_host_that_holds_no_chunk_serves_nothing() -> None:
    trace = schedule_of(requests(1, 2, 3, 1))
    sizes = {"block_tokens": 10, "device_blocks": 6, "host_blocks": 2, "disk": True}
    sources = expected_sources(trace, **sizes, host_rules=HostRules(chunk_tokens=30))
    assert sources["host"] == sources["disk"] == 0


def test_of_a_chunk_that_begins_on_the_device_the_rest_is_loaded_with_what_follows() -> None:
    """Given a device that kept two of six blocks, then four come in chunks of three, and two of six are none."""
    sizes = {"block_tokens": 10, "device_blocks": 10, "host_blocks": 30}
    trace = schedule_of(requests(1, 2, 1, tokens=61))
    rules = HostRules(chunk_tokens=30)
    sources = expected_sources(trace, **sizes, host_rules=rules)
    assert sources == {"device": 20, "host": 40, "disk": 0, "computed": 123}
    short = schedule_of([*requests(1, 2, tokens=61), planned(2, (Segment(1, 31),))])
    assert expected_sources(short, **sizes, host_rules=rules)["host"] == 0


@pytest.mark.parametrize(("threshold", "served"), [(0, 3), (1, 3), (2, 2), (3, 1), (4, 0)])
def test_a_threshold_keeps_out_what_was_seldom_offered(threshold: int, served: int) -> None:
    """Given a prompt that comes four times, then it is found only after it was offered often enough."""
    sizes = {"block_tokens": 10, "device_blocks": 6, "host_blocks": 100}
    trace = schedule_of(requests(1, 2, 1, 3, 1, 4, 1))
    sources = expected_sources(trace, **sizes, host_rules=HostRules(store_threshold=threshold))
    assert sources["host"] == 40 * served


def test_a_tracker_that_is_too_small_forgets_offers() -> None:
    sizes = {"block_tokens": 10, "device_blocks": 6, "host_blocks": 100}
    trace = schedule_of(requests(1, 2, 1, 2, 1, 2))
    rules = [HostRules(store_threshold=2, most_tracked=size) for size in (8, 4)]
    assert [expected_sources(trace, **sizes, host_rules=each)["host"] for each in rules] == [80, 0]


def test_answers_that_the_host_keeps_come_back() -> None:
    turns = [
        planned(0, (Segment(1, 20),), 21, session=0),
        planned(5, (Segment(9, 41),)),
        planned(1, (Segment(2, 9),), 5, session=0, turn=1, continues=0),
    ]
    sizes = {"block_tokens": 10, "device_blocks": 6, "host_blocks": 50}
    assert expected_sources(schedule_of(turns), **sizes, host_rules=HostRules(prompt_only=False))["host"] == 40


@pytest.mark.parametrize("disk", [False, True])
@pytest.mark.parametrize(
    "host",
    [
        {},
        {"blocks_per_chunk": 4},
        {"chunk_tokens": 80},
        {"store_threshold": 3},
        {"policy": "arc", "store_threshold": 2, "blocks_per_chunk": 2},
    ],
)
def test_what_is_expected_comes_where_no_request_meets_another(host: dict[str, object], disk: bool) -> None:
    """Given requests far apart at an emulated engine, which keeps the tiers as vLLM does, then shares agree.

    To two percentage points, and of two tiers the sum: what is not offered to the host because a tier served it,
    and what a promotion from disk moves in the host's order, is not replayed.
    """
    apart = a_schedule(
        arrivals={"process": "constant", "rate": 0.1}, phases=[{"name": "steady", "for": 600.0}], prime="none"
    )
    played = simulate(apart, a_profile(80, 100, disk=disk, **host))
    ledger = played.ledger.to_pandas()
    came = {source: int(ledger[source].fillna(0).sum()) for source in ("device", "host", "disk", "computed")}
    assert came["host"] > 0
    together = [
        np.array([told["device"], told["host"] + told["disk"], told["computed"]])
        for told in (played.expected_sources, came)
    ]
    assert np.abs(together[0] - together[1]).max() <= 0.02 * together[1].sum(), together


def test_a_profile_says_what_its_host_tier_keeps_as_one() -> None:
    def chunk(**host: object) -> int | None:
        return host_rules(HostTier.model_validate({"size": "1GiB", **host}), BLOCK).chunk_tokens

    assert chunk() == BLOCK
    assert chunk(blocks_per_chunk=3) == 3 * BLOCK
    assert chunk(chunk_tokens=64) == 64
    assert chunk(via="lmcache") == 256
    assert chunk(via="lmcache", chunk_tokens=512) == 512
    assert host_rules(None, BLOCK) == HostRules()


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
