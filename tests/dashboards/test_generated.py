"""The files in `dashboards/` are what the generator makes, promtool accepts them, and export hands them out."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from kvbench.dashboards.budgets import Budgets
from kvbench.dashboards.generate import BOARDS, rules
from kvbench.dashboards.series import BY_SOURCE, CACHED_BY_SOURCE, family
from kvbench.errors import InputError
from kvbench.observe.canonical import FAMILIES
from kvbench.spec.shipped import shipped_folder
from tests.canary.prometheus_tools import promtool
from tests.cli.invoke import kvbench_here
from tests.missing import need

SHIPPED = shipped_folder("dashboards")
HERE = Path(__file__).resolve().parent
BUILT_IN = {"__rate_interval", "datasource"}


def board(name: str) -> dict[str, object]:
    document: dict[str, object] = json.loads((SHIPPED / "grafana" / f"{name}.json").read_text())
    return document


@pytest.mark.parametrize("name", sorted(rules(Budgets())))
def test_the_committed_rules_are_what_the_generator_makes(name: str) -> None:
    assert (SHIPPED / name).read_text() == rules(Budgets())[name], "run `python -m kvbench.dashboards`"


def test_the_committed_dashboards_are_what_the_generator_makes() -> None:
    need("grafana_foundation_sdk")
    from kvbench.dashboards.generate import boards

    for name, text in boards().items():
        assert (SHIPPED / name).read_text() == text, f"{name}: run `python -m kvbench.dashboards`"


def test_promtool_accepts_the_rules(tmp_path: Path) -> None:
    own = Budgets(ttft_s=0.25, itl_s=0.05, share=0.02, errors=0.01, disk_mount="/var/kv")
    files = [SHIPPED / "prometheus" / "recording-rules.yaml", SHIPPED / "prometheus" / "alerting-rules.yaml"]
    for name, text in rules(own).items():
        files.append(tmp_path / Path(name).name)
        files[-1].write_text(text)
    done = subprocess.run([promtool(), "check", "rules", *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("SUCCESS") == 4


@pytest.mark.parametrize("name", ["alerts.test.yaml", "slow-alerts.test.yaml"])
def test_the_alerts_fire_when_they_should_and_at_no_other_time(name: str) -> None:
    done = subprocess.run([promtool(), "test", "rules", HERE / name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_seen_to_fire_in_a_unit_test() -> None:
    groups = yaml.safe_load((SHIPPED / "prometheus" / "alerting-rules.yaml").read_text())["groups"]
    alerts = {rule["alert"] for group in groups for rule in group["rules"]}
    tests = "".join((HERE / name).read_text() for name in ("alerts.test.yaml", "slow-alerts.test.yaml"))
    fired = set(re.findall(r'ALERTS\{alertname="(\w+)"', tests))
    assert alerts == fired


@pytest.mark.parametrize("name", BOARDS)
def test_a_dashboard_is_whole(name: str) -> None:
    document = board(name)
    panels = document["panels"]
    assert isinstance(panels, list)
    assert document["uid"] == f"kvbench-{name}"
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["description"] and panel["targets"] for panel in panels if panel["type"] != "row")
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells)), "panels overlap"
    assert max(x for x, _ in cells) < 24


@pytest.mark.parametrize("name", BOARDS)
def test_every_variable_that_is_used_is_defined(name: str) -> None:
    document = board(name)
    templating = document["templating"]
    assert isinstance(templating, dict)
    defined = {variable["name"] for variable in templating["list"]} | BUILT_IN
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(document))) <= defined
    if name != "gate":
        assert {"label", "baseline", "candidate"} <= defined


@pytest.mark.parametrize("name", BOARDS)
def test_only_families_that_the_engine_is_known_to_have_are_asked_for(name: str) -> None:
    asked = set(re.findall(r"vllm:\w+", json.dumps(board(name))))
    plain = {re.sub(r"_(total|bucket|count)$", "", series) for series in asked}
    assert plain <= FAMILIES
    assert {re.sub("_total$", "", series) for series in (BY_SOURCE, CACHED_BY_SOURCE)} <= FAMILIES


def test_the_newest_family_of_a_metric_is_taken() -> None:
    assert family("host_load_bytes") == "vllm:kv_offload_load_bytes"
    with pytest.raises(KeyError):
        family("no_such_metric")


def test_export_writes_everything_with_the_budgets_asked_for(tmp_path: Path) -> None:
    out = tmp_path / "monitoring"
    answer = kvbench_here(
        "dashboards", "export", "--out", out, "--ttft", "750ms", "--share", "2%", "--disk-mount", "/kv", "--json"
    )  # fmt: skip
    assert answer.code == 0, answer.text
    files = {Path(path).relative_to(out).as_posix() for path in json.loads(answer.out)["files"]}
    assert files == {"README.md", *rules(Budgets()), *(f"grafana/{name}.json" for name in BOARDS)}
    assert all((out / name).is_file() for name in files)
    assert (out / "grafana/overview.json").read_text() == (SHIPPED / "grafana/overview.json").read_text()
    recorded = (out / "prometheus/recording-rules.yaml").read_text()
    alerts = (out / "prometheus/alerting-rules.yaml").read_text()
    assert 'le="0.75"' in recorded
    assert "> 0.288" in alerts
    assert 'mountpoint="/kv"' in alerts


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--ttft", "2s"), "no edge of the engine's buckets"),
        (("--itl", "fast"), "--itl"),
        (("--share", "10%"), "cannot be burnt"),
        (("--errors", "0"), "--errors"),
        (("--disk-mount", 'x"} or vector(1)'), "--disk-mount"),
    ],
)
def test_a_budget_that_no_series_could_tell_is_refused(
    tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    answer = kvbench_here("dashboards", "export", "--out", tmp_path / "x", *arguments)
    assert answer.code == 2, answer.text
    assert says in answer.err
    assert not (tmp_path / "x").exists()


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    answer = kvbench_here("dashboards", "export", "--out", tmp_path / "file" / "x")
    assert answer.code == 2, answer.text
    with pytest.raises(InputError):
        Budgets(ttft_s=2.0)
