"""What panels and recording rules ask of a candidate, the embedded vLLM tells with all its tiers under load."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import httpx
import pytest

from kvbench.engine.base import Launch
from kvbench.engine.create import create_engine
from kvbench.engine.environment import EngineEnvironment
from kvbench.engine.launch import plan_disk_directory
from kvbench.engine.ports import free_port
from kvbench.spec.loading import load_profile
from tests.canary.field import Track, driven, tokens
from tests.canary.prometheus_tools import running
from tests.dashboards.asking import Asker, filled_in, names_in, panel_queries, recorded
from tests.dashboards.made_up import FAILURES
from tests.dashboards.watched_host import VALUES, scraping, write_rules
from tests.embedded import embedded_engine

pytestmark = pytest.mark.engine

PREFIXES = [tokens(random.Random(n), 512) for n in range(24)]
"""Of 4 blocks each; the device holds a third of them, the host tier half, the disk all."""
TIERS = {"device": {"blocks": 40}, "host": {"size": "12MiB"}}
NOT_TOLD = {*FAILURES, "vllm:kv_offload_stores_skipped_total"}
"""Failures are counted from the first one on; stores are not skipped before a disk tier (vLLM refuses that)."""
CANDIDATE = 'track="canary"'
PANELS = [
    pytest.param(filled_in(query, VALUES), id=name)
    for name, query in panel_queries("overview", "sources", "transfer")
    if CANDIDATE in filled_in(query, VALUES)
]


def prefixed(rng: random.Random, number: int) -> list[int]:
    return rng.choice(PREFIXES) + tokens(rng, 32)


@pytest.fixture(scope="module")
def ask(engine_env: EngineEnvironment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asker]:
    """Of a Prometheus that has scraped it until something came from each source, and went each way."""
    folder, port = tmp_path_factory.mktemp("embedded"), free_port()
    engine, disk = embedded_engine(engine_env, port=port), folder / "kv"
    file = folder / "embedded.json"
    tiers = {**TIERS, "disk": {"path": str(disk)}}
    file.write_text(json.dumps({"name": "canary", "engine": engine, "tiers": tiers}))
    job = f'{{job_name: vllm, static_configs: [{{targets: ["127.0.0.1:{port}"], labels: {{track: canary}}}}]}}'
    launch = Launch(folder, folder / "log", plan_disk_directory(disk, "embedded-1"), "embedded-1")
    launched = create_engine(load_profile(file), launch)
    try:
        launched.start(lambda _: None)
        with (
            running(folder / "prometheus", scraping(write_rules(folder / "rules"), job)) as server,
            httpx.Client(base_url=server.url, timeout=10) as client,
            driven({port: Track(per_s=5.0, prompt=prefixed)}),
        ):
            it = Asker(client)
            for source in ("device", "host", "disk"):
                it.wait_for(f'rate(vllm:prompt_tokens_cached_by_source_total{{source="{source}"}}[1m]) > 0', 60)
            for way in ("load", "store", "tiering_read", "tiering_write"):  # a counter's first value is no growth
                it.wait_for(f"rate(vllm:kv_offload_{way}_time_total[1m]) > 0", 60)
            yield it
    finally:
        launched.stop()


@pytest.mark.parametrize("query", PANELS)
def test_a_panel_shows_what_it_tells(ask: Asker, query: str) -> None:
    if names_in(query) <= NOT_TOLD:
        assert isinstance(ask(query), list)
        return
    assert ask.numbers(query), query


@pytest.mark.parametrize(("record", "query"), [pytest.param(*each, id=each[0]) for each in recorded()])
def test_a_recording_rule_records_what_it_tells(ask: Asker, record: str, query: str) -> None:
    assert ask.numbers(query)
    assert ask.numbers(record)
