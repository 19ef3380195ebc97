"""A replay of KV events against the core that published them: which tier every cached token came from."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.ledger.account import RoundEvidence, account
from kvbench.ledger.events import KvEvent, event_table, events_of
from kvbench.ledger.history import UNKNOWN, BlockHistory
from kvbench.ledger.lives import lives
from kvbench.ledger.residency import Asked, Residency, Split
from tests.engine.emulated.build import BLOCK, a_profile, a_schedule
from tests.ledger.published import TOKEN_IDS, play_and_publish

TIERS = ("device", "host", "disk")
SOURCES = (*TIERS, "computed", "unattributed")
SESSIONS = {
    "long": {
        "weight": 0.6,
        "prefix": {"tokens": 512, "pool": 10, "popularity": "uniform"},
        "suffix_tokens": 32,
        "output_tokens": 8,
    },
    "agent": {
        "weight": 0.4,
        "turns": 3,
        "think": "1s",
        "prefix": {"tokens": 64, "pool": 2, "popularity": "uniform"},
        "suffix_tokens": 40,
        "output_tokens": 20,
    },
}


def both_ledgers(rate: float, seconds: float, **changes: object) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(replayed from events, told by the core) of one round."""
    schedule = a_schedule(
        arrivals={"process": "poisson", "rate": rate},
        phases=[{"name": "steady", "for": seconds}],
        classes=SESSIONS,
        repeat="5%",
        **changes,
    )
    profile = a_profile(80, 150, disk=True)
    played, events = play_and_publish(schedule, profile, BLOCK)
    evidence = RoundEvidence(
        played.requests.to_pandas(),
        played.metrics.to_pandas().iloc[:0],
        profile.tier_names,
        kv_events=events,
        schedule=schedule,
        token_id_range=TOKEN_IDS,
    )
    return account(evidence).to_pandas(), played.ledger.to_pandas()


def test_requests_one_at_a_time_are_split_exactly() -> None:
    replayed, told = both_ledgers(rate=0.4, seconds=150.0)
    assert set(replayed["evidence"]) == {"kv events", "nothing cached"}
    assert told[list(TIERS)].sum().min() > 500, "every tier is used"
    pd.testing.assert_frame_equal(replayed.drop(columns="evidence"), told.drop(columns="evidence"))


@pytest.mark.parametrize(("rate", "seconds"), [(8.0, 12.0), (16.0, 8.0)])
def test_under_concurrency_no_source_is_off_by_two_points(rate: float, seconds: float) -> None:
    replayed, told = both_ledgers(rate, seconds)
    prompt = told["prompt_tokens"].sum()
    for source in SOURCES:
        off = 100 * (replayed[source].sum() - told[source].sum()) / prompt
        assert abs(off) <= 2, f"{source} is off by {off:.2f} points"


# single looks, by hand

WIDTH = 4
A, B, C, D = (letter.encode() for letter in "abcd")
PROMPT = np.arange(16, dtype=np.int32)


def stored(t_s: float, tier: str, *blocks: bytes, parent: bytes | None = None, first: int = 0) -> KvEvent:
    tokens = PROMPT[first * WIDTH : (first + len(blocks)) * WIDTH] if tier == "device" else PROMPT[:0]
    return KvEvent(0, t_s, "stored", tier, blocks, parent, tokens, WIDTH if len(tokens) else 0, 0)


def removed(t_s: float, tier: str, *blocks: bytes) -> KvEvent:
    return KvEvent(0, t_s, "removed", tier, blocks, group=0)


COMPUTED = [stored(0.0, "device", A, B, C, D), stored(0.1, "host", A, B, C, D)]
GONE = removed(1.0, "device", C, D)


def look(
    events: list[KvEvent], cached: int = 16, *, sent_s: float = 5.0, first_s: float = 6.0, **more: int
) -> Split | None:
    return Residency(BlockHistory(events), **more).split(Asked(sent_s, first_s, PROMPT, cached))


def test_what_lies_on_the_device_is_used_where_it_lies() -> None:
    assert look(COMPUTED) == Split(16, 0, 0)


def test_what_is_announced_before_the_first_token_was_loaded_from_the_host() -> None:
    loaded = stored(5.5, "device", C, D, parent=B, first=2)
    assert look([*COMPUTED, GONE, loaded]) == Split(8, 8, 0)


def test_what_came_to_the_host_while_the_request_waited_was_on_disk() -> None:
    events = [
        *COMPUTED,
        stored(0.2, "disk", A, B, C, D),
        GONE,
        removed(1.0, "host", D),
        stored(5.2, "host", D),
        stored(5.5, "device", C, D, parent=B, first=2),
    ]
    assert look(events) == Split(8, 4, 4)


def test_of_two_that_wait_for_one_load_the_first_had_it_made() -> None:
    events = [*COMPUTED, GONE, stored(5.5, "device", C, D, parent=B, first=2)]
    residency = Residency(BlockHistory(events))
    first, second = (residency.split(Asked(sent_s, 6.0, PROMPT, 16)) for sent_s in (5.0, 5.1))
    assert (first, second) == (Split(8, 8, 0), Split(16, 0, 0))


def test_what_another_request_computes_meanwhile_is_a_hit_on_the_device() -> None:
    events = [stored(5.5, "device", A, B, C, D), stored(5.8, "host", A, B, C, D)]
    assert look(events) == Split(16, 0, 0)


def test_where_the_host_is_never_told_of_what_came_to_the_device_may_have_been_loaded_from_it() -> None:
    events = [stored(0.0, "device", A, B), stored(5.5, "device", C, D, parent=B, first=2)]
    assert look(events) is None
    assert look(events, has_host=False) == Split(16, 0, 0), "then another request has computed it"
    assert look(events[:1], cached=8) == Split(8, 0, 0), "what lay there was not loaded"


def test_an_event_that_seems_earlier_than_the_one_before_it_is_none() -> None:
    """Both clocks are not read in one instant, so a time may be too early by what lay between."""
    events = [*COMPUTED, GONE, removed(4.0, "host", A), stored(1.5, "device", C, D, parent=B, first=2)]
    history = BlockHistory(events)
    assert [history.place_at(t_s) for t_s in (0.0, 0.1, 1.2, 3.9, 4.0)] == [1, 2, 3, 3, 5]
    assert history.time_of(4) == 4.0


def test_block_sizes_that_differ_and_unknown_media_do_not_get_into_the_way() -> None:
    """Given a host that keeps and tells of larger blocks with their tokens, and a medium of the future."""
    wide = KvEvent(0, 0.2, "stored", "host", (B, D), None, PROMPT, 2 * WIDTH, 0)
    strange = KvEvent(0, 0.3, "stored", "NVME", (A, B, C, D), None, PROMPT[:0], 0, 0)
    events = [COMPUTED[0], wide, strange, removed(1.0, "device", A, B, C, D)]
    loaded = stored(5.5, "device", A, B, C, D)
    assert look([*events, loaded], blocks_per_chunk=2) == Split(0, 16, 0)
    other = KvEvent(0, 0.05, "stored", "device", (b"x",), None, PROMPT[:8], 2 * WIDTH, 0)
    assert look([COMPUTED[0], other, *COMPUTED[1:]]) == Split(16, 0, 0)
    assert [row["tier"] for row in lives(BlockHistory([*events, loaded])).to_pylist()] == ["device", "host"]


def test_hashes_that_are_bytes_are_as_good_as_numbers() -> None:
    long = {name: name * 32 for name in (A, B, C, D)}
    events = [
        stored(0.0, "device", *long.values()),
        stored(0.1, "host", *long.values()),
        removed(1.0, "device", long[C], long[D]),
        stored(5.5, "device", long[C], long[D], parent=long[B], first=2),
    ]
    assert look(events) == Split(8, 8, 0)


BLOCKS = st.lists(st.sampled_from([A, B, C, D, b"x"]), min_size=1, max_size=4).map(tuple)
EVENTS = st.builds(
    lambda t_s, kind, tier, blocks, parent, width, group: KvEvent(
        0, t_s, kind, tier, blocks, parent, PROMPT[: width * len(blocks)], width, group
    ),
    st.floats(-1, 9),
    st.sampled_from(["stored", "stored", "removed", "cleared", "lost"]),
    st.sampled_from(["device", "device", "host", "disk", "NVME", None]),
    BLOCKS,
    st.none() | st.sampled_from([A, B, b"x"]),
    st.sampled_from([0, WIDTH, WIDTH, 2 * WIDTH]),
    st.none() | st.sampled_from([0, 0, 1]),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(EVENTS, max_size=12), st.integers(1, 16), st.integers(1, 3), st.booleans())
def test_whatever_an_engine_says_a_split_is_all_that_was_cached_or_there_is_none(
    events: list[KvEvent], cached: int, chunk: int, behind: bool
) -> None:
    """Events lost, out of order, removed before they were stored, of unknown media, sizes and groups."""
    history = BlockHistory([*COMPUTED[: len(events) % 3], *events])
    residency = Residency(history, chunk, has_disk=behind, has_host=behind)
    for sent_s in (1.0, 2.0):
        split = residency.split(Asked(sent_s, 8.0, PROMPT, cached))
        assert split is None or (sum(astuple(split)) == cached and min(astuple(split)) >= 0)
    for row in lives(history).to_pylist():
        assert row["stored"] >= row["removed"] >= 0
        assert row["never_read"] is None or 0 <= row["never_read"] <= row["stored"]


def test_tiers_may_keep_several_blocks_as_one() -> None:
    events = [
        stored(0.0, "device", A, B, C, D),
        stored(0.1, "host", B, D),
        stored(0.2, "disk", B, D),
        removed(1.0, "device", A, B, C, D),
        removed(1.1, "host", D),
        stored(5.2, "host", D),
        stored(5.5, "device", A, B, C, D),
    ]
    assert look(events, blocks_per_chunk=2) == Split(0, 8, 8)


def test_a_hit_may_end_inside_a_block() -> None:
    """The last token of a prompt is computed even when all of it is cached."""
    loaded = stored(5.5, "device", C, D, parent=B, first=2)
    assert look([*COMPUTED, GONE, loaded], cached=15) == Split(8, 7, 0)


def test_nothing_is_said_about_blocks_that_were_nowhere_or_never_told_of() -> None:
    assert look([*COMPUTED, GONE]) is None
    assert look([stored(0.0, "host", A, B, C, D)]) is None


def test_nothing_is_said_after_batches_were_lost() -> None:
    lost = KvEvent(7, 2.0, "lost")
    assert look([*COMPUTED, lost]) is None
    assert look([*COMPUTED, KvEvent(7, 8.0, "lost")]) == Split(16, 0, 0), "what was over before is not in doubt"


def test_an_answer_that_a_session_carries_is_found_by_what_stands_around_it() -> None:
    other = np.array([90, 91, 92, 93], np.int32)
    events = [
        stored(0.0, "device", A, B, C, D),
        KvEvent(0, 0.1, "stored", "device", (b"x",), A, other, WIDTH, 0),
    ]
    carried = PROMPT.copy()
    carried[5:8] = UNKNOWN
    history = BlockHistory(events)
    assert list(history.paths(carried, 4)) == [(A, B, C, D)]
    carried[4:8] = UNKNOWN
    assert list(history.paths(carried, 4)) == [(A, B, C, D)], "only one way leads on"
    assert list(history.paths(carried, 2)) == [(A, B), (A, b"x")], "equal prompts may have had different answers"


def test_copies_of_a_block_on_the_device_are_counted() -> None:
    events = [*COMPUTED, stored(0.5, "device", A, B, C, D), removed(1.0, "device", D)]
    assert look(events) == Split(16, 0, 0)
    assert look([*events, removed(1.5, "device", D)]) is None


def test_a_cleared_device_holds_nothing() -> None:
    assert look([*COMPUTED, KvEvent(0, 1.0, "cleared")]) is None


def test_events_survive_being_stored() -> None:
    events = [*COMPUTED, GONE, KvEvent(3, 2.0, "lost"), KvEvent(4, 2.5, "cleared")]
    table = event_table(events)
    again = event_table(events_of(table.to_pandas()))
    assert again.equals(table)


def test_what_became_of_blocks_is_told_by_tier() -> None:
    """Of four blocks in the host one is loaded after 5 s and two are removed after 1 s. One of these comes back
    from disk; the other is stored once more from the device, where it still lies."""
    events = [
        *COMPUTED,
        stored(0.2, "disk", A, B, C, D),
        removed(1.1, "host", A, B),
        removed(1.2, "device", D),
        stored(5.1, "device", D, parent=C, first=3),
        stored(6.1, "host", A),
        removed(6.2, "device", B),
        stored(7.1, "host", B),
    ]
    device, host, disk = lives(BlockHistory(events)).to_pylist()
    assert (device["stored"], device["removed"], device["never_read"]) == (5, 2, None)
    assert device["lifetime_p50_s"] == pytest.approx((1.2 + 6.2) / 2)
    assert (host["stored"], host["removed"], host["never_read"]) == (6, 2, 5)
    assert host["lifetime_p50_s"] == pytest.approx(1.0)
    assert host["reuse_gap_p50_s"] == pytest.approx(5.0)
    assert (disk["stored"], disk["removed"], disk["never_read"]) == (4, 0, 3)
    assert disk["reuse_gap_p50_s"] == pytest.approx(6.9)
    assert disk["lifetime_p50_s"] is None
