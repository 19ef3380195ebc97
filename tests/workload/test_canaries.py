"""Canary text: where it stands, whose it is, and that nothing else of a schedule changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.errors import InputError
from kvbench.spec.loading import load_workload
from kvbench.workload.blocks import block_paths
from kvbench.workload.build import build_schedule
from kvbench.workload.canaries import CANARY_TOKENS, CARRIES_TOKENS, EVERY_TOKENS, OFFSET_TOKENS
from kvbench.workload.prompts import PromptWriter
from kvbench.workload.schedule import PlannedRequest, Schedule, Segment
from kvbench.workload.storage import read_schedule, schedule_digest, write_schedule
from tests.workload.workloads import workload

CLASSES: dict[str, Any] = {
    "shared": {
        "prefix": {"tokens": 256, "pool": 6},
        "suffix_tokens": {"uniform": [8, 200]},
        "output_tokens": 16,
        "turns": 2,
        "branch": {"share": 0.5},
        "compact": {"after_tokens": 400, "to_tokens": 300},
    },
    "alone": {"suffix_tokens": 100, "output_tokens": 16},
}
WRITER = PromptWriter((32, 255))


def build(tenants: int | None = 3, round_: int = 1, **changes: Any) -> Schedule:
    more = {} if tenants is None else {"canaries": {"tenants": tenants}}
    spec = workload(**{"classes": CLASSES, "prime": "each_prefix_once", "repeat": "10%", **more, **changes})
    return build_schedule(spec, round_, block_tokens=16, capacities_tokens=None, max_model_len=None)


def unmarked(request: PlannedRequest) -> PlannedRequest:
    return replace(request, tenant=None, segments=tuple(replace(s, canary=None) for s in request.segments))


def canary_of(schedule: Schedule, tenant: int) -> list[int]:
    return WRITER.segment_ids(Segment(schedule.canaries[tenant], CANARY_TOKENS)).tolist()


def holds(ids: list[int], part: list[int]) -> bool:
    return any(ids[start : start + len(part)] == part for start in range(len(ids) - len(part) + 1))


def test_whoever_has_canaries_has_the_same_schedule_but_for_whose_it_is() -> None:
    with_them, without = build(), build(None)
    plain = replace(
        with_them,
        canaries=(),
        prime=tuple(map(unmarked, with_them.prime)),
        requests=tuple(map(unmarked, with_them.requests)),
    )
    assert plain == without
    shared = [blocks[1:] for blocks in block_paths(with_them, 16).requests]
    assert shared == [blocks[1:] for blocks in block_paths(without, 16).requests]


def test_every_prompt_has_its_tenants_canary_and_no_other() -> None:
    schedule = build()
    seen = set()
    for request in schedule.in_order():
        ids = WRITER.prompt_ids(request).tolist()
        found = {tenant for tenant in range(3) if holds(ids, canary_of(schedule, tenant))}
        long_enough = any(segment.tokens >= CARRIES_TOKENS for segment in request.segments)
        assert found == ({request.tenant} if long_enough else set())
        seen |= found
    assert seen == {0, 1, 2}


def test_who_shares_a_prefix_or_a_session_is_one_tenant() -> None:
    schedule = build()
    owners: dict[object, set[int | None]] = {}
    for request in schedule.in_order():
        whose = ("prefix", request.prefix) if request.prefix is not None else ("request", request.id)
        owners.setdefault(whose, set()).add(request.tenant)
        if request.session is not None:
            owners.setdefault(("session", request.session), set()).add(request.tenant)
    assert all(len(tenants) == 1 for tenants in owners.values())
    repeats = [request for request in schedule.requests if request.repeat_of is not None]
    by_id = {request.id: request for request in schedule.requests}
    assert repeats
    assert all(by_id[request.repeat_of or 0].tenant == request.tenant for request in repeats)


def test_every_round_has_canaries_of_its_own() -> None:
    assert set(build().canaries).isdisjoint(build(round_=2).canaries)
    assert build() == build()


ID_RANGES = st.tuples(st.integers(0, 1000), st.integers(15, 50_000)).map(lambda p: (p[0], p[0] + p[1]))
NAMES = st.integers(0, 2**63 - 1)


@settings(max_examples=60, deadline=None)
@given(id_range=ID_RANGES, name=NAMES, canary=NAMES, one=st.integers(0, 700), other=st.integers(0, 700))
def test_content_depends_on_identity_and_position_alone_and_blocks_stay_different(
    id_range: tuple[int, int], name: int, canary: int, one: int, other: int
) -> None:
    writer = PromptWriter(id_range)
    long = writer.segment_ids(Segment(name, max(one, other), canary)).tolist()
    assert writer.segment_ids(Segment(name, min(one, other), canary)).tolist() == long[: min(one, other)]
    plain = writer.segment_ids(Segment(name, len(long))).tolist()
    secret = writer.segment_ids(Segment(canary, CANARY_TOKENS)).tolist()
    for place, token in enumerate(long):
        within = place % EVERY_TOKENS - OFFSET_TOKENS
        assert token == (secret[within] if 0 <= within < CANARY_TOKENS else plain[place])
    blocks = [tuple(long[start : start + 128]) for start in range(0, len(long) - 127, 128)]
    assert len(set(blocks)) == len(blocks)


def test_it_is_stored_and_a_schedule_without_keeps_its_digest(tmp_path: Path) -> None:
    some = build()
    write_schedule(some, tmp_path / "s.parquet")
    assert read_schedule(tmp_path / "s.parquet") == some
    assert schedule_digest(some) != schedule_digest(build(None))
    assert schedule_digest(replace(build(None), canaries=())) == schedule_digest(build(None))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"classes": {"short": {"suffix_tokens": 40, "output_tokens": 16}}}, "canaries of 0 of 3 tenants"),
        (
            {
                "classes": {
                    "one": {"prefix": {"tokens": 256, "pool": 1}, "suffix_tokens": 40, "output_tokens": 16},
                }
            },
            "canaries of 1 of 3 tenants",
        ),
    ],
)
def test_canaries_that_could_never_show_anything_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        build(**changes)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("canaries: {tenants: 1}", "greater than or equal to 2"),
        ("canaries: {tenant: 4}", "tenants"),
        ("canaries: {tenants: 4}\narrivals: {trace: {path: t.jsonl}}", "belongs to no tenant"),
    ],
)
def test_the_key_is_checked(tmp_path: Path, lines: str, words: str) -> None:
    arrivals = "" if "arrivals" in lines else "arrivals: {process: poisson, rate: 2/s}\n"
    classes = "" if "trace" in lines else "classes: {a: {suffix_tokens: 80, output_tokens: 4}}\n"
    path = tmp_path / "w.yaml"
    path.write_text(f"name: w\n{arrivals}phases: [{{name: p, for: 10s}}]\n{classes}{lines}\n", encoding="utf-8")
    with pytest.raises(InputError, match=words):
        load_workload(path)
