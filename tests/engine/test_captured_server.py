"""A running server that answers as a real one did, at every endpoint that was captured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvbench.engine.base import Effective
from tests.engine.test_attached import Server, attach, quiet

pytestmark = pytest.mark.shared

ASKED = {
    "/health": "ep_health",
    "/version": "ep_version",
    "/v1/models": "ep_v1_models",
    "/server_info": "ep_server_info_json",
}
NOT_ASKED: dict[str, tuple[str, object]] = {
    "/ping": ("ep_ping", None),
    "/load": ("ep_load", {"server_load": 0}),
    "/is_sleeping": ("ep_is_sleeping", {"is_sleeping": False}),
    "/kv_event_sources": ("ep_kv_event_sources", {}),
}
"""What else there is, and what it says. None of it proves more: the load reads 0 unless a flag is given, and events
are asked of launched engines alone."""


def captured(folder: Path, name: str) -> tuple[int, str]:
    """Status and body; the line between them has the headers."""
    status, _, _, body = (folder / f"{name}.txt").read_text().split("\n", 3)
    return int(status.removeprefix("HTTP ")), body.strip()


@pytest.fixture
def folder(shared_dir: Path) -> Path:
    return shared_dir / "facts" / "vllm-0.32.0"


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    """The baseline before any load: 66 device blocks of 128 tokens, no tier."""
    running = Server()
    routes = ASKED | {path: name for path, (name, _) in NOT_ASKED.items()}
    running.get |= {path: captured(folder, name) for path, name in routes.items()}
    running.get["/metrics"] = (200, (folder / "baseline-idle.prom").read_text())
    yield running
    running.close()


def proven(server: Server) -> Effective:
    engine = attach(server.url, version="0.32.0")
    engine.start(quiet)
    return engine.effective()


def test_it_is_proven_from_five_of_its_endpoints_and_the_others_are_not_needed(server: Server) -> None:
    found = proven(server)
    assert (found.version, found.model, found.max_model_len) == ("0.32.0", "tiny", 8192)
    assert (found.device_blocks, found.block_tokens) == (66, 128)
    assert (found.kv_dtype, found.prefix_caching) == ("auto", True)
    assert (found.host_bytes, found.disk, found.differences, found.unknown) == (0, False, (), ())
    paths = {path for path, _ in server.seen}
    assert paths == {"/metrics", "/server_info?config_format=json", *ASKED} - {"/server_info"}


def test_its_own_configuration_tells_the_device_where_there_are_no_metrics(server: Server) -> None:
    server.get["/metrics"] = (404, "")
    found = proven(server)
    assert (found.device_blocks, found.block_tokens) == (66, 128)
    assert (found.kv_dtype, found.prefix_caching) == ("auto", True)
    assert (found.host_bytes, found.disk) == (None, None)
    assert found.unknown == ("that there is no host tier", "whether there is a disk tier")


def test_a_configuration_that_is_one_long_text_leaves_the_host_tier_unknown(server: Server, folder: Path) -> None:
    """As a server answers that does not know how to give it in parts."""
    server.get["/server_info"] = captured(folder, "ep_server_info")
    found = proven(server)
    assert (found.version, found.device_blocks, found.host_bytes) == ("0.32.0", 66, None)
    assert found.unknown == ("that there is no host tier",)


@pytest.mark.parametrize("path", NOT_ASKED)
def test_what_is_not_asked_says_what_the_notes_say(folder: Path, path: str) -> None:
    name, said = NOT_ASKED[path]
    status, body = captured(folder, name)
    assert (status, json.loads(body) if body else None) == (200, said)
