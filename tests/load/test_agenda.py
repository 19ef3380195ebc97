"""What is due when; without sockets and without a clock."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.load.agenda import Agenda, Turn
from kvbench.workload.schedule import PlannedRequest
from tests.load.play import request, schedule


def take_all(agenda: Agenda, now_s: float) -> list[Turn]:
    turns = []
    while (turn := agenda.take_due(now_s)) is not None:
        turns.append(turn)
    return turns


def ids(turns: list[Turn] | list[PlannedRequest]) -> list[int]:
    return [turn.request.id if isinstance(turn, Turn) else turn.id for turn in turns]


@given(st.lists(st.floats(0, 10), max_size=30), st.floats(0, 10))
def test_open_loop_gives_exactly_what_is_due_in_order(times: list[float], now_s: float) -> None:
    agenda = Agenda(schedule(*(request(i, at_s) for i, at_s in enumerate(times)), for_s=11))
    taken = take_all(agenda, now_s)
    assert [turn.intended_s for turn in taken] == sorted(at_s for at_s in times if at_s <= now_s)
    rest = [at_s for at_s in times if at_s > now_s]
    assert agenda.next_due_s == (min(rest) if rest else None)


def test_a_turn_is_due_when_the_one_before_is_over_plus_its_think_time_and_carries_what_was_returned() -> None:
    first = request(0, 1.0, session=0)
    second = request(1, None, session=0, turn=1, continues=0, think_s=2.5)
    agenda = Agenda(schedule(first, second, for_s=60))
    (turn,) = take_all(agenda, 1.0)
    assert agenda.next_due_s is None
    assert agenda.over(turn, 4.0, (7, 8)) == []
    assert agenda.next_due_s == 6.5
    (later,) = take_all(agenda, 6.5)
    assert later.basis == "previous turn"
    assert later.pieces == (*first.segments, (7, 8), *second.segments)


def test_turns_after_a_failed_one_are_lost_and_those_beyond_the_end_are_unsent() -> None:
    turns = [request(0, 0.0), *(request(i, None, continues=i - 1, think_s=4.0) for i in (1, 2, 3))]
    agenda = Agenda(schedule(*turns, for_s=10))
    (turn,) = take_all(agenda, 0.0)
    lost = agenda.over(turn, 1.0, None)
    assert [(planned.id, due_s) for planned, due_s in lost] == [(1, 5.0), (2, 9.0)]
    assert ids(agenda.close()) == [3]


def test_a_turn_whose_time_comes_after_the_end_is_unsent_with_all_that_follow() -> None:
    turns = [request(0, 0.0), *(request(i, None, continues=i - 1, think_s=6.0) for i in (1, 2))]
    agenda = Agenda(schedule(*turns, for_s=5))
    (turn,) = take_all(agenda, 0.0)
    assert agenda.over(turn, 1.0, (1,)) == []
    assert agenda.next_due_s is None
    assert sorted(ids(agenda.close())) == [1, 2]


def test_a_closed_loop_starts_as_many_as_it_may_and_one_more_whenever_one_is_over() -> None:
    agenda = Agenda(schedule(*(request(i, None) for i in range(5)), concurrency=2, for_s=10))
    running = take_all(agenda, 0.0)
    assert ids(running) == [0, 1]
    assert take_all(agenda, 9.0) == []
    agenda.over(running[0], 3.0, ())
    (third,) = take_all(agenda, 3.0)
    assert (third.request.id, third.intended_s) == (2, 3.0)
    agenda.over(third, 10.5, ())
    assert agenda.next_due_s is None
    assert sorted(ids(agenda.close())) == [3, 4]


def test_in_a_closed_loop_a_session_keeps_its_slot_while_it_thinks() -> None:
    session = [request(0, None), request(1, None, continues=0, think_s=2.0)]
    agenda = Agenda(schedule(*session, request(2, None), concurrency=1, for_s=60))
    (turn,) = take_all(agenda, 0.0)
    agenda.over(turn, 1.0, (5,))
    assert agenda.next_due_s == 3.0
    (turn,) = take_all(agenda, 3.0)
    assert turn.request.id == 1
    agenda.over(turn, 4.0, (5,))
    assert ids(take_all(agenda, 4.0)) == [2]


def branching(wait: bool = True, **changed: object) -> list[PlannedRequest]:
    """A turn, two side branches from it (one of two requests), and the turn after."""
    return [
        request(0, 0.0, session=0),
        request(1, None, session=0, turn=1, continues=0, branch=0),
        request(2, None, session=0, turn=1, continues=0, branch=1),
        request(3, None, session=0, turn=2, continues=2, branch=1, think_s=1.0),
        request(4, None, session=0, turn=1, continues=0, think_s=2.0, waits_for=(1, 3) if wait else (), **changed),
    ]


def test_branches_start_at_once_and_the_next_turn_comes_after_the_last_of_them_and_its_think_time() -> None:
    planned = branching()
    agenda = Agenda(schedule(*planned, for_s=60))
    (first,) = take_all(agenda, 0.0)
    agenda.over(first, 1.0, (7,))
    one, other = take_all(agenda, 1.0)
    assert (one.request.id, other.request.id, one.basis) == (1, 2, "previous turn")
    assert one.pieces == (*planned[0].segments, (7,), *planned[1].segments)
    agenda.over(other, 4.0, (8,))
    assert agenda.next_due_s == 5.0
    (last,) = take_all(agenda, 5.0)
    assert last.pieces == (*other.pieces, (8,), *planned[3].segments)
    agenda.over(last, 6.0, ())
    assert agenda.next_due_s is None
    agenda.over(one, 9.0, ())
    assert agenda.next_due_s == 11.0
    (after,) = take_all(agenda, 11.0)
    assert after.pieces == (*planned[0].segments, (7,), *planned[4].segments)


def test_a_turn_that_does_not_wait_comes_beside_the_branches() -> None:
    agenda = Agenda(schedule(*branching(wait=False), for_s=60))
    (first,) = take_all(agenda, 0.0)
    agenda.over(first, 1.0, (7,))
    assert ids(take_all(agenda, 1.0)) == [1, 2]
    assert agenda.next_due_s == 3.0


def test_a_branch_that_fails_is_over_and_does_not_end_the_session() -> None:
    agenda = Agenda(schedule(*branching(), for_s=60))
    (first,) = take_all(agenda, 0.0)
    agenda.over(first, 1.0, (7,))
    one, other = take_all(agenda, 1.0)
    assert [(lost.id, at_s) for lost, at_s in agenda.over(other, 2.0, None)] == [(3, 3.0)]
    agenda.over(one, 2.5, ())
    assert agenda.next_due_s == 5.0  # what was lost would have been due at 3, and then comes the think time


def test_branches_are_lost_with_the_turn_that_they_start_from() -> None:
    agenda = Agenda(schedule(*branching(), for_s=60))
    (first,) = take_all(agenda, 0.0)
    assert [(lost.id, at_s) for lost, at_s in agenda.over(first, 1.0, None)] == [
        (1, 1.0),
        (2, 1.0),
        (3, 2.0),
        (4, 3.0),
    ]
    assert agenda.close() == []


def test_what_waits_for_a_request_that_comes_too_late_comes_too_late() -> None:
    agenda = Agenda(schedule(*branching(), for_s=1.5))
    (first,) = take_all(agenda, 0.0)
    agenda.over(first, 1.0, (7,))
    one, other = take_all(agenda, 1.0)
    agenda.over(one, 1.2, ())
    agenda.over(other, 1.2, (8,))
    assert agenda.next_due_s is None
    assert sorted(ids(agenda.close())) == [3, 4]


def test_a_rewritten_context_carries_nothing() -> None:
    turns = [request(0, 0.0, session=0), request(1, None, session=0, turn=1, continues=0, carries=False)]
    agenda = Agenda(schedule(*turns, for_s=60))
    (first,) = take_all(agenda, 0.0)
    agenda.over(first, 1.0, (7,))
    (second,) = take_all(agenda, 1.0)
    assert second.pieces == turns[1].segments


def test_in_a_closed_loop_a_session_keeps_its_slot_until_nothing_of_it_is_left() -> None:
    planned = [replace(one, intended_s=None) for one in branching(wait=False)]
    agenda = Agenda(schedule(*planned, request(9, None), concurrency=1, for_s=60))
    (first,) = take_all(agenda, 0.0)
    agenda.over(first, 1.0, (7,))
    running = take_all(agenda, 3.0)
    assert ids(running) == [1, 2, 4]
    for turn in running:
        agenda.over(turn, 4.0, (8,))
    assert agenda.next_due_s == 5.0
    (last,) = take_all(agenda, 5.0)
    agenda.over(last, 6.0, None)
    assert ids(take_all(agenda, 6.0)) == [9]


def test_only_what_is_near_is_prepared_ahead() -> None:
    agenda = Agenda(schedule(*(request(i, float(i)) for i in range(10)), for_s=20))
    prepared = []
    while (turn := agenda.take_to_prepare(2.5)) is not None:
        prepared.append(turn.request.id)
    assert prepared == [0, 1, 2]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_every_planned_request_comes_out_exactly_once(data: st.DataObject) -> None:
    planned: list[PlannedRequest] = []
    for id_ in range(data.draw(st.integers(1, 14))):
        before = data.draw(st.none() | st.integers(0, id_ - 1)) if id_ else None
        at_s = None if before is not None else data.draw(st.floats(0, 9))
        # it may wait for others that continue the same request, directly or not
        beside = [one.id for one in planned if before is not None and before in ancestors(planned, one)]
        waits_for = tuple(data.draw(st.lists(st.sampled_from(beside), unique=True, max_size=3))) if beside else ()
        carries = data.draw(st.booleans())
        planned.append(
            request(
                id_,
                at_s,
                continues=before,
                think_s=data.draw(st.floats(0, 5)),
                waits_for=waits_for,
                carries=carries,
            )
        )
    concurrency = data.draw(st.none() | st.integers(1, 3))
    agenda = Agenda(schedule(*planned, concurrency=concurrency, for_s=10))
    out: list[int] = []
    running: list[tuple[float, Turn]] = []
    now_s = 0.0
    while agenda.next_due_s is not None or running:
        if agenda.next_due_s is not None and (not running or data.draw(st.booleans())):
            now_s = max(now_s, agenda.next_due_s)
            turn = agenda.take_due(now_s)
            assert turn is not None
            running.append((now_s, turn))
            out.append(turn.request.id)
        else:
            _, turn = running.pop(data.draw(st.integers(0, len(running) - 1)))
            now_s += data.draw(st.floats(0, 3))
            ok = data.draw(st.booleans())
            out += [lost.id for lost, _ in agenda.over(turn, now_s, (1,) if ok else None)]
        if concurrency is not None:
            assert len({root(planned, turn.request) for _, turn in running}) <= concurrency
    out += ids(agenda.close())
    assert sorted(out) == [one.id for one in planned]


def ancestors(planned: list[PlannedRequest], one: PlannedRequest) -> list[int]:
    found = []
    while one.continues is not None:
        found.append(one.continues)
        one = planned[one.continues]
    return found


def root(planned: list[PlannedRequest], one: PlannedRequest) -> int:
    return (ancestors(planned, one) or [one.id])[-1]
