"""What hits were worth: the same words in every format, and nothing where nothing was measured."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kvbench.judge.quality import (
    HitQuality,
    Holdout,
    LedgerTotals,
    Movement,
    Neighbours,
    SourceTtft,
    TierWorth,
    TokenCost,
)
from kvbench.report.data import ReportData
from kvbench.report.markdown import render_markdown
from kvbench.report.verdict_json import render_verdict_json
from kvbench.report.view import view
from tests.report.conftest import page_of
from tests.report.test_who_pays_shown import terminal

LEDGER = LedgerTotals(
    arm="host-and-disk",
    requests=312,
    evidence={"kv events": 300, "nothing cached": 12},
    tokens={"device": 40_704, "host": 10_496, "disk": 51_840, "computed": 54_152, "unattributed": 0},
    counters={"device": 40_704.0, "host": 11_496.0, "disk": None, "computed": 54_152.0},
    mismatch_points={"device": 0.0, "host": -0.64, "disk": None, "computed": 0.0},
)
HITS = HitQuality(
    method="Huber regression",
    costs=[
        TokenCost(source="host", per_token_s=2e-6, ci=(1e-6, 3e-6), fixed_s=0.004, fixed_ci=(0.003, 0.005)),
        TokenCost(source="computed", per_token_s=1.25e-4, ci=(1.2e-4, 1.3e-4)),
    ],
    ttft_by_source=[
        SourceTtft(
            arm="host-and-disk",
            source="host",
            prompt_tokens_from=4096,
            prompt_tokens_to=8191,
            n=25,
            ttft_p50_s=0.13,
            service_p50_s=0.12,
            service_ci=(0.11, 0.14),
        )
    ],
    worth=[
        TierWorth(
            tier="host",
            requests=40,
            tokens=61_440,
            saved_s=-12.5,
            saved_ci=(-14.0, -11.0),
            lost_share=0.975,
            pays="never",
            saved_s_per_gib_moved=-104.0,
        ),
        TierWorth(
            tier="disk",
            requests=20,
            tokens=30_720,
            saved_s=3.1,
            saved_ci=(2.0, 4.2),
            lost_share=0.05,
            break_even_tokens=212.4,
            break_even_ci=(-3.0, 400.0),
            pays="yes",
        ),
    ],
    neighbours=Neighbours(
        during=80,
        quiet=100,
        ttft_service_during_s=0.3,
        ttft_service_quiet_s=0.2,
        effect_s=0.1,
        effect_ci=(0.05, 0.15),
        itl_during_p50_s=0.012,
    ),
    movement=[Movement(way="host to device (load)", gib=1.5, seconds=2.0, gib_per_s=0.75)],
    lookup_wait_s=0.031,
    preemptions=2.0,
)
HOLDOUT = Holdout(
    class_="long",
    held=30,
    kept=270,
    ttft_held_s=0.9,
    ttft_kept_s=0.4,
    difference_s=-0.5,
    ci=(-0.7, -0.3),
    method="m",
)


@pytest.fixture
def told(go: ReportData) -> ReportData:
    verdict = go.verdict.model_copy(update={"ledger": [LEDGER], "hits": HITS, "holdout": [HOLDOUT]})
    return replace(go, verdict=verdict)


def cells(data: ReportData) -> dict[str, tuple[tuple[str, ...], ...]]:
    return {table.heading: table.rows for table in view(data).candidates[0].hits}


def test_every_figure_has_its_unit_and_its_interval(told: ReportData) -> None:
    tables = cells(told)
    assert ("host-and-disk", "host", "10,496", "11,496", "-0.64 points") in tables[
        "The ledger of requests against the engine's counters"
    ]
    assert ("host-and-disk", "disk", "51,840", "–", "–") in tables[
        "The ledger of requests against the engine's counters"
    ]
    assert tables["What a prompt token costs"][0] == ("host", "2 µs [1, 3]", "4 ms [3 ms, 5 ms]")
    assert tables["TTFT by source"] == (
        ("4,096–8,191", "host", "host-and-disk", "25", "130 ms", "120 ms [110 ms, 140 ms]"),
    )
    host, disk = tables["What promotions were worth"]
    assert host[3:6] == ("−12.5 s [−14 s, −11 s]", "97.5 %", "never")
    assert disk[5] == "212 tokens [0, 400]"
    assert tables["Held out of the secondary tier"][0][-1] == "−500 ms [−700 ms, −300 ms]"


def test_a_ledger_that_is_not_believed_says_so_and_what_was_moved_says_by_what(told: ReportData) -> None:
    why = "the ledger of host-and-disk has 9.0 points more prompt tokens from host than the engine counted"
    ledger = [LEDGER.model_copy(update={"distrusted": why})]
    verdict = told.verdict.model_copy(update={"ledger": ledger})
    notes = {table.heading: table.note for table in view(replace(told, verdict=verdict)).candidates[0].hits}
    assert f"The {why[4:]}." in notes["The ledger of requests against the engine's counters"]
    assert "Per GiB moved: by the tokens that requests had from the tier" in notes["What promotions were worth"]


@pytest.mark.parametrize(
    ("heeded", "words", "difference"),
    [
        (True, "", "−500 ms [−700 ms, −300 ms]"),
        (None, "Whether the server did hold them out is not known.", "−500 ms [−700 ms, −300 ms]"),
        (False, "The server did not hold them out: ", "–"),
    ],
)
def test_a_difference_is_the_tiers_only_where_requests_were_held_out(
    told: ReportData, heeded: bool | None, words: str, difference: str
) -> None:
    verdict = told.verdict.model_copy(update={"holdout": [HOLDOUT.model_copy(update={"heeded": heeded})]})
    (table,) = [
        table
        for table in view(replace(told, verdict=verdict)).candidates[0].hits
        if table.heading == "Held out of the secondary tier"
    ]
    assert table.rows[0][-1] == difference
    assert words in table.note
    assert ("server did" in table.note) is bool(words)


@pytest.mark.parametrize(("pays", "shown"), [("yes", "212 tokens [0, 400]"), ("unknown", "–"), ("never", "never")])
def test_from_where_on_a_tier_pays_is_said_only_where_it_is_known_to_pay(
    told: ReportData, pays: str, shown: str
) -> None:
    disk = HITS.worth[1].model_copy(update={"pays": pays})
    verdict = told.verdict.model_copy(update={"hits": HITS.model_copy(update={"worth": [disk]})})
    assert cells(replace(told, verdict=verdict))["What promotions were worth"][0][5] == shown


def test_what_went_along_with_promotions_is_not_said_to_be_caused_by_them(told: ReportData) -> None:
    notes = {table.heading: table.note for table in view(told).candidates[0].hits}
    assert "not what they caused" in notes["Neighbours: requests without promotions"]
    assert "by the fitted costs" in notes["What promotions were worth"]


def test_a_tier_that_lost_is_said_in_words_in_every_format(told: ReportData) -> None:
    sentence = "romotions from host lost 12.5 s over 40 requests, 97.5 % of which waited longer"
    assert sentence in render_markdown(told)
    assert sentence in page_of(told)
    for width in (80, 160):
        text = terminal(told, width=width)
        assert "What promotions were worth" in text
        assert "−12.5 s" in text


def test_a_terminal_has_one_line_for_how_the_ledger_agrees_with_the_counters(told: ReportData) -> None:
    line = "host-and-disk: device +0.00, host -0.64, disk not counted, computed +0.00 (points of prompt tokens)"
    for width in (80, 160):
        words = " ".join(terminal(told, width=width).split())
        assert f"ledger less counters {line}" in words


def test_verdict_json_has_the_figures(told: ReportData) -> None:
    document = json.loads(render_verdict_json(told))
    assert document["hits"]["worth"][0]["saved_s"] == -12.5
    assert document["holdout"][0]["class"] == "long"
    assert document["ledger"][0]["mismatch_points"]["disk"] is None


def test_nothing_measured_is_nothing_shown(go: ReportData) -> None:
    assert view(go).candidates[0].hits == ()
    assert "What promotions were worth" not in terminal(go)
    assert "ledger less counters" not in terminal(go)
