"""What Grafana and Prometheus ask, as they would ask it: queries of panels, of variables and of rules."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import yaml

from kvbench.dashboards.generate import BOARDS
from kvbench.spec.shipped import shipped_folder

__all__ = ["Asker", "alerts", "filled_in", "names_in", "panel_queries", "recorded", "selectors_in", "variables"]

SHIPPED = shipped_folder("dashboards")
SELECTOR = re.compile(r"\b((?:vllm:|node_|kvbench[:_]|DCGM_)[\w:]+)(\{[^}]*\})?")


@dataclass(frozen=True)
class Asker:
    """A Prometheus that can be asked."""

    http: httpx.Client

    def __call__(self, query: str) -> list[Any]:
        """The series that a query finds now."""
        answer = self.http.get("/api/v1/query", params={"query": query})
        assert answer.status_code == 200, f"{query}: {answer.text}"
        found: list[Any] = answer.json()["data"]["result"]
        return found

    def numbers(self, query: str) -> list[float]:
        """The values that are numbers."""
        values = (float(series["value"][1]) for series in self(query))
        return [value for value in values if math.isfinite(value)]

    def label_values(self, series: str, label: str) -> list[str]:
        """As a variable of Grafana gets its choices."""
        answer = self.http.get(f"/api/v1/label/{label}/values", params={"match[]": series})
        assert answer.status_code == 200, answer.text
        found: list[str] = answer.json()["data"]
        return found

    def wait_for(self, query: str, seconds: float) -> None:
        """Until there are numbers."""
        deadline = time.monotonic() + seconds
        while not self.numbers(query):
            assert time.monotonic() < deadline, f"no data within {seconds:g} s: {query}"
            time.sleep(0.3)


def _board(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((SHIPPED / "grafana" / f"{name}.json").read_text())
    return document


def panel_queries(*boards: str) -> Iterator[tuple[str, str]]:
    """What each is for, and the query with its variables; of all dashboards unless some are named."""
    for name in boards or BOARDS:
        for panel in _board(name)["panels"]:
            for target in panel.get("targets", []):
                yield f"{name}: {panel['title']} {target['refId']}", target["expr"]


def variables() -> Iterator[tuple[str, str, str]]:
    """What each variable that asks Prometheus is for, its series and its label."""
    for name in BOARDS:
        for variable in _board(name)["templating"]["list"]:
            if variable["type"] == "query":
                asked = variable["query"] if isinstance(variable["query"], str) else variable["query"]["query"]
                found = re.fullmatch(r"label_values\((.*), (\S+)\)", asked)
                assert found is not None, asked
                yield f"{name}: ${variable['name']}", found[1], found[2]


def _rules(file: str, key: str) -> Iterator[tuple[str, str]]:
    for group in yaml.safe_load((SHIPPED / "prometheus" / file).read_text())["groups"]:
        for rule in group["rules"]:
            yield rule[key], rule["expr"]


def recorded() -> list[tuple[str, str]]:
    """Name and query of every recording rule."""
    return list(_rules("recording-rules.yaml", "record"))


def alerts() -> list[tuple[str, str]]:
    """Name and query of every alert."""
    return list(_rules("alerting-rules.yaml", "alert"))


def filled_in(query: str, values: Mapping[str, str]) -> str:
    """As Grafana would send it."""
    return re.sub(r"\$(\w+)", lambda found: values[found[1]], query)


def selectors_in(query: str) -> set[str]:
    """Every series that a query selects, with its labels."""
    return {name + (labels or "") for name, labels in SELECTOR.findall(query)}


def names_in(query: str) -> set[str]:
    """The same without labels."""
    return {name for name, _ in SELECTOR.findall(query)}
