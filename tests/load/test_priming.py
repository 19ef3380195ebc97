"""Requests that fill the tiers and fail: each has its row before time zero, and the judge finds it there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kvbench.judge.priming import priming
from tests.judge.build import pair
from tests.load.play import play, request, schedule
from tests.load.server import Normal, Peer, Request, ScriptedServer, refuse


def test_half_of_the_documents_that_were_refused_are_counted(tmp_path: Path) -> None:
    """Given a server that refuses every second request before time zero and none after, then that is told."""
    prime = tuple(request(i, None, phase="prime", measured=False, output_tokens=1) for i in range(6))

    def moody(sent: Request, peer: Peer) -> None:
        refused = sent.output_tokens == 1 and len(server.requests) % 2 == 0
        (refuse(500, "no room " * 40) if refused else Normal())(sent, peer)

    with ScriptedServer(moody) as server:
        played = play(schedule(request(9, 0.0), request(10, 0.1), prime=prime), server.url, tmp_path)
    rows = played.requests[played.requests["phase"] == "prime"]
    assert sorted(rows["status"]) == ["error"] * 3 + ["ok"] * 3
    assert (rows["ended_s"] < 0).all()
    told = priming(replace(pair(1).candidate, requests=played.requests))
    assert (told.failed, told.sent, told.failed_later, told.measured) == (3, 6, 0, 2)
    assert told.text.startswith("3 of 6 requests that fill the tiers failed, such as 'http_status: 500 ")
    assert len(told.text) < 160, "a server's own words are cut"
