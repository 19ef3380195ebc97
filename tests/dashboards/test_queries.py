"""Every panel's and every recording rule's query, asked of a real Prometheus with data, returns data."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator

import httpx
import pytest
import yaml

from kvbench.dashboards.generate import BOARDS
from kvbench.spec.shipped import shipped_folder
from tests.canary.prometheus_tools import running
from tests.dashboards.exporter import exporter

SHIPPED = shipped_folder("dashboards")
VALUES = {
    "label": "track", "baseline": "stable", "candidate": "canary", "ttft_budget": "2.5", "itl_budget": "0.1",
    "node": "host", "mount": "/mnt/kv_cache", "device": "nvme0n1", "gate": "g", "rule": "ttft-p99",
    "__rate_interval": "1m",
}  # fmt: skip
CONFIG = """\
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{rules}/recording-rules.yaml, {rules}/alerting-rules.yaml]
scrape_configs:
  - {{job_name: vllm, metrics_path: /engine, static_configs: [
      {{targets: ["127.0.0.1:{port}"], labels: {{track: stable}}}}]}}
  - {{job_name: vllm-canary, metrics_path: /engine, static_configs: [
      {{targets: ["127.0.0.1:{port}"], labels: {{track: canary}}}}]}}
  - {{job_name: node, metrics_path: /node, static_configs: [
      {{targets: ["127.0.0.1:{port}"], labels: {{instance: host}}}}]}}
  - {{job_name: gate, metrics_path: /gate, honor_labels: true, static_configs: [{{targets: ["127.0.0.1:{port}"]}}]}}
"""
Ask = Callable[[str], list[object]]


def panels(name: str) -> list[dict[str, object]]:
    return [
        p for p in json.loads((SHIPPED / "grafana" / f"{name}.json").read_text())["panels"] if p["type"] != "row"
    ]


def filled_in(query: str) -> str:
    """As Grafana would send it."""
    return re.sub(r"\$(\w+)", lambda found: VALUES[found[1]], query)


PANELS = [
    pytest.param(target["expr"], id=f"{name}: {panel['title']} {target['refId']}")
    for name in BOARDS
    for panel in panels(name)
    for target in panel["targets"]  # type: ignore[attr-defined]
]
RECORDED = [
    pytest.param(rule["record"], rule["expr"], id=rule["record"])
    for group in yaml.safe_load((SHIPPED / "prometheus" / "recording-rules.yaml").read_text())["groups"]
    for rule in group["rules"]
]


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """A Prometheus that has scraped everything a few times; the function returns what a query finds now."""
    with exporter() as served:
        configuration = CONFIG.format(port=served, rules=SHIPPED / "prometheus")
        with (
            running(tmp_path_factory.mktemp("prometheus"), configuration) as server,
            httpx.Client(base_url=server.url, timeout=10) as client,
        ):
            yield _asker(client)


def _asker(client: httpx.Client) -> Ask:
    def ask(query: str) -> list[object]:
        answer = client.get("/api/v1/query", params={"query": query})
        assert answer.status_code == 200, f"{query}: {answer.text}"
        found: list[object] = answer.json()["data"]["result"]
        return found

    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if len(ask("count_over_time(kvbench:source_share:ratio_rate5m[1m]) > 2")) >= 8:
            return ask
        time.sleep(0.3)
    raise AssertionError("no data within a minute")


@pytest.mark.parametrize("query", PANELS)
def test_a_panel_shows_data(ask: Ask, query: str) -> None:
    assert ask(filled_in(query)), filled_in(query)


@pytest.mark.parametrize(("record", "query"), RECORDED)
def test_a_recording_rule_has_data_and_is_recorded(ask: Ask, record: str, query: str) -> None:
    assert ask(query)
    assert ask(record)


def test_the_shares_of_all_sources_add_up_to_one(ask: Ask) -> None:
    (one, two) = ask("sum by (track) (kvbench:source_share:ratio_rate5m)")
    assert [float(each["value"][1]) for each in (one, two)] == pytest.approx([1.0, 1.0])  # type: ignore[index]


def test_no_alert_has_a_query_that_prometheus_cannot_evaluate(ask: Ask) -> None:
    groups = yaml.safe_load((SHIPPED / "prometheus" / "alerting-rules.yaml").read_text())["groups"]
    for rule in (rule for group in groups for rule in group["rules"]):
        assert isinstance(ask(rule["expr"]), list)
