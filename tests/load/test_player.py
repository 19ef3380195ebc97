"""Playing schedules at a server that behaves as told: times, sessions, slots, the end."""

from __future__ import annotations

import pkgutil
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest

from kvbench.judge.latency import RoundLatencies
from kvbench.load.agenda import Turn
from kvbench.load.player import Answered, Player
from kvbench.workload.prompts import PromptWriter
from kvbench.workload.schedule import Schedule, Segment
from tests.judge.build import arm_round
from tests.load import server as scripted
from tests.load.play import plan_for, play, request, schedule
from tests.load.server import (
    DONE,
    SHORT,
    Normal,
    Peer,
    Request,
    ScriptedServer,
    garbage,
    hang,
    reset_midway,
    usage_event,
)


@contextmanager
def standing_still(server: ScriptedServer, for_s: float, *, after: int, idle: bool = False) -> Iterator[None]:
    """Once so many requests have come, the server answers nobody for a while.

    `idle`: from a moment on in which nobody waits for an answer, of a server that answers once on a connection.
    """

    def somebody_waits() -> bool:
        return server.running > 0 or server.accepted > len(server.requests)

    def stand_still() -> None:
        while len(server.requests) < after or (idle and somebody_waits()):
            time.sleep(0.002)
        server.gate.clear()
        time.sleep(for_s)
        server.gate.set()

    standing = threading.Thread(target=stand_still, daemon=True)
    standing.start()
    yield
    standing.join()


def test_the_schedule_is_kept_while_the_server_stands_still_and_lateness_counts(tmp_path: Path) -> None:
    planned = schedule(*(request(i, i * 0.05) for i in range(20)), for_s=1.0)

    with ScriptedServer(Normal()) as server, standing_still(server, 0.8, after=9):
        played = play(planned, server.url, tmp_path)
    rows = played.requests
    assert (rows["status"] == "ok").all()
    arrived = sorted(sent.at - played.zero for sent in server.requests)
    assert all(abs(at - i * 0.05) < 0.25 for i, at in enumerate(arrived)), arrived
    ttft = rows["first_token_s"] - rows["intended_s"]
    assert ttft.max() > 0.5
    assert (ttft > 0.1).sum() >= 6


def test_p99_shows_a_stall_of_five_seconds_in_full_and_counted_from_the_actual_send_the_same_run_hides_it(
    certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    """Given a server that stands still in the middle of the round, and requests that each need a connection, which
    comes about only once it goes on: then they go out late, and whoever counts from there sees nothing."""
    stall_s, gap_s, count = 5.0, 0.025, 320
    key, cert = certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)

    planned = schedule(*(request(i, i * gap_s) for i in range(count)), for_s=count * gap_s)
    trusting = ssl.create_default_context(cafile=str(cert))
    slow = ScriptedServer(scripted.until_close, tls=context)
    with slow as server, standing_still(server, stall_s, after=count // 6, idle=True):
        played = play(planned, server.url, tmp_path, tls=trusting)
    rows = played.requests
    assert (rows["status"] == "ok").all()
    recorded = arm_round("base", 1, rows, played.tokens, load={})
    (told_s,) = RoundLatencies(recorded, timeout_s=30.0).sample("ttft", "all").quantiles(0.99)
    assert told_s > 0.95 * stall_s
    assert (rows["first_token_s"] - rows["connected_s"]).quantile(0.99) < stall_s / 2
    assert (rows["sent_s"] - rows["intended_s"]).max() < stall_s / 5, "the client itself was in time"


def test_a_stall_hides_where_a_client_waits_for_answers_before_it_sends_and_counts_from_then(
    tmp_path: Path,
) -> None:
    stall_s, gap_s, count = 1.5, 0.01, 250

    def ttft(planned: Schedule, out: Path) -> pd.DataFrame:
        """The server stands still for a while in the middle of the round."""
        out.mkdir()
        with ScriptedServer(Normal()) as server, standing_still(server, stall_s, after=50):
            rows = play(planned, server.url, out).requests
        return rows[rows["status"] == "ok"]

    on_time = ttft(schedule(*(request(i, i * gap_s) for i in range(count)), for_s=2.6), tmp_path / "open")
    from_intended = on_time["first_token_s"] - on_time["intended_s"]
    assert len(on_time) == count
    assert from_intended.quantile(0.99) > stall_s * 0.9
    assert (from_intended > stall_s / 2).mean() == pytest.approx(stall_s / 2 / (count * gap_s), abs=0.15)
    # A client that sends the next request once the last is answered, and counts from then, saw one slow request.
    one_by_one = schedule(*(request(i, None) for i in range(4000)), concurrency=1, for_s=4.0)
    waiting = ttft(one_by_one, tmp_path / "closed")
    from_sent = waiting["first_token_s"] - waiting["sent_s"]
    assert len(waiting) > count
    assert from_sent.max() > stall_s * 0.9
    assert from_sent.quantile(0.99) < stall_s / 5


def test_a_request_that_goes_out_late_still_counts_from_its_intended_time(tmp_path: Path) -> None:
    session = [request(0, 0.0), request(1, None, continues=0, turn=1, think_s=0.05)]
    with ScriptedServer(Normal(first_s=0.2)) as server:
        played = play(schedule(*session, for_s=0.6), server.url, tmp_path)
    first, second = played.row(0), played.row(1)
    assert second["intended_basis"] == "previous turn"
    assert second["intended_s"] == pytest.approx(first["ended_s"] + 0.05, abs=1e-6)
    assert second["sent_s"] >= second["intended_s"]


def test_as_many_connections_as_the_schedule_needs(tmp_path: Path) -> None:
    def answer_once_all_are_here(sent: Request, peer: Peer) -> None:
        while len(server.requests) < 120 and not server.closing.wait(0.01):
            pass
        Normal()(sent, peer)

    planned = schedule(*(request(i, 0.05 + i * 0.001) for i in range(120)))
    with ScriptedServer(answer_once_all_are_here) as server:
        played = play(planned, server.url, tmp_path)
    assert played.figures["connections_opened"] == 120
    assert (played.requests["status"] == "ok").all()


def test_sessions_carry_the_tokens_really_returned(tmp_path: Path) -> None:
    session = [request(0), *(request(i, None, session=0, turn=i, continues=i - 1, think_s=0.02) for i in (1, 2))]
    with ScriptedServer(Normal()) as server:
        played = play(schedule(*session, for_s=1.0), server.url, tmp_path)
    first, second, third = server.requests
    own = PromptWriter((32, 255)).segment_ids(Segment(2, 20)).tolist()
    assert second.prompt == [*first.prompt, *scripted.returned_ids(first), *own]
    assert third.prompt[: len(second.prompt) + 4] == [*second.prompt, *scripted.returned_ids(second)]
    assert played.row(2)["prompt_tokens_planned"] == len(third.prompt) == 68
    assert played.figures["substituted_turns"] == 0


def test_turns_after_a_failed_one_are_rows_too(tmp_path: Path) -> None:
    session = [request(0), *(request(i, None, turn=i, continues=i - 1) for i in (1, 2))]
    with ScriptedServer(scripted.refuse(503, "busy")) as server:
        played = play(schedule(*session, request(3, 0.1)), server.url, tmp_path)
    causes = played.requests.set_index("id")["error"].str.partition(":")[0]
    assert causes.to_dict() == {
        0: "http_status",
        1: "earlier_turn_failed",
        2: "earlier_turn_failed",
        3: "http_status",
    }
    assert len(server.requests) == 2


def test_a_server_that_returns_no_ids_has_the_sessions_carry_other_tokens_and_says_so(tmp_path: Path) -> None:
    text = scripted.event({"choices": [{"text": "word", "finish_reason": None}]})
    last = scripted.event({"choices": [{"text": "s", "finish_reason": "length"}]})
    pieces = [text, text, text, last, usage_event(20, 4), DONE]
    session = [request(0), request(1, None, turn=1, continues=0)]
    with ScriptedServer(scripted.stream(*pieces)) as server:
        played = play(schedule(*session), server.url, tmp_path)
    assert played.figures["substituted_turns"] == 1
    assert len(server.requests[1].prompt) == 20 + 4 + 20
    assert played.row(0)["output_digest"].startswith("t")


def test_a_closed_loop_never_exceeds_its_concurrency(tmp_path: Path) -> None:
    planned = schedule(*(request(i, None) for i in range(200)), concurrency=3, for_s=0.5)
    with ScriptedServer(Normal(first_s=0.02)) as server:
        played = play(planned, server.url, tmp_path)
    assert server.peak == 3
    rows = played.requests
    assert len(rows) == 200
    assert (rows["status"] == "ok").sum() == len(server.requests) > 20
    unsent = rows[rows["status"] == "unsent"]
    assert not unsent["measured"].any()
    assert unsent["sent_s"].isna().all()


def test_priming_is_one_after_the_other_before_time_zero(tmp_path: Path) -> None:
    prime = tuple(request(i, None, phase="prime", measured=False) for i in range(4))
    with ScriptedServer(Normal(first_s=0.02)) as server:
        played = play(schedule(request(9, 0.0), prime=prime), server.url, tmp_path)
    primed = played.requests[played.requests["phase"] == "prime"]
    assert len(primed) == 4
    assert (primed["ended_s"] < 0).all()
    assert (primed["sent_s"].iloc[1:].to_numpy() > primed["ended_s"].iloc[:-1].to_numpy()).all()
    assert server.peak == 1
    assert [event["done"] for event in played.events if event["event"] == "prime"] == [1, 2, 3, 4]
    assert played.row(9)["sent_s"] > 0


def test_what_is_under_way_at_the_end_has_the_drain_time_and_then_counts_as_timed_out(tmp_path: Path) -> None:
    with ScriptedServer(hang) as server:
        begun = time.monotonic()
        played = play(schedule(request(0), for_s=0.2), server.url, tmp_path, drain_s=0.3)
    assert time.monotonic() - begun < 3
    assert played.row(0)["error"] == "timeout: still under way 0.3 s after the last phase"
    assert played.row(0)["ended_s"] == pytest.approx(0.5, abs=0.3)


def test_unless_said_what_is_under_way_at_the_end_has_the_time_that_every_request_has(tmp_path: Path) -> None:
    """A shorter drain makes errors of answers that are as good as those before them."""

    def long_for_the_first(sent: Request, peer: Peer) -> None:
        (Normal(first_s=0.7) if sent.prompt == first else hang)(sent, peer)

    first = PromptWriter((32, 255)).segment_ids(Segment(1, 20)).tolist()
    with ScriptedServer(long_for_the_first) as server:
        planned = schedule(request(0, 0.15), request(1, 0.15), for_s=0.2, timeout_s=1.2)
        assert plan_for(server.url, tmp_path).drain_s is None
        played = play(planned, server.url, tmp_path)
    assert played.row(0)["status"] == "ok"
    assert played.row(1)["error"] == "timeout: no answer yet"
    assert played.row(1)["ended_s"] == pytest.approx(1.35, abs=0.3)


def test_the_time_out_counts_from_the_intended_time(tmp_path: Path) -> None:
    with ScriptedServer(hang) as server:
        played = play(schedule(request(0, 0.2), for_s=0.3, timeout_s=0.5), server.url, tmp_path)
    assert played.row(0)["ended_s"] == pytest.approx(0.7, abs=0.3)


def test_every_planned_request_has_exactly_one_row(tmp_path: Path) -> None:
    def moody(sent: Request, peer: Peer) -> None:
        behaviours = [Normal(), scripted.refuse(500, "no"), reset_midway, garbage, scripted.stream(*SHORT), hang]
        behaviours[sum(sent.prompt) % len(behaviours)](sent, peer)

    planned = [request(i, i * 0.01) for i in range(40)]
    planned += [request(100 + i, None, turn=1, continues=i, think_s=0.1) for i in range(0, 40, 3)]
    with ScriptedServer(moody) as server:
        played = play(schedule(*planned, for_s=0.5, timeout_s=0.3), server.url, tmp_path)
    assert sorted(played.requests["id"]) == sorted(one.id for one in planned)
    received = {row["id"]: row["output_tokens_received"] for row in played.table.to_pylist()}
    assert played.tokens.groupby("id").size().to_dict() == {id_: count for id_, count in received.items() if count}
    assert (
        len(played.answered)
        == played.figures["requests"]
        == len(played.requests[played.requests["sent_s"].notna()])
    )


def test_progress_tells_how_it_goes(tmp_path: Path) -> None:
    with ScriptedServer(Normal(first_s=0.01)) as server:
        played = play(schedule(*(request(i, i * 0.1) for i in range(13)), for_s=1.3), server.url, tmp_path)
    progress = [event for event in played.events if event["event"] == "progress"]
    assert progress
    assert progress[0]["t_s"] == pytest.approx(1.0, abs=0.3)
    assert 8 <= int(str(progress[0]["done"])) <= 12
    assert progress[0]["failed"] == 0
    assert 0.01 <= float(str(progress[0]["ttft_p50_s"])) < 0.3


@pytest.mark.parametrize(
    "held_up",
    [
        *("client.Client.send", "client.Client.expire", "connection.Connection.readable", "leaving.Leaving.read"),
        *("refusals.Taken.over", "player.Player._record", "who is told of answers"),
    ],
)
def test_whatever_holds_up_the_loop_is_a_stall_in_full(
    held_up: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Given one call after time zero that takes 0.3 s, of any that are made between two looks at the sockets."""
    held: list[None] = []

    def hold_up_once() -> None:
        if not held:
            held.append(None)
            time.sleep(0.3)

    def told(_: Answered) -> None:
        if "." not in held_up:
            hold_up_once()

    if "." in held_up:
        name = f"kvbench.load.{held_up}"
        usual = pkgutil.resolve_name(name)
        monkeypatch.setattr(name, lambda *given: (hold_up_once(), usual(*given))[1])
    with ScriptedServer(Normal(first_s=0.05)) as server:
        played = play(schedule(request(0, 0.05)), server.url, tmp_path, on_answered=told)
    assert held
    assert played.figures["loop_stall_max_s"] >= 0.3


def test_to_wait_for_the_server_is_no_stall_nor_is_what_came_before_time_zero(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    usual = Player._encode

    def slow(self: Player, turn: Turn) -> None:
        time.sleep(1.5)  # prompts of the first seconds are made before the round
        usual(self, turn)

    monkeypatch.setattr(Player, "_encode", slow)
    with ScriptedServer(Normal(first_s=1.5)) as server:
        played = play(schedule(request(0), for_s=0.1), server.url, tmp_path)
    assert played.row(0)["status"] == "ok"
    assert played.figures["loop_stall_max_s"] < 1.0
