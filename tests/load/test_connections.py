"""Connections that go wrong: whose fault it is, and that nothing is sent again behind anybody's back."""

from __future__ import annotations

import errno
import os
import socket
import time
from pathlib import Path

import pytest

from kvbench.load.connection import CROSSED_NS, Connection
from tests.load.play import play, request, schedule
from tests.load.server import Normal, Peer, Request, ScriptedServer


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
