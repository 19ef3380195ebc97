"""One request at a time at a server that behaves as told: framing, failures, connections, addresses."""

from __future__ import annotations

import gzip
import socket
import ssl
import time
from pathlib import Path

import pytest

from kvbench.errors import InputError
from kvbench.load.client import Client
from kvbench.load.clock import Clock
from kvbench.load.exchange import Exchange
from kvbench.load.target import Target
from kvbench.record.tables import REQUESTS, TOKENS
from kvbench.workload.prompts import PromptWriter, prompt_digest
from kvbench.workload.schedule import Segment
from tests.load import server as scripted
from tests.load.play import play, request, schedule
from tests.load.server import (
    DONE,
    HEAD,
    SHORT,
    Behaviour,
    Hangup,
    Normal,
    Peer,
    Request,
    ScriptedServer,
    bad_gzip,
    cut_short,
    garbage,
    hang,
    interim_then_normal,
    not_a_stream,
    raw,
    reset_midway,
    silent_at,
    token_event,
    usage_event,
)


def test_a_row_says_everything_about_a_request(tmp_path: Path) -> None:
    with ScriptedServer(Normal(first_s=0.05, gap_s=0.01)) as server:
        played = play(schedule(request(5, 0.1, prefix=3, repeat_of=1)), server.url, tmp_path)
    row = played.row(5)
    assert list(played.requests) == REQUESTS.names
    assert list(played.tokens) == TOKENS.names
    assert row["arm"] == "baseline"
    assert (row["status"], row["error"], row["finish_reason"], row["http_status"]) == ("ok", None, "length", 200)
    assert (row["intended_s"], row["intended_basis"]) == (0.1, "schedule")
    assert 0.1 <= row["sent_s"] < row["first_token_s"] < row["last_token_s"] <= row["ended_s"]
    assert row["first_token_s"] - row["sent_s"] >= 0.05
    assert (row["prompt_tokens_planned"], row["prompt_tokens_engine"], row["cached_tokens"]) == (20, 20, 16)
    assert (row["output_tokens_asked"], row["output_tokens_received"], row["multi_token_events"]) == (4, 4, 0)
    assert (row["prefix"], row["repeat_of"], row["worker"]) == (3, 1, 0)
    sent = server.requests[0]
    assert row["prompt_digest"] == prompt_digest(sent.prompt)
    assert row["output_digest"] == "i" + prompt_digest(scripted.returned_ids(sent))
    assert played.tokens["index"].tolist() == [0, 1, 2, 3]
    assert played.tokens["t_s"].iloc[[0, -1]].tolist() == [row["first_token_s"], row["last_token_s"]]


def test_the_body_is_a_streamed_greedy_completion_of_token_ids_with_the_engines_own_fields(tmp_path: Path) -> None:
    with ScriptedServer(Normal()) as server:
        play(
            schedule(request(0, segments=(Segment(9, 5), Segment(10, 3)))),
            server.url + "/v1",
            tmp_path,
            api_key="secret",
            extra_body={"ignore_eos": True, "min_tokens": "output", "return_token_ids": True},
        )
    sent = server.requests[0]
    writer = PromptWriter((32, 255))
    expected = [*writer.segment_ids(Segment(9, 5)).tolist(), *writer.segment_ids(Segment(10, 3)).tolist()]
    assert sent.body == {
        "model": "tiny",
        "prompt": expected,
        "max_tokens": 4,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "min_tokens": 4,
        "return_token_ids": True,
    }
    assert sent.head.startswith("POST /v1/completions HTTP/1.1\r\n")
    assert "Authorization: Bearer secret\r\n" in sent.head + "\r\n"
    assert "X-Request-Id: kvbench-1-0" in sent.head


@pytest.mark.parametrize("behaviour", [scripted.with_length, scripted.until_close, scripted.gzipped, Normal()])
def test_bodies_of_every_framing(behaviour: Behaviour, tmp_path: Path) -> None:
    with ScriptedServer(behaviour) as server:
        played = play(schedule(*(request(i, i * 0.01) for i in range(3))), server.url, tmp_path)
    assert played.requests["status"].tolist() == ["ok"] * 3
    assert len(played.tokens) == 12


def _whole_answer(kind: str) -> bytes:
    """Head and body of an answer of two tokens; the second is in one chunk with the usage."""
    first, second = token_event([7]), token_event([8], "length") + usage_event(20, 2)
    if kind == "crlf":
        first, second = (part.replace(b"\n", b"\r\n") for part in (b": hello\n\n" + first, second))
    body = first + second + DONE
    if kind == "length":
        return scripted.HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    head = scripted.CHUNKED_HEAD
    parts = [first, second, DONE]
    if kind == "gzip":
        packed = gzip.compress(body, mtime=0)
        parts = [packed[:30], packed[30:]]
        head = scripted.HEAD + b"Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n"
    if kind == "interim":
        head = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + head
    end = b"0\r\nX-Trailer: 1\r\n\r\n" if kind == "crlf" else b"0\r\n\r\n"
    return head + b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + end


def cut_in_two_anywhere(
    kind: str, out: Path, *, server_side: ssl.SSLContext | None = None, client_side: ssl.SSLContext | None = None
) -> None:
    """An answer is the same answer at whichever byte it is cut, and its connection is used again."""
    whole = _whole_answer(kind)

    def cut(sent: Request, peer: Peer) -> None:
        place = int(sent.head.partition("X-Request-Id: kvbench-1-")[2].split("\r\n")[0])
        peer.send(whole[:place])
        time.sleep(0.002)
        peer.send(whole[place:])

    cuts = [request(i, None, output_tokens=2) for i in range(1, len(whole))]
    planned = schedule(*cuts, concurrency=8, for_s=60.0)
    with ScriptedServer(cut, tls=server_side) as server:
        played = play(planned, server.url, out, tls=client_side)
    assert played.requests["error"].isna().all(), played.requests["error"].dropna().iloc[0]
    assert (played.requests["output_tokens_received"] == 2).all()
    assert played.requests["output_digest"].nunique() == 1
    assert (played.requests["prompt_tokens_engine"] == 20).all()
    assert server.connections == 8  # so each was known to be over, and not before


@pytest.mark.parametrize("kind", ["chunked", "length", "gzip", "crlf", "interim"])
def test_an_answer_cut_in_two_anywhere_is_the_same_answer(kind: str, tmp_path: Path) -> None:
    cut_in_two_anywhere(kind, tmp_path)


@pytest.mark.parametrize(
    ("behaviour", "error"),
    [
        (scripted.refuse(500, "engine is dead"), 'http_status: 500 {"error": {"message": "engine is dead"}}'),
        (scripted.refuse(302, "go there"), "http_status: 302"),
        (hang, "timeout: no answer yet"),
        (reset_midway, "stream_broken: Connection reset by peer after 1 pieces"),
        (cut_short, "stream_broken: the server closed the connection after 1 pieces"),
        (scripted.stream(token_event([1]), end=False), "stream_broken: the server closed the connection after 1"),
        (scripted.stream(token_event([1])), "stream_broken: the stream ended with no finish_reason"),
        (scripted.stream(token_event([1] * 4, "length")), "stream_broken: the stream ended with no [DONE]"),
        (scripted.stream(b'data: {"error": {"message": "boom"}}\n\n', DONE), "server_error: boom"),
        (scripted.stream(b"data: {oops\n\n", DONE), "malformed_event: event 0 is '{oops'"),
        (scripted.stream(*SHORT), "short_output: 2 of 4 tokens, finish_reason length"),
        (garbage, "malformed_event: not an HTTP/1.1 response"),
        (raw(scripted.CHUNKED_HEAD + b"zz\r\n\r\n"), "malformed_event: a chunk's size is b'zz'"),
        (raw(scripted.CHUNKED_HEAD + b"1\r\nabc\r\n\r\n"), "malformed_event: a chunk goes on beyond its size"),
        (raw(b"HTTP/1.1 200 OK\r\nA: " + b"x" * 70_000), "malformed_event: not an HTTP/1.1 response"),
        (raw(b"HTTP/1.1 204 No\r\n\r\n"), "http_status: 204"),
        (raw(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n"), "http_status: 503"),
        (raw(b"HTTP/1.1 101 Switch\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n"), "malformed_event: not an HTTP"),
        (bad_gzip, "malformed_event: the body cannot be read"),
        (not_a_stream, "malformed_event: answered with application/json, not with an event stream"),
    ],
)
def test_failures_are_rows_with_their_cause(behaviour: Behaviour, error: str, tmp_path: Path) -> None:
    with ScriptedServer(behaviour) as server:
        played = play(schedule(request(0), timeout_s=0.4), server.url, tmp_path)
    row = played.row(0)
    assert row["status"] == "error"
    assert row["error"].startswith(error), row["error"]
    assert row["ended_s"] >= row["sent_s"]
    assert row["output_digest"] is None
    assert played.complete


def test_fewer_tokens_are_no_failure_where_the_length_is_not_forced(tmp_path: Path) -> None:
    with ScriptedServer(scripted.stream(*SHORT)) as server:
        played = play(schedule(request(0)), server.url, tmp_path, extra_body={})
    assert played.row(0)["status"] == "ok"
    assert played.row(0)["output_tokens_received"] == 2


def test_interim_responses_are_passed_over(tmp_path: Path) -> None:
    with ScriptedServer(interim_then_normal) as server:
        assert play(schedule(request(0)), server.url, tmp_path).row(0)["status"] == "ok"


def test_nobody_listening_is_refused_for_every_request(tmp_path: Path) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{reserved.getsockname()[1]}"
        played = play(schedule(request(0), request(1, 0.05)), url, tmp_path)
    assert played.requests["error"].tolist() == ["refused: Connection refused"] * 2
    assert played.requests["output_tokens_received"].tolist() == [0, 0]


def test_a_connection_that_nobody_accepts_is_given_up(tmp_path: Path) -> None:
    with silent_at("127.0.0.1") as port:
        played = play(schedule(request(0)), f"http://127.0.0.1:{port}", tmp_path, connect_timeout_s=0.3)
    assert played.row(0)["error"] == "connect: no connection after 0.3 s"


def test_several_tokens_in_one_chunk_are_counted_and_share_its_time(tmp_path: Path) -> None:
    pieces = [token_event([1]), token_event([2, 3, 4], "length"), usage_event(20, 4), DONE]
    with ScriptedServer(scripted.stream(*pieces)) as server:
        played = play(schedule(request(0)), server.url, tmp_path)
    times = played.tokens["t_s"].tolist()
    assert times[1] == times[2] == times[3]
    assert played.row(0)["multi_token_events"] == 1
    assert played.row(0)["output_tokens_received"] == 4


def test_events_larger_than_a_read_are_read_whole(tmp_path: Path) -> None:
    big = [scripted.event({"choices": [{"text": "x" * 5_000 * id_, "token_ids": [id_]}]}) for id_ in (1, 2, 3)]
    with ScriptedServer(scripted.stream(*big, token_event([4], "length"), usage_event(20, 4), DONE)) as server:
        played = play(schedule(*(request(i, i * 0.02) for i in range(3))), server.url, tmp_path)
    assert played.requests["status"].tolist() == ["ok"] * 3
    assert played.requests["output_tokens_received"].tolist() == [4] * 3


def test_a_connection_that_sent_more_than_its_answer_is_not_used_again(tmp_path: Path) -> None:
    def talkative(sent: Request, peer: Peer) -> None:
        peer.send(_whole_answer("length") + b"HTTP/1.1 200 OK\r\n")

    with ScriptedServer(talkative) as server:
        played = play(schedule(*(request(i, i * 0.05, output_tokens=2) for i in range(3))), server.url, tmp_path)
    assert played.requests["status"].tolist() == ["ok"] * 3
    assert server.connections == 3


def test_connections_are_reused(tmp_path: Path) -> None:
    with ScriptedServer(Normal()) as server:
        played = play(schedule(*(request(i, i * 0.03) for i in range(5))), server.url, tmp_path)
    assert server.connections == 1
    assert played.figures["connections_opened"] == 1


def test_a_stale_connection_is_replaced_once_and_counted(tmp_path: Path) -> None:
    def close_after_the_second(request: Request, peer: Peer) -> None:
        if request.nth_on_connection == 1:
            peer.reset()  # instead of an answer, on a connection that had been kept alive
        Normal()(request, peer)

    with ScriptedServer(close_after_the_second) as server:
        played = play(schedule(request(0), request(1, 0.1)), server.url, tmp_path)
    assert played.requests["status"].tolist() == ["ok", "ok"]
    assert played.figures["resent_on_stale_connection"] == 1
    assert len(server.requests) == 3


def test_nothing_is_sent_again_once_a_byte_of_the_answer_came(tmp_path: Path) -> None:
    def begin_and_reset(request: Request, peer: Peer) -> None:
        if request.nth_on_connection == 0:
            Normal()(request, peer)
        else:
            peer.send(b"HTTP/1.1 2")
            time.sleep(0.05)
            peer.reset()

    with ScriptedServer(begin_and_reset) as server:
        played = play(schedule(request(0), request(1, 0.1)), server.url, tmp_path)
    assert played.row(1)["error"].startswith("stream_broken")
    assert len(server.requests) == 2


def test_idle_connections_that_the_server_closes_are_forgotten(tmp_path: Path) -> None:
    def answer_and_close(request: Request, peer: Peer) -> None:
        Normal()(request, peer)
        raise scripted.Hangup

    with ScriptedServer(answer_and_close) as server:
        played = play(schedule(request(0), request(1, 0.15)), server.url, tmp_path)
    assert played.requests["status"].tolist() == ["ok", "ok"]
    assert played.figures["resent_on_stale_connection"] == 0


def test_ipv6(tmp_path: Path) -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        server = ScriptedServer(Normal(), family=socket.AF_INET6).__enter__()
    except OSError:
        pytest.skip("no IPv6 loopback here")
    try:
        assert play(schedule(request(0)), server.url, tmp_path).row(0)["status"] == "ok"
    finally:
        server.__exit__(None, None, None)


def test_a_name_with_several_addresses_is_tried_to_its_end(tmp_path: Path) -> None:
    with ScriptedServer(Normal()) as server:  # IPv4 only, while localhost may mean ::1 first
        url = f"http://localhost:{server.port}"
        assert play(schedule(request(0), request(1, 0.1)), url, tmp_path).requests["status"].tolist() == [
            "ok",
            "ok",
        ]


@pytest.mark.parametrize("url", ["ftp://host", "127.0.0.1:8000", "http://", "http://h:99999", "http://ünicode/"])
def test_a_wrong_url_is_told_at_once(url: str) -> None:
    with pytest.raises(InputError, match="base_url"):
        Target(url)


def test_a_key_cannot_smuggle_in_a_header() -> None:
    with pytest.raises(InputError, match="printable"):
        Target("http://127.0.0.1:1", headers={"Authorization": "Bearer a\r\nX-Evil: 1"})


@pytest.mark.parametrize("how", ["looked at later", "deadline", "left", "the server closes"])
def test_answers_that_end_together_are_looked_into_one_by_one_and_none_is_lost(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given three answers that came at once and time to look into one, then the others are complete too."""
    monkeypatch.setattr("kvbench.load.client.ENDINGS_NS", 0)
    over: list[Exchange] = []
    clock = Clock()
    normal = Normal(gap_s=0.05)

    def answer(request: Request, peer: Peer) -> None:
        normal(request, peer)
        if how == "the server closes":
            raise Hangup

    with ScriptedServer(answer) as server:
        target = Target(server.url)
        client = Client(target, clock, over.append)
        body = b'{"model": "tiny", "prompt": [40, 41], "max_tokens": 4, "stream": true}'
        exchanges = [Exchange(id_, f"x-{id_}", target.message(f"x-{id_}", body), 1 << 62) for id_ in range(3)]
        for exchange in exchanges:
            client.send(exchange)
        while not all(exchange.status for exchange in exchanges):
            client.poll(1_000_000)
        time.sleep(0.5)  # the rest of all three answers lies in the sockets
        while not over:
            client.poll(0)
        assert len(over) == 1
        waiting = [exchange for exchange in exchanges if exchange.over_ns is None]
        if how == "deadline":
            client.expire(1 << 63)
        elif how == "left":
            for exchange in waiting:
                client.abort(exchange, None)
        while len(over) < 3:
            client.poll(0)
        client.close()
    assert [exchange.failure for exchange in exchanges] == [None] * 3
    assert [exchange.chunks[-1] for exchange in exchanges] == [DONE] * 3


def test_an_answer_that_came_in_one_read_states_how_far_off_its_times_can_be(tmp_path: Path) -> None:
    def at_once(request: Request, peer: Peer) -> None:
        time.sleep(0.05)
        body = b"".join(scripted.completion_events(request))
        peer.send(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)

    with ScriptedServer(at_once) as server:
        played = play(schedule(request(0)), server.url, tmp_path)
    row = played.row(0)
    assert played.figures["merged_events_share"] == 0.75
    assert played.figures["timestamp_error_p99_s"] == pytest.approx(row["first_token_s"] - row["sent_s"], rel=0.05)
    assert played.figures["timestamp_error_p99_s"] > 0.05
