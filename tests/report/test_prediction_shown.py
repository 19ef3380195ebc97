"""Predicted beside measured: the same cells in every format, and nothing where nothing was predicted."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kvbench.judge.quality import SourcePrediction
from kvbench.report.data import ReportData
from kvbench.report.markdown import render_markdown
from kvbench.report.prediction import prediction_tables
from kvbench.report.verdict_json import render_verdict_json
from kvbench.report.view import view
from tests.report.conftest import page_of
from tests.report.test_who_pays_shown import terminal

ROWS = [
    SourcePrediction(
        arm="host-and-disk",
        source="host",
        costs="probe <probe>.json",
        rounds=3,
        predicted_share=0.385,
        measured_share=0.362,
        share_error_points=2.3,
        n=41,
        predicted_ttft_p50_s=0.031,
        measured_ttft_p50_s=0.0352,
        ttft_error=0.031 / 0.0352 - 1,
    ),
    SourcePrediction(
        arm="host-and-disk", source="disk", costs="probe <probe>.json", rounds=3, predicted_share=0.1, n=0
    ),
]


@pytest.fixture
def told(go: ReportData) -> ReportData:
    return replace(go, verdict=go.verdict.model_copy(update={"prediction": ROWS}))


def test_each_row_has_both_sides_and_the_error(told: ReportData) -> None:
    (table,) = view(told).candidates[0].prediction
    assert table.rows == (
        ("host-and-disk", "host", "38.5 %", "36.2 %", "+2.3 points", "41", "31 ms", "35.2 ms", "-12%"),
        ("host-and-disk", "disk", "10.0 %", "–", "–", "0", "–", "–", "–"),
    )


def test_it_says_of_how_many_rounds_a_plan_is() -> None:
    (several,) = prediction_tables(ROWS)
    assert "host-and-disk: probe <probe>.json, 3 rounds." in several.note
    (first,) = prediction_tables([row.model_copy(update={"rounds": 1}) for row in ROWS])
    assert "probe <probe>.json, the first round alone." in first.note


def test_every_format_shows_it_and_escapes_what_came_from_a_file(told: ReportData) -> None:
    page, text = page_of(told), render_markdown(told)
    assert "Prediction against measurement" in page
    assert "probe &lt;probe&gt;.json" in page
    assert "<probe>" not in text
    for width in (80, 160):
        assert "-12%" in terminal(told, width=width)
    document = json.loads(render_verdict_json(told))
    assert document["prediction"][0]["share_error_points"] == 2.3


def test_nothing_predicted_is_nothing_shown(go: ReportData) -> None:
    assert view(go).candidates[0].prediction == ()
    assert "Predicted and measured" not in terminal(go)
    assert "Prediction" not in page_of(go)
