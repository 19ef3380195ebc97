"""What a real server says when it refuses a request is told in its own words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.load.play import play, request, schedule
from tests.load.server import ScriptedServer, raw

HEAD = b"HTTP/1.1 %d Sorry\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("err-badval", 400, "max_tokens must be at least 1, got -1. (parameter=max_tokens, value=-1)"),
        ("err-model", 404, "The model `nope` does not exist. Valid aliases: tiny."),
        ("err-toolong", 400, "maximum context length is 8192 tokens. However, your prompt contains 9000 input"),
    ],
)
def test_a_captured_refusal(shared_dir: Path, name: str, status: int, words: str, tmp_path: Path) -> None:
    body = (shared_dir / "facts" / "vllm-0.32.0" / f"{name}.json").read_bytes()
    assert json.loads(body)["error"]["code"] == status
    with ScriptedServer(raw(HEAD % (status, len(body)) + body)) as server:
        row = play(schedule(request(0)), server.url, tmp_path).row(0)
    assert (row["status"], row["http_status"]) == ("error", status)
    assert row["error"].startswith(f"http_status: {status} {{")
    assert words in row["error"]
