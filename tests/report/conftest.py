"""Fixtures of the report tests."""

from __future__ import annotations

from functools import cache

import pytest

from kvbench.judge.verdict import Outcome
from kvbench.report.data import ReportData
from kvbench.report.html import render_html
from tests.report.build import build, hostile

page_of = cache(render_html)
"""Drawing takes seconds, and the same data gives the same page."""
HOSTILE = (
    "</title></style></svg><script>alert(1)</script><img src=x onerror=alert(2)>"
    "&amp;\"'|`*_[x](javascript:alert(3)) $x_1$ @you [bold red]"
    "\x00\x07\x1b[31m\x9b\u202e\ufeff\ud800\uffff]]>\n\n# heading\n| a | b |"
)


@pytest.fixture(scope="session")
def go() -> ReportData:
    return build(Outcome.GO)


@pytest.fixture(scope="session")
def no_go() -> ReportData:
    return build(Outcome.NO_GO)


@pytest.fixture(scope="session")
def several() -> ReportData:
    return build(Outcome.GO, others={"small-host": Outcome.NO_GO, "disk-only": Outcome.INVALID})


@pytest.fixture(scope="session")
def attacked(no_go: ReportData) -> ReportData:
    return hostile(no_go, HOSTILE)


@pytest.fixture(params=list(Outcome), ids=lambda outcome: outcome.value, scope="session")
def each(request: pytest.FixtureRequest) -> ReportData:
    fixture = {Outcome.GO: "go", Outcome.NO_GO: "no_go"}.get(request.param)
    data: ReportData = request.getfixturevalue(fixture) if fixture else build(request.param)
    return data
