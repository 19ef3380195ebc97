"""Connections that go wrong: whose fault it is, and that nothing is sent again behind anybody's back."""

from __future__ import annotations

import errno
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from kvbench.load.connection import CROSSED_NS, Connection
from kvbench.load.dialing import NEXT_ADDRESS_NS
from tests.load.play import Played, play, request, schedule
from tests.load.server import Normal, Peer, Request, ScriptedServer, full_queue, silent_at


def test_a_request_that_the_server_had_and_did_not_answer_is_not_sent_again(tmp_path: Path) -> None:
    """Given an engine that dies in prefill behind a gateway, then the next replica does not hide it."""

    def dies_at_the_second(request: Request, peer: Peer) -> None:
        if request.nth_on_connection == 1:
            time.sleep(2 * CROSSED_NS / 1e9)
            peer.reset()
        Normal()(request, peer)

    with ScriptedServer(dies_at_the_second) as server:
        played = play(schedule(request(0), request(1, 0.1)), server.url, tmp_path)
    assert played.requests["status"].tolist() == ["ok", "error"]
    assert played.row(1)["error"].startswith("stream_broken: ")
    assert played.row(1)["error"].endswith("before an answer began")
    assert played.figures["resent_on_stale_connection"] == 0
    assert len(server.requests) == 2


def test_a_host_without_a_free_port_is_the_clients_limit_and_no_error_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket.socket, "connect_ex", lambda _socket, _address: errno.EADDRNOTAVAIL)
    played = play(schedule(request(0)), "http://127.0.0.1:9", tmp_path)
    assert played.row(0)["error"] == f"client_limit: {os.strerror(errno.EADDRNOTAVAIL)}"


def test_a_process_without_a_free_descriptor_is_the_clients_limit_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given two requests under way and no descriptor for a third."""
    opened: list[Connection] = []

    def open_two(*arguments: object) -> Connection:
        if len(opened) == 2:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        opened.append(Connection(*arguments))  # type: ignore[arg-type]
        return opened[-1]

    monkeypatch.setattr("kvbench.load.client.Connection", open_two)
    with ScriptedServer(Normal(first_s=0.3)) as server:
        played = play(schedule(*(request(i, i * 0.02) for i in range(3))), server.url, tmp_path)
    assert played.requests.sort_values("id")["status"].tolist() == ["ok", "ok", "error"]
    assert played.row(2)["error"] == f"client_limit: {os.strerror(errno.EMFILE)}"


def test_a_server_that_is_away_is_told_although_this_host_lacks_another_kind_of_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a name with two addresses, at one of which nobody listens; the other is of a kind that is not here."""
    connect = socket.socket.connect_ex

    def to_one_kind_only(sock: socket.socket, address: tuple[str, int]) -> int:
        return connect(sock, address) if address[0] == "127.0.0.1" else errno.EADDRNOTAVAIL

    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in ("127.0.0.1", "127.0.0.2")]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        monkeypatch.setattr(socket.socket, "connect_ex", to_one_kind_only)
        played = play(schedule(request(0)), f"http://both:{port}", tmp_path)
    assert played.row(0)["error"] == "refused: Connection refused"


LATE_S = 0.5


def name_of(monkeypatch: pytest.MonkeyPatch, port: int, *hosts: str) -> str:
    """The URL of a name that has these addresses."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in hosts]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    return f"http://several:{port}"


@contextmanager
def accepts_late(host: str) -> Iterator[ScriptedServer]:
    """A server that accepts a connection `LATE_S` after it was asked for; the kernel asks again after a second."""
    with ScriptedServer(Normal(), host=host, backlog=0) as server:
        server.stop_accepting()
        with full_queue((host, server.port), 2):
            before = asking(server.port)
            with later(server, lambda: bool(asking(server.port) - before), server.accepting):
                yield server


def asking(port: int) -> set[int]:
    """Local ports from which this process asks for a connection to `port`."""
    connections = psutil.Process().net_connections("tcp")
    return {
        each.laddr.port for each in connections if each.status == psutil.CONN_SYN_SENT and each.raddr.port == port
    }


@contextmanager
def later(server: ScriptedServer, has_begun: Callable[[], bool], event: threading.Event) -> Iterator[None]:
    """Within the block `event` is set `LATE_S` after `has_begun`."""

    def wait() -> None:
        while not (has_begun() or server.closing.wait(0.01)):
            continue
        server.closing.wait(LATE_S)
        event.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    try:
        yield
    finally:
        server.closing.set()
        waiting.join()


def sockets() -> int:
    """How many this process has."""
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sum(str(link.readlink()).startswith("socket:") for link in links)


def test_an_address_that_does_not_answer_is_not_waited_for_and_not_tried_first_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = schedule(request(0), request(1, 0.9), request(2, 0.9), for_s=1.2)
    with ScriptedServer(Normal(gap_s=0.02)) as server, silent_at("127.0.0.2", server.port):
        url = name_of(monkeypatch, server.port, "127.0.0.2", "127.0.0.1")
        played = play(planned, url, tmp_path, connect_timeout_s=5.0)
    assert played.requests["status"].tolist() == ["ok"] * 3
    rows = [played.row(id_) for id_ in range(3)]
    connecting_s = [None if row["connected_s"] is None else row["connected_s"] - row["sent_s"] for row in rows]
    assert NEXT_ADDRESS_NS / 1e9 <= connecting_s[0] < 2.0
    assert connecting_s[1:].count(None) == 1, "one of them has the first one's connection"
    assert next(each for each in connecting_s[1:] if each is not None) < NEXT_ADDRESS_NS / 1e9
    assert played.figures["connections_opened"] == 3


def test_an_address_that_answers_late_is_not_given_up_for_one_where_nobody_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with accepts_late("127.0.0.2") as server:
        url = name_of(monkeypatch, server.port, "127.0.0.2", "127.0.0.1")
        played = play(schedule(request(0)), url, tmp_path, connect_timeout_s=20.0)
    row = played.row(0)
    assert row["status"] == "ok", row["error"]
    assert row["connected_s"] - row["sent_s"] > 1.5 * NEXT_ADDRESS_NS / 1e9
    assert played.figures["connections_opened"] == 2


def test_all_addresses_together_have_the_time_of_one_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with silent_at("127.0.0.1") as port, silent_at("127.0.0.2", port):
        url = name_of(monkeypatch, port, "127.0.0.1", "127.0.0.2")
        played = play(schedule(request(0)), url, tmp_path, connect_timeout_s=1.0)
    row = played.row(0)
    assert row["error"] == "connect: no connection after 1 s"
    assert 1.0 <= row["ended_s"] - row["sent_s"] < 1.9
    assert row["connected_s"] is None
    assert played.figures["connections_opened"] == 2
    assert played.figures["connect_max_s"] is None


def test_a_user_who_leaves_while_it_is_connected_leaves_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sockets()
    with silent_at("127.0.0.1") as port, silent_at("127.0.0.2", port):
        url = name_of(monkeypatch, port, "127.0.0.1", "127.0.0.2")
        played = play(schedule(request(0, abort_after_s=0.4)), url, tmp_path)
    assert played.row(0)["status"] == "aborted"
    assert sockets() == before


class TestSlowConnections:
    """To connect is part of a request's latency, no lateness of the client's, and told apart from both."""

    def test_of_tcp(self, tmp_path: Path) -> None:
        with accepts_late("127.0.0.1") as server:
            played = play(schedule(request(0), request(1, 4.0), for_s=4.3), server.url, tmp_path)
        self.check(played)

    def test_of_tls(self, certificate: tuple[Path, Path], tmp_path: Path) -> None:
        key, cert = certificate
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        with ScriptedServer(Normal(), tls=context) as server:
            server.gate.clear()
            trusting = ssl.create_default_context(cafile=str(cert))
            with later(server, lambda: server.accepted > 0, server.gate):
                played = play(schedule(request(0), request(1, 2.0), for_s=2.3), server.url, tmp_path, tls=trusting)
        self.check(played)

    def check(self, played: Played) -> None:
        first, second, slow_s = played.row(0), played.row(1), 0.8 * LATE_S
        assert (first["status"], second["status"]) == ("ok", "ok")
        assert first["connected_s"] - first["sent_s"] > slow_s
        assert first["first_token_s"] - first["intended_s"] > slow_s
        assert first["first_token_s"] - first["connected_s"] < slow_s
        assert first["sent_s"] - first["intended_s"] < slow_s / 2
        assert second["connected_s"] is None, "it went out on the first one's connection"
        assert played.figures["send_lag_max_s"] < slow_s / 2
        assert played.figures["connect_max_s"] == pytest.approx(first["connected_s"] - first["sent_s"])
        assert played.figures["connect_p50_s"] == played.figures["connect_max_s"]
