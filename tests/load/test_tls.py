"""Answers under TLS: the kernel's times, any cut, and certificates that nobody vouches for."""

from __future__ import annotations

import ssl
import time
from pathlib import Path

import numpy as np
import pytest

from kvbench.load.connection import Connection
from kvbench.workload.schedule import Segment
from tests.load import server as scripted
from tests.load.play import play, request, schedule
from tests.load.server import Normal, Peer, Request, ScriptedServer
from tests.load.test_client import cut_in_two_anywhere


def _trusted(certificate: tuple[Path, Path]) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's and a client's side."""
    key, cert = certificate
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(cert, key)
    return server_side, ssl.create_default_context(cafile=str(cert))


def test_tls_keeps_the_kernels_receive_times(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    context, trusting = _trusted(certificate)
    big = request(1, 0.05, segments=(Segment(3, 60_000),), output_tokens=4)
    with ScriptedServer(Normal(gap_s=0.01), tls=context) as server:
        played = play(schedule(request(0), big, request(2, 0.2)), server.url, tmp_path, tls=trusting)
    assert played.requests["error"].isna().all()
    assert played.row(0)["output_tokens_received"] == 4
    assert played.figures["unstamped_reads_share"] == 0
    assert len(next(r for r in server.requests if len(r.prompt) > 20).prompt) == 60_000


def test_an_answer_cut_in_two_anywhere_is_the_same_answer(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    server_side, client_side = _trusted(certificate)
    cut_in_two_anywhere("chunked", tmp_path, server_side=server_side, client_side=client_side)


def test_under_tls_a_token_has_the_time_at_which_it_arrived_however_late_it_is_read(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Given a client that gets round to each read of an answer 0.4 s late, and tokens that come further apart."""
    late_s, gap_s = 0.4, 0.6
    sent_s: list[float] = []
    usual = Connection.readable

    def late(self: Connection) -> None:
        if self._body is not None:
            time.sleep(late_s)
        usual(self)

    def one_by_one(request: Request, peer: Peer) -> None:
        peer.send(scripted.CHUNKED_HEAD)
        *tokens, usage, done = scripted.completion_events(request)
        for token in tokens:
            time.sleep(gap_s)
            sent_s.append(time.monotonic())
            peer.chunk(token)
        peer.chunk(usage + done)
        peer.end()

    monkeypatch.setattr(Connection, "readable", late)
    context, trusting = _trusted(certificate)
    with ScriptedServer(one_by_one, tls=context) as server:
        played = play(schedule(request(0, output_tokens=3)), server.url, tmp_path, tls=trusting)
    assert played.row(0)["status"] == "ok"
    off_s = played.tokens["t_s"] - (np.array(sent_s) - played.zero)
    assert off_s.abs().max() < late_s / 2
    assert played.figures["read_lag_p50_s"] >= 0.95 * late_s, "so much it would be off by the clock at the read"
    assert played.figures["unstamped_reads_share"] == 0


def test_tls_refuses_a_certificate_that_nobody_vouches_for(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    context, _ = _trusted(certificate)
    with ScriptedServer(Normal(), tls=context) as server:
        played = play(schedule(request(0)), server.url, tmp_path)
    assert played.row(0)["error"].startswith("connect: ")
    assert "CERTIFICATE_VERIFY_FAILED" in played.row(0)["error"]
    assert server.requests == []
