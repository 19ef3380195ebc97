"""What tiers went through: the same figures in every format, also where no request has a ledger."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kvbench.judge.quality import PromotionWait, TierActivity, TierEvents, TierTime
from kvbench.report.data import ReportData
from kvbench.report.markdown import render_markdown
from kvbench.report.tier_activity import activity_tables
from kvbench.report.verdict_json import render_verdict_json
from tests.report.conftest import page_of
from tests.report.test_who_pays_shown import terminal

ARMS = [
    TierActivity(
        arm="baseline",
        times=[TierTime(name="block_lifetime", n=1, mean_s=3.0, p50_s=(2.0, 5.0), p90_s=(600.0, None))],
    ),
    TierActivity(
        arm="host-and-disk",
        times=[TierTime(name="host_reuse_gap", n=1200, mean_s=0.5)],
        events=[TierEvents(name="promotion_failures", unit="jobs", count=0)],
        promotions=PromotionWait(of="request", n=40, wait_s=0.5, transfer_s=0.125, queueing_s=0.375),
    ),
]


@pytest.fixture
def told(go: ReportData) -> ReportData:
    return replace(go, verdict=go.verdict.model_copy(update={"hits": None, "tier_activity": ARMS}))


def test_waiting_stands_beside_transfer_and_quantiles_are_bounds() -> None:
    promotions, times, events = activity_tables(ARMS)
    assert promotions.rows == (("host-and-disk", "40 requests", "500 ms", "125 ms", "375 ms"),)
    assert times.rows == (
        ("device block filled to evicted; a sample of all blocks", "baseline", "1", "3 s", "2 s – 5 s", "> 10 min"),
        (
            "between two uses of a chunk in the host tier; a sample of all chunks",
            "host-and-disk",
            "1,200",
            "500 ms",
            "–",
            "–",
        ),
    )
    assert events.rows == (("failed reads from the disk tier: the request recomputes", "–", "0 jobs"),)
    assert activity_tables([]) == ()


def test_rounds_that_are_left_out_are_said_under_every_table() -> None:
    tables = activity_tables([ARMS[0], ARMS[1].model_copy(update={"rounds": 5, "left_out": 1})])
    assert len(tables) == 3
    assert all("Without 1 of 6 rounds of host-and-disk" in table.note for table in tables)
    assert not any("Without" in table.note for table in activity_tables(ARMS))


def test_it_is_in_every_format_without_a_ledger(told: ReportData) -> None:
    for text in (render_markdown(told), page_of(told)):
        for heading in (
            "waiting against transfer",
            "Lifetimes, reuse gaps",
            "Preemptions, evictions, drops and failures",
        ):
            assert heading in text
    assert "waiting against transfer" in terminal(told, width=160)
    assert json.loads(render_verdict_json(told))["tier_activity"][1]["promotions"]["queueing_s"] == 0.375
