"""A schedule split over workers is the same schedule: nothing lost, doubled or moved, and conversations whole."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.load.agenda import Agenda
from kvbench.load.split import split
from kvbench.workload.schedule import PlannedRequest, Schedule
from kvbench.workload.storage import read_schedule, schedule_digest, write_schedule
from tests.load.play import request, schedule


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Single requests and sessions with turns, side branches and waits, in the order of time."""
    requests: list[PlannedRequest] = []
    for session in range(draw(st.integers(0, 12))):
        first = request(len(requests), float(session), session=session if draw(st.booleans()) else None)
        requests.append(first)
        before = first.id
        for turn in range(1, draw(st.integers(1, 4))):
            branch = None
            if draw(st.booleans()):
                branch = len(requests)
                requests.append(request(branch, None, continues=before, session=first.session, turn=turn))
            waits = () if branch is None else (branch,)
            next_ = request(
                len(requests), None, continues=before, waits_for=waits, session=first.session, turn=turn
            )
            requests.append(next_)
            before = next_.id
    prime = tuple(request(1000 + n, None, phase="prime", measured=False) for n in range(draw(st.integers(0, 3))))
    concurrency = draw(st.none() | st.integers(1, 9))
    return schedule(*requests, for_s=100, prime=prime, concurrency=concurrency)


def owners(shares: list[Schedule]) -> dict[int, int]:
    return {one.id: worker for worker, share in enumerate(shares) for one in share.in_order()}


@given(schedules(), st.integers(1, 8))
@settings(max_examples=60)
def test_together_the_shares_are_the_schedule(planned: Schedule, workers: int) -> None:
    shares = split(planned, workers)
    assert len(shares) == workers
    assert sorted(one.id for share in shares for one in share.in_order()) == sorted(
        one.id for one in planned.in_order()
    )
    whole = {one.id: one for one in planned.in_order()}
    assert all(whole[one.id] == one for share in shares for one in share.in_order())
    assert all(share.phases == planned.phases for share in shares)


@given(schedules(), st.integers(1, 8))
@settings(max_examples=60)
def test_who_follows_or_waits_for_another_is_with_it_and_only_the_first_worker_primes(
    planned: Schedule, workers: int
) -> None:
    shares = split(planned, workers)
    owner = owners(shares)
    for one in planned.requests:
        for other in (*one.waits_for, *([one.continues] if one.continues is not None else [])):
            assert owner[one.id] == owner[other]
    for session in {one.session for one in planned.requests} - {None}:
        assert len({owner[one.id] for one in planned.requests if one.session == session}) == 1
    assert [share.prime for share in shares] == [planned.prime] + [()] * (workers - 1)


@given(schedules(), st.integers(1, 8))
@settings(max_examples=60)
def test_slots_are_shared_out_exactly_and_the_first_requests_are_those_of_one_client(
    planned: Schedule, workers: int
) -> None:
    shares = split(planned, workers)
    if planned.concurrency is None:
        assert all(share.concurrency is None for share in shares)
        return
    slots = [share.concurrency or 0 for share in shares]
    assert sum(slots) == planned.concurrency
    assert max(slots) - min(slots) <= 1

    def at_once(one: Schedule) -> set[int]:
        agenda, ids = Agenda(one), set()
        while (turn := agenda.take_due(0.0)) is not None:
            ids.add(turn.request.id)
        return ids

    assert set().union(*map(at_once, shares)) == at_once(planned)
    assert all(not share.requests for share in shares if not share.concurrency)


@given(schedules(), st.integers(1, 8))
@settings(max_examples=30)
def test_conversations_are_dealt_out_evenly(planned: Schedule, workers: int) -> None:
    if planned.concurrency is not None:
        return
    counts = [sum(one.continues is None for one in share.requests) for share in split(planned, workers)]
    sessions_joined = len({one.session for one in planned.requests if one.session is not None})
    assert max(counts) - min(counts) <= 1 or sessions_joined


@given(schedules(), st.integers(1, 8))
@settings(max_examples=20)
def test_a_share_is_a_schedule_that_can_be_stored(planned: Schedule, workers: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "share.parquet"
        for share in split(planned, workers):
            write_schedule(share, path)
            assert schedule_digest(read_schedule(path)) == schedule_digest(share)


def test_it_depends_on_schedule_and_number_alone_and_one_worker_has_everything() -> None:
    planned = schedule(*(request(i, i * 0.1) for i in range(10)), for_s=2)
    assert split(planned, 1) == [planned]
    assert split(planned, 3) == split(planned, 3)
    assert [one.id for one in split(planned, 3)[1].requests] == [1, 4, 7]
    with pytest.raises(ValueError, match="at least one"):
        split(planned, 0)
