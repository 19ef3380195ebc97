"""What a verdict carries beside its outcome, and its form as JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from kvbench.judge.case import build_case
from kvbench.judge.describe import latency_rows
from kvbench.judge.evidence import RoundPair
from kvbench.judge.judge import combine, judge
from kvbench.judge.verdict import Verdict
from tests.judge.ask import noisy_pairs
from tests.judge.build import arm_round, comparison, good_pairs, request_rows, rules, ttfts

RULE_KEYS = (
    "rule kind status metric quantile class baseline candidate unit effect ci decision_ci limit windows text"
)
VERDICT_KEYS = "schema verdict exit_code baseline candidate action rules sources rounds instrument"


class TestWhatItCarries:
    def test_counts_of_rounds(self) -> None:
        run = comparison(good_pairs(4), rules(rounds=(3, 12)), rounds_planned=12)
        counted = judge(run).rounds
        assert (counted.done, counted.planned, counted.unit) == (4, 12, "round")

    def test_sources_of_both_arms_in_the_measured_part(self) -> None:
        verdict = judge(comparison(good_pairs()))
        assert verdict.sources["base"] == pytest.approx({"device": 0, "host": 0, "disk": 0, "computed": 3})
        assert verdict.sources["tiered"] == pytest.approx(
            {"device": 3e3, "host": 6e3, "disk": 9e3, "computed": 12e3}
        )

    def test_sources_without_a_usable_round_are_unknown(self) -> None:
        pairs = [replace(p, candidate=replace(p.candidate, complete=False)) for p in good_pairs()]
        assert set(judge(comparison(pairs)).sources["tiered"].values()) == {None}

    def test_latencies_pooled_over_rounds(self) -> None:
        rows = latency_rows(build_case(comparison(good_pairs())))
        assert len(rows) == 2 * 5
        row = next(row for row in rows if row["arm"] == "tiered" and row["metric"] == "ttft")
        pooled = np.concatenate(
            [p.candidate.requests["first_token_s"] - p.candidate.requests["intended_s"] for p in good_pairs()]
        )
        assert list(row) == ["arm", "class", "metric", "count", "values", "p50", "p90", "p99"]
        assert (row["class"], row["count"], row["values"]) == ("long", 1200, 1200)
        assert [row["p50"], row["p90"], row["p99"]] == pytest.approx(np.quantile(pooled, [0.5, 0.9, 0.99]).tolist())
        itl = next(row for row in rows if row["arm"] == "base" and row["metric"] == "itl")
        assert (itl["count"], itl["values"]) == (1200, 4800)

    def test_latencies_of_every_class_and_of_all(self) -> None:
        requests, tokens = request_rows(ttfts(400), classes=["a"] * 200 + ["b"] * 200)
        side = arm_round("base", 1, requests, tokens)
        rows = latency_rows(build_case(comparison([RoundPair(1, side, side)])))
        ttft = [row for row in rows if (row["arm"], row["metric"]) == ("base", "ttft")]
        assert [(row["class"], row["count"]) for row in ttft] == [("all", 400), ("a", 200), ("b", 200)]

    def test_a_class_without_gaps_has_no_row_for_them(self) -> None:
        requests, tokens = request_rows(ttfts(40), output=1)
        side = arm_round("base", 1, requests, tokens)
        rows = latency_rows(build_case(comparison([RoundPair(1, side, side)])))
        assert {row["metric"] for row in rows} == {"ttft", "ttft_service", "e2e"}

    def test_attached_servers_make_intervals_conditional(self) -> None:
        pairs = [
            replace(p, baseline=replace(p.baseline, launch="x"), candidate=replace(p.candidate, launch="y"))
            for p in good_pairs()
        ]
        verdict = judge(comparison(pairs, attached=True))
        assert verdict.verdict == "GO"
        assert "conditional on their one launch" in verdict.reasons[-1]
        assert verdict.rounds.unit == "round"

    def test_rounds_that_share_a_launch_are_said_to(self) -> None:
        pairs = [
            replace(p, candidate=replace(p.candidate, launch=str(n // 2))) for n, p in enumerate(good_pairs(4))
        ]
        verdict = judge(comparison(pairs, rules(rounds=(4, 4))))
        assert verdict.rounds.unit == "launch"
        assert verdict.reasons[-1] == "rounds that share an engine launch count as one: 2 launches of evidence"

    def test_it_is_json_with_the_documented_keys(self) -> None:
        verdict = combine([judge(comparison(noisy_pairs()))])
        document = json.loads(json.dumps(verdict.model_dump(mode="json", by_alias=True), allow_nan=False))
        assert document["schema"] == 1
        assert document["verdict"] == "INCONCLUSIVE"
        rule = next(rule for rule in document["rules"] if rule["rule"] == "ttft-p90")
        assert set(rule) >= set(RULE_KEYS.split())
        assert set(document) >= set(VERDICT_KEYS.split())
        assert Verdict.model_validate(document) == verdict
