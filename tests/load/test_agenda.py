"""What is due when; without sockets and without a clock."""

from __future__ import annotations

from hypothesis import given
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


def test_only_what_is_near_is_prepared_ahead() -> None:
    agenda = Agenda(schedule(*(request(i, float(i)) for i in range(10)), for_s=20))
    prepared = []
    while (turn := agenda.take_to_prepare(2.5)) is not None:
        prepared.append(turn.request.id)
    assert prepared == [0, 1, 2]


@given(st.data())
def test_every_planned_request_comes_out_exactly_once(data: st.DataObject) -> None:
    planned: list[PlannedRequest] = []
    for id_ in range(data.draw(st.integers(1, 12))):
        before = data.draw(st.none() | st.integers(0, id_ - 1)) if id_ else None
        if before is not None and any(other.continues == before for other in planned):
            before = None
        at_s = None if before is not None else data.draw(st.floats(0, 9))
        planned.append(request(id_, at_s, continues=before, think_s=data.draw(st.floats(0, 5))))
    concurrency = data.draw(st.none() | st.integers(1, 3))
    agenda = Agenda(schedule(*planned, concurrency=concurrency, for_s=10))
    out: list[int] = []
    now_s = 0.0
    while (due_s := agenda.next_due_s) is not None:
        now_s = max(now_s, due_s)
        turn = agenda.take_due(now_s)
        assert turn is not None
        now_s += data.draw(st.floats(0, 3))
        ok = data.draw(st.booleans())
        out.append(turn.request.id)
        out += [lost.id for lost, _ in agenda.over(turn, now_s, (1,) if ok else None)]
    out += ids(agenda.close())
    assert sorted(out) == [one.id for one in planned]
