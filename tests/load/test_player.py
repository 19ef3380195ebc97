"""Playing schedules at a server that behaves as told: rows, times, failures, sessions, slots."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path

import pytest

from kvbench.errors import InputError
from kvbench.load.client import Target
from kvbench.record.tables import REQUESTS, TOKENS
from kvbench.workload.prompts import PromptWriter, prompt_digest
from kvbench.workload.schedule import Segment
from tests.load import server as scripted
from tests.load.play import play, request, schedule
from tests.load.server import DONE, Behaviour, Normal, Peer, Request, ScriptedServer, token_event, usage_event


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


def hang(request: Request, peer: Peer) -> None:
    peer.hang()


def reset_midway(request: Request, peer: Peer) -> None:
    peer.send(scripted.CHUNKED_HEAD)
    peer.chunk(token_event([1]))
    peer.reset()


def interim_then_normal(request: Request, peer: Peer) -> None:
    peer.send(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")
    Normal()(request, peer)


def garbage(request: Request, peer: Peer) -> None:
    peer.send(b"\x00\x01 this is not HTTP\r\n\r\n")


def cut_short(request: Request, peer: Peer) -> None:
    peer.send(scripted.HEAD + b"Content-Length: 5000\r\n\r\n" + token_event([1]))
    raise scripted.Hangup


def not_a_stream(request: Request, peer: Peer) -> None:
    body = json.dumps({"choices": [{"text": "hello", "finish_reason": "stop"}]}).encode()
    peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


def bad_gzip(request: Request, peer: Peer) -> None:
    peer.send(scripted.HEAD + b"Content-Encoding: gzip\r\nContent-Length: 9\r\n\r\nnot gzip!")


SHORT = [token_event([1]), token_event([2], "length"), usage_event(20, 2), DONE]


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
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        played = play(schedule(request(0)), url, tmp_path, connect_timeout_s=0.3)
        for filler in fillers:
            filler.close()
    assert played.row(0)["error"] == "connect: no connection after 0.3 s"


def test_several_tokens_in_one_chunk_are_counted_and_share_its_time(tmp_path: Path) -> None:
    pieces = [token_event([1]), token_event([2, 3, 4], "length"), usage_event(20, 4), DONE]
    with ScriptedServer(scripted.stream(*pieces)) as server:
        played = play(schedule(request(0)), server.url, tmp_path)
    times = played.tokens["t_s"].tolist()
    assert times[1] == times[2] == times[3]
    assert played.row(0)["multi_token_events"] == 1
    assert played.row(0)["output_tokens_received"] == 4


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


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    make += ["-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=localhost"]
    make += ["-addext", "subjectAltName=IP:127.0.0.1"]
    try:
        subprocess.run(make, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no openssl command to make a certificate with")
    return key, cert


def test_tls_keeps_the_kernels_receive_times(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    key, cert = certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    trusting = ssl.create_default_context(cafile=str(cert))
    big = request(1, 0.05, segments=(Segment(3, 60_000),), output_tokens=4)
    with ScriptedServer(Normal(gap_s=0.01), tls=context) as server:
        played = play(schedule(request(0), big, request(2, 0.2)), server.url, tmp_path, tls=trusting)
    assert played.requests["error"].isna().all()
    assert played.row(0)["output_tokens_received"] == 4
    assert played.figures["unstamped_reads_share"] == 0
    assert len(next(r for r in server.requests if len(r.prompt) > 20).prompt) == 60_000


def test_tls_refuses_a_certificate_that_nobody_vouches_for(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    key, cert = certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    with ScriptedServer(Normal(), tls=context) as server:
        played = play(schedule(request(0)), server.url, tmp_path)
    assert played.row(0)["error"].startswith("connect: ")
    assert "CERTIFICATE_VERIFY_FAILED" in played.row(0)["error"]
    assert server.requests == []


def test_the_schedule_is_kept_while_the_server_stands_still_and_lateness_counts(tmp_path: Path) -> None:
    planned = schedule(*(request(i, i * 0.05) for i in range(20)), for_s=1.0)
    with ScriptedServer(Normal()) as server:
        threading.Timer(0.45, server.gate.clear).start()
        threading.Timer(1.25, server.gate.set).start()
        played = play(planned, server.url, tmp_path)
    rows = played.requests
    assert (rows["status"] == "ok").all()
    arrived = sorted(sent.at - played.zero for sent in server.requests)
    assert all(abs(at - i * 0.05) < 0.25 for i, at in enumerate(arrived)), arrived
    ttft = rows["first_token_s"] - rows["intended_s"]
    assert ttft.max() > 0.5
    assert (ttft > 0.1).sum() >= 6


def test_a_request_that_goes_out_late_still_counts_from_its_intended_time(tmp_path: Path) -> None:
    session = [request(0, 0.0), request(1, None, continues=0, turn=1, think_s=0.05)]
    with ScriptedServer(Normal(first_s=0.2)) as server:
        played = play(schedule(*session, for_s=0.6), server.url, tmp_path)
    first, second = played.row(0), played.row(1)
    assert second["intended_basis"] == "previous turn"
    assert second["intended_s"] == pytest.approx(first["ended_s"] + 0.05, abs=1e-6)
    assert second["sent_s"] >= second["intended_s"]


def test_as_many_connections_as_the_schedule_needs(tmp_path: Path) -> None:
    planned = schedule(*(request(i, 0.05 + i * 0.001) for i in range(120)))
    with ScriptedServer(Normal(first_s=0.5)) as server:
        played = play(planned, server.url, tmp_path)
    assert server.peak == 120
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
    received = played.tokens.groupby("id").size()
    rows = played.requests.set_index("id")["output_tokens_received"].fillna(0)
    assert (rows[rows > 0] == received).all()
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


@pytest.mark.parametrize("url", ["ftp://host", "127.0.0.1:8000", "http://", "http://h:99999", "http://ünicode/"])
def test_a_wrong_url_is_told_at_once(url: str) -> None:
    with pytest.raises(InputError, match="base_url"):
        Target(url)


def test_a_key_cannot_smuggle_in_a_header() -> None:
    with pytest.raises(InputError, match="printable"):
        Target("http://127.0.0.1:1", api_key="a\r\nX-Evil: 1")
