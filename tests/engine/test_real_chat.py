"""The embedded vLLM asked through its chat route: prompts of exactly the planned length, prefixes really shared."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from kvbench.compare.load_plan import prompts_of
from kvbench.engine.attached import AttachedEngine
from kvbench.engine.base import Endpoint, Launch
from kvbench.engine.create import create_engine
from kvbench.engine.environment import EngineEnvironment
from kvbench.engine.text_prompts import OPENING
from kvbench.engine.tiny_model import CHAT_TEMPLATE
from kvbench.load.run import run_load
from kvbench.record.tables import REQUESTS
from kvbench.spec.profile import Profile
from kvbench.workload.schedule import Segment
from kvbench.workload.storage import write_schedule
from tests.embedded import embedded_engine
from tests.load.play import plan_for, request, schedule

pytestmark = pytest.mark.engine

BLOCK = 128
PREFIX = 3 * BLOCK


def attached(base_url: str) -> Endpoint:
    spec = {"kind": "attached", "base_url": base_url, "model": "tiny", "api": "chat"}
    engine = AttachedEngine(
        Profile.model_validate({"name": "chat", "engine": spec}), Launch(Path(), Path("log"), None, "chat-1")
    )
    endpoint = engine.start(lambda line: None)
    assert not [text for text in engine.effective().unknown if "template" in text]
    return endpoint


def test_a_shared_prefix_is_cached_to_its_last_block_and_every_prompt_has_its_length(
    engine_env: EngineEnvironment, tmp_path: Path
) -> None:
    """Given the template of the tiny model, when prompts share three blocks, then three blocks are cached."""
    spec = {"name": "arm", "engine": embedded_engine(engine_env), "tiers": {"device": {"blocks": 66}}}
    profile = Profile.model_validate(spec)
    launched = create_engine(profile, Launch(tmp_path, tmp_path / "engine-1.log", None, "arm-1"))
    try:
        endpoint = attached(launched.start(lambda line: None).base_url)
        assert "<{{ message['role'] }}>" in CHAT_TEMPLATE
        assert endpoint.extra_prompt_tokens == len("<user>" + OPENING)
        assert endpoint.extra_tokens_behind == len("\n<assistant>")
        rows = played(endpoint, tmp_path)
        text = httpx.get(f"{endpoint.base_url}/metrics", trust_env=False, timeout=30).text
    finally:
        launched.stop()
    assert [row["status"] for row in rows] == ["ok"] * len(rows), [row["error"] for row in rows]
    assert all(row["prompt_tokens_engine"] == row["prompt_tokens_planned"] for row in rows)
    assert [row["prompt_tokens_planned"] for row in rows[1:]] == [PREFIX + 40, PREFIX + 41, 300, 301]
    assert [row["cached_tokens"] for row in rows[1:]] == [PREFIX, PREFIX, 0, 2 * BLOCK]
    assert all(row["output_tokens_received"] == 4 for row in rows[1:])
    assert all(row["output_digest"].startswith("i") for row in rows), "chats tell the ids of their tokens"
    assert "vllm:prompt_tokens_total" in text


def played(endpoint: Endpoint, tmp_path: Path) -> list[dict]:
    """Rows in the order of sending: a priming request, two of its prefix, two of another."""
    prime = request(0, None, segments=(Segment(1, PREFIX), Segment(2, 8)), output_tokens=1, phase="prime")
    sent = [
        request(1, 0.0, segments=(Segment(1, PREFIX), Segment(3, 40))),
        request(2, 1.0, segments=(Segment(1, PREFIX), Segment(4, 41))),
        request(3, 2.0, segments=(Segment(5, 2 * BLOCK), Segment(6, 44))),
        request(4, 3.0, segments=(Segment(5, 2 * BLOCK), Segment(7, 45))),
    ]
    write_schedule(schedule(*sent, prime=(prime,), for_s=4.0), tmp_path / "schedule.parquet")
    fields = prompts_of(endpoint)
    plan = plan_for(fields.pop("base_url"), tmp_path, **fields)
    result = run_load(plan, on_event=lambda _: None, should_stop=lambda: False)
    assert result.complete, json.dumps(result.figures)
    assert REQUESTS.names[0] == "id"
    return rows_of(tmp_path)


def rows_of(folder: Path) -> list[dict]:
    import pyarrow.parquet as pq

    return sorted(pq.read_table(folder / "requests.parquet").to_pylist(), key=lambda row: row["id"])
