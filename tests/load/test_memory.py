"""What is still held of requests that are over: nothing of size, however long another one hangs."""

from __future__ import annotations

import gc
import json
import sys
import threading
import time
from pathlib import Path

from kvbench.load.client import Client
from kvbench.load.clock import Clock
from kvbench.load.deadlines import FEWEST, Deadlines
from kvbench.load.exchange import Exchange
from kvbench.load.player import Answered
from kvbench.load.target import Target
from tests.load import server as scripted
from tests.load.play import play, request, schedule
from tests.load.server import Normal, Peer, Request, ScriptedServer

ANSWERS, TOKENS = 40, 200


def held_bytes(exchange: Exchange) -> int:
    pieces = sum(map(sys.getsizeof, [*exchange.chunks, *exchange.times_ns, *exchange.reads, *exchange.stamps]))
    return pieces + len(exchange.message)


def test_of_answers_that_are_over_nothing_of_size_is_held_behind_a_request_that_hangs(tmp_path: Path) -> None:
    """Given a request that hangs, and many that are sent after it and answered, some of them before their users
    would leave."""
    begun_ns = time.monotonic_ns()
    held: dict[int, int] = {}
    answered = 0

    def first_hangs(sent: Request, peer: Peer) -> None:
        (scripted.hang if "X-Request-Id: kvbench-1-0\r\n" in sent.head + "\r\n" else Normal())(sent, peer)

    def look(_: Answered) -> None:
        nonlocal answered
        answered += 1
        if answered == ANSWERS:
            for each in gc.get_objects():
                if isinstance(each, Exchange) and each.over_ns is not None and (each.sent_ns or 0) > begun_ns:
                    held[each.id] = held_bytes(each)

    planned = [request(0, 0.0)]
    planned += [
        request(i, 0.1 + i / 200, output_tokens=TOKENS, abort_after_s=60.0 if i % 2 else None)
        for i in range(1, ANSWERS + 1)
    ]
    with ScriptedServer(first_hangs) as server:
        played = play(schedule(*planned, for_s=2.0, timeout_s=5.0), server.url, tmp_path, on_answered=look)
    assert (played.requests["status"] == "ok").sum() == ANSWERS
    assert held
    assert set(held.values()) == {0}
    received = [len(b"".join(scripted.completion_events(each))) for each in server.requests[1:]]
    assert sorted(each.bytes_ for each in played.answered if each.failure is None) == sorted(received)


def test_no_more_is_remembered_of_deadlines_than_twice_what_is_under_way() -> None:
    deadlines = Deadlines()
    hanging = Exchange(0, "hangs", b"", 10**6)
    deadlines.add(hanging.deadline_ns, hanging)
    for number in range(1, 20 * FEWEST):
        answered = Exchange(number, "answered", b"", 10**6 + number)
        deadlines.add(answered.deadline_ns, answered, kind=1)
        answered.over_ns = number
    assert len(deadlines) <= FEWEST + 1
    assert deadlines.next_ns == 10**6
    assert deadlines.take(10**6 - 1) is None
    assert deadlines.take(10**9) == (10**6, hanging, 0)
    assert deadlines.take(10**9) is None
    assert deadlines.next_ns is None


def test_deadlines_of_what_is_under_way_are_all_kept_in_their_order() -> None:
    deadlines = Deadlines()
    exchanges = [Exchange(number, "under way", b"", 0) for number in range(3 * FEWEST)]
    for exchange in reversed(exchanges):
        deadlines.add(exchange.id, exchange, kind=2)
    taken = [deadlines.take(number) for number in range(3 * FEWEST)]
    assert taken == [(number, exchanges[number], 2) for number in range(3 * FEWEST)]


def test_a_long_prompt_is_let_go_once_its_answer_has_begun() -> None:
    """Given an answer that has begun and goes on for long, then nobody holds what was sent for it; nor does the
    connection once the answer is over."""
    go_on = threading.Event()

    def begins(sent: Request, peer: Peer) -> None:
        peer.send(scripted.CHUNKED_HEAD)
        go_on.wait(10)
        for piece in scripted.completion_events(sent):
            peer.chunk(piece)
        peer.end()

    over: list[Exchange] = []
    with ScriptedServer(begins) as server:
        target = Target(server.url)
        client = Client(target, Clock(), over.append)
        message = target.message("x", json.dumps({"prompt": [40] * 300_000, "max_tokens": 4}).encode())
        before = sys.getrefcount(message)
        exchange = Exchange(1, "x", message, 1 << 62)
        client.send(exchange)
        while exchange.status is None:
            client.poll(1_000_000)
        assert exchange.message == b""
        assert sys.getrefcount(message) == before
        go_on.set()
        while not over:
            client.poll(1_000_000)
        assert sys.getrefcount(message) == before
        client.close()
    assert exchange.failure is None
