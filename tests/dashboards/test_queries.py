"""Every query of a panel, a variable, a recording rule and an alert, asked of a real Prometheus, finds data.

It scrapes emulated engines under load, this host's node_exporter, and a gate that serves; `made_up` says what is
not real. The embedded engine has the same asked of it in `test_embedded_queries`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.dashboards.asking import (
    Asker,
    alerts,
    filled_in,
    names_in,
    panel_queries,
    recorded,
    selectors_in,
    variables,
)
from tests.dashboards.made_up import made_up_names
from tests.dashboards.watched_host import MOUNT, VALUES, watched_host
from tests.missing import need

need("prometheus_api_client")

IDLE = ("node_disk_",)
"""A disk that nobody reads from takes no time for it, which is no number."""
PANELS = [pytest.param(query, id=name) for name, query in panel_queries()]
SELECTED = sorted({selector for _, query in alerts() for selector in selectors_in(query)})


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asker]:
    with watched_host(tmp_path_factory.mktemp("watched")) as it:
        yield it


@pytest.mark.parametrize("query", PANELS)
def test_a_panel_shows_data(ask: Asker, query: str) -> None:
    asked = filled_in(query, VALUES)
    found = ask(asked) if any(name in query for name in IDLE) else ask.numbers(asked)
    assert found, asked


@pytest.mark.parametrize(("series", "label"), [pytest.param(s, of, id=name) for name, s, of in variables()])
def test_a_variable_has_the_values_that_panels_are_asked_with(ask: Asker, series: str, label: str) -> None:
    found = ask.label_values(filled_in(series, VALUES), filled_in(label, VALUES))
    wanted = {
        "$label": {"stable", "canary"}, "instance": {"host"}, "mountpoint": {MOUNT}, "gate": {"watched"},
        "rule": {"itl"}, "device": set(),
    }  # fmt: skip
    assert found
    assert wanted[label] <= set(found)


@pytest.mark.parametrize(("record", "query"), [pytest.param(*each, id=each[0]) for each in recorded()])
def test_a_recording_rule_has_data_and_is_recorded(ask: Asker, record: str, query: str) -> None:
    assert ask.numbers(query)
    assert ask.numbers(record)


def test_the_shares_of_all_sources_add_up_to_one(ask: Asker) -> None:
    assert ask.numbers("sum by (track) (kvbench:source_share:ratio_rate5m)") == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize("selector", SELECTED)
def test_what_an_alert_looks_at_is_there(ask: Asker, selector: str) -> None:
    """A misspelt name or label would never fire, and never say so."""
    assert ask(selector.replace("/mnt/kv_cache", MOUNT))


@pytest.mark.parametrize(("alert", "query"), [pytest.param(*each, id=each[0]) for each in alerts()])
def test_an_alert_can_be_evaluated(ask: Asker, alert: str, query: str) -> None:
    assert isinstance(ask(query), list)
    health = ask.http.get("/api/v1/rules", params={"type": "alert"}).json()["data"]["groups"]
    (state,) = (rule["health"] for group in health for rule in group["rules"] if rule["name"] == alert)
    assert state == "ok"


@pytest.mark.parametrize(
    ("alert", "label"), [("KvbenchGateNoGo", 'gate="watched"'), ("KvbenchRollbackNotProven", 'part="tier_off"')]
)
def test_what_the_gate_says_wakes_somebody(ask: Asker, alert: str, label: str) -> None:
    ask.wait_for(f'ALERTS{{alertname="{alert}", alertstate="firing", {label}}}', 30)


def test_only_what_no_real_part_tells_is_made_up(ask: Asker) -> None:
    told = {series["metric"]["__name__"] for series in ask('{job=~"vllm-failures|gpu"}')}
    assert {name for name in told if not name.startswith(("ALERTS", "scrape_", "up"))} == made_up_names()
    elsewhere = {series["metric"]["__name__"] for series in ask('{job=~"vllm|node|gate"}')}
    asked = {name for _, query in panel_queries() for name in names_in(query) if not name.startswith("kvbench:")}
    assert asked - elsewhere <= made_up_names()
