"""Users who leave, sub-agents and rewritten contexts, played at a server that behaves as told."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from kvbench.workload.prompts import PromptWriter
from kvbench.workload.schedule import PlannedRequest, Segment
from tests.load.play import play, request, schedule
from tests.load.server import (
    CHUNKED_HEAD,
    Hangup,
    Normal,
    Peer,
    Request,
    ScriptedServer,
    event,
    hang,
    refuse,
    returned_ids,
    token_event,
)


class Endless:
    """Token after token until the client is gone, which is noted."""

    def __init__(self, gap_s: float = 0.01, *, ids: bool = True) -> None:
        self.gone = threading.Event()
        self.sent = 0
        self._gap_s = gap_s
        self._ids = ids

    def __call__(self, sent: Request, peer: Peer) -> None:
        peer.send(CHUNKED_HEAD)
        try:
            while not peer.server.closing.wait(self._gap_s):
                text = event({"choices": [{"text": "word", "finish_reason": None}]})
                peer.chunk(token_event([1000 + self.sent]) if self._ids else text)
                self.sent += 1
        except OSError:
            self.gone.set()
        raise Hangup


def segment_ids(identity: int, tokens: int = 20) -> list[int]:
    return PromptWriter((32, 255)).segment_ids(Segment(identity, tokens)).tolist()


# users who leave


def test_a_user_who_leaves_after_some_tokens_closes_the_connection_and_is_no_error(tmp_path: Path) -> None:
    endless = Endless()
    leaving = request(0, output_tokens=1000, abort_after_tokens=5)
    with ScriptedServer(endless) as server:
        played = play(schedule(leaving, for_s=0.5), server.url, tmp_path)
        assert endless.gone.wait(5)
    row = played.row(0)
    assert (row["status"], row["error"], row["output_digest"]) == ("aborted", None, None)
    assert row["leaves"]
    assert 5 <= row["output_tokens_received"] < 60
    assert row["output_tokens_asked"] == 1000
    assert 0 < row["first_token_s"] < row["last_token_s"] <= row["ended_s"]
    assert len(played.tokens) == row["output_tokens_received"]
    assert played.figures["failed"] == 0
    assert [answer.failure for answer in played.answered] == [None]


def test_a_user_who_leaves_after_a_time_counts_it_from_the_intended_time(tmp_path: Path) -> None:
    leaving = [request(0, 0.1, abort_after_s=0.3), request(1, 0.1)]
    with ScriptedServer(hang) as server:
        played = play(schedule(*leaving, for_s=0.2, timeout_s=0.8), server.url, tmp_path)
    left, stayed = played.row(0), played.row(1)
    assert (left["status"], left["first_token_s"], left["output_tokens_received"]) == ("aborted", None, 0)
    assert left["ended_s"] == pytest.approx(0.4, abs=0.2)
    assert left["ended_s"] >= 0.4
    assert stayed["status"] == "error"


def test_an_answer_that_is_over_before_its_user_would_leave_is_an_ordinary_one(tmp_path: Path) -> None:
    staying = [request(0, abort_after_s=20.0), request(1, abort_after_tokens=4), request(2, abort_after_tokens=9)]
    with ScriptedServer(Normal()) as server:
        played = play(schedule(*staying, for_s=0.2), server.url, tmp_path)
    assert (played.requests["status"] == "ok").all()
    assert played.requests["output_digest"].notna().all()
    assert [played.row(id_)["leaves"] for id_ in range(3)] == [True, False, False]


def test_what_fails_before_its_user_leaves_is_a_failure(tmp_path: Path) -> None:
    leaving = [request(0, abort_after_s=5.0), request(1, abort_after_tokens=2)]
    with ScriptedServer(refuse(503, "busy")) as server:
        played = play(schedule(*leaving), server.url, tmp_path)
    assert set(played.requests["error"].str.partition(":")[0]) == {"http_status"}


def test_an_error_in_the_stream_before_the_user_leaves_is_the_servers(tmp_path: Path) -> None:
    def behave(sent: Request, peer: Peer) -> None:
        peer.send(CHUNKED_HEAD)
        peer.chunk(token_event([1]))
        peer.chunk(event({"error": {"message": "out of blocks"}}))
        peer.hang()

    with ScriptedServer(behave) as server:
        played = play(schedule(request(0, abort_after_s=0.3)), server.url, tmp_path)
    assert played.row(0)["error"] == "server_error: out of blocks"


def test_a_body_that_makes_no_sense_is_found_while_a_user_waits_to_leave(tmp_path: Path) -> None:
    def behave(sent: Request, peer: Peer) -> None:
        peer.send(CHUNKED_HEAD)
        peer.chunk(token_event([1]))
        peer.send(b"zzzz\r\n")
        peer.hang()

    with ScriptedServer(behave) as server:
        played = play(schedule(request(0, output_tokens=9, abort_after_tokens=5)), server.url, tmp_path)
    assert played.row(0)["error"].startswith("malformed_event: ")


def test_tokens_are_counted_also_where_the_server_gives_no_ids(tmp_path: Path) -> None:
    endless = Endless(ids=False)
    session = [
        request(0, session=0, output_tokens=1000, abort_after_tokens=5),
        request(1, None, session=0, turn=1, continues=0, output_tokens=1000, abort_after_tokens=1),
    ]
    with ScriptedServer(endless) as server:
        played = play(schedule(*session, for_s=2.0), server.url, tmp_path)
    assert list(played.requests["status"]) == ["aborted", "aborted"]
    assert played.row(0)["output_tokens_received"] is None  # no usage came, so nobody knows
    assert played.row(0)["first_token_s"] is not None
    assert len(server.requests[1].prompt) == 40  # nothing that is known was returned


def test_a_session_goes_on_with_what_came_before_its_user_left(tmp_path: Path) -> None:
    def behave(sent: Request, peer: Peer) -> None:
        (Normal() if len(server.requests) > 1 else Normal(gap_s=0.02))(sent, peer)

    session = [
        request(0, session=0, output_tokens=500, abort_after_tokens=3),
        request(1, None, session=0, turn=1, continues=0, think_s=0.05),
    ]
    with ScriptedServer(behave) as server:
        played = play(schedule(*session, for_s=2.0), server.url, tmp_path)
    first, second = server.requests
    received = played.row(0)["output_tokens_received"]
    assert second.prompt == [*first.prompt, *returned_ids(first)[:received], *segment_ids(2)]
    assert played.row(1)["intended_s"] == pytest.approx(played.row(0)["ended_s"] + 0.05, abs=1e-6)
    assert played.row(1)["status"] == "ok"


# sub-agents


def family(**changed: object) -> list[PlannedRequest]:
    """A turn, a branch of two requests from it, and the turn that waits for them."""
    return [
        request(0, session=0),
        request(1, None, session=0, turn=1, continues=0, branch=0),
        request(2, None, session=0, turn=2, continues=1, branch=0),
        request(3, None, session=0, turn=1, continues=0, think_s=0.02, **changed),
    ]


def test_a_branch_carries_the_turn_it_starts_from_and_the_next_turn_waits_for_it(tmp_path: Path) -> None:
    with ScriptedServer(Normal(first_s=0.03)) as server:
        played = play(schedule(*family(waits_for=(2,)), for_s=3.0), server.url, tmp_path)
    first, branch, last, after = server.requests
    context = [*first.prompt, *returned_ids(first)]
    assert branch.prompt == [*context, *segment_ids(2)]
    assert last.prompt == [*branch.prompt, *returned_ids(branch), *segment_ids(3)]
    assert after.prompt == [*context, *segment_ids(4)]
    rows = played.requests.set_index("id")
    assert rows["branch"].fillna(-1).to_dict() == {0: -1, 1: 0, 2: 0, 3: -1}
    assert rows.loc[3, "intended_s"] == pytest.approx(rows.loc[2, "ended_s"] + 0.02, abs=1e-6)
    assert (rows.loc[[1, 2, 3], "intended_basis"] == "previous turn").all()


def test_a_turn_that_does_not_wait_runs_beside_the_branch(tmp_path: Path) -> None:
    def together(sent: Request, peer: Peer) -> None:
        while len(server.requests) == 2 and not server.closing.wait(0.01):
            pass  # the branch is answered only once the session's next turn is there as well
        Normal()(sent, peer)

    with ScriptedServer(together) as server:
        played = play(schedule(*family(), for_s=3.0), server.url, tmp_path)
    assert (played.requests["status"] == "ok").all()
    assert server.peak == 2


def test_a_session_goes_on_after_a_branch_that_failed(tmp_path: Path) -> None:
    def behave(sent: Request, peer: Peer) -> None:
        (refuse(500, "no") if len(server.requests) == 2 else Normal())(sent, peer)

    with ScriptedServer(behave) as server:
        played = play(schedule(*family(waits_for=(2,)), for_s=3.0), server.url, tmp_path)
    causes = [error and error.partition(":")[0] for error in played.table.sort_by("id")["error"].to_pylist()]
    assert causes == [None, "http_status", "earlier_turn_failed", None]


# rewritten contexts


def test_a_compacted_turn_sends_its_own_prompt_alone(tmp_path: Path) -> None:
    compacted = (Segment(1, 20), Segment(77, 10), Segment(2, 5))
    session = [
        request(0, session=0),
        request(1, None, session=0, turn=1, continues=0, segments=compacted, carries=False),
        request(2, None, session=0, turn=2, continues=1),
    ]
    with ScriptedServer(Normal()) as server:
        played = play(schedule(*session, for_s=2.0), server.url, tmp_path)
    first, second, third = server.requests
    assert second.prompt == [*first.prompt, *segment_ids(77, 10), *segment_ids(2, 5)]
    assert third.prompt == [*second.prompt, *returned_ids(second), *segment_ids(3)]
    assert played.row(1)["prompt_tokens_planned"] == 35


def test_every_planned_request_has_one_row_whatever_its_users_do(tmp_path: Path) -> None:
    def moody(sent: Request, peer: Peer) -> None:
        moods = [Normal(), Normal(gap_s=0.03), refuse(500, "no"), hang]
        moods[sum(sent.prompt) % len(moods)](sent, peer)

    planned: list[PlannedRequest] = []
    for index in range(15):
        own = index * 10
        planned += [
            request(own, index * 0.02, session=index, abort_after_tokens=2 if index % 3 == 0 else None),
            request(own + 1, None, session=index, turn=1, continues=own, branch=0, abort_after_s=0.1),
            request(own + 2, None, session=index, turn=1, continues=own, branch=1),
            request(own + 3, None, session=index, turn=2, continues=own + 2, branch=1),
            request(own + 4, None, session=index, turn=1, continues=own, waits_for=(own + 1, own + 3)),
            request(own + 5, None, session=index, turn=2, continues=own + 4, think_s=0.2, carries=False),
        ]
    with ScriptedServer(moody) as server:
        played = play(schedule(*planned, for_s=0.8, timeout_s=0.4), server.url, tmp_path, drain_s=0.3)
    assert sorted(played.requests["id"]) == sorted(one.id for one in planned)
    assert set(played.requests["status"]) <= {"ok", "error", "unsent", "aborted"}
    assert (played.requests["sent_s"].notna() | played.requests["status"].isin(["unsent", "error"])).all()


def test_the_drain_ends_what_is_under_way_and_what_waits_for_it_has_its_row(tmp_path: Path) -> None:
    def behave(sent: Request, peer: Peer) -> None:
        (Normal() if len(sent.prompt) == 20 else hang)(sent, peer)

    with ScriptedServer(behave) as server:
        planned = schedule(*family(waits_for=(2,)), for_s=0.3)
        played = play(planned, server.url, tmp_path, drain_s=0.2)
    rows = played.requests.set_index("id")
    assert rows.loc[1, "error"].startswith("timeout: still under way 0.2 s after the last phase")
    assert rows["status"].to_dict() == {0: "ok", 1: "error", 2: "unsent", 3: "unsent"}
