"""Evidence: hits of the new tiers are faster than computing the same prompts again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from kvbench.judge.case import build_case
from kvbench.judge.evidence import RoundPair
from kvbench.judge.evidence_rules import judge_evidence
from kvbench.judge.hits import judge_hits
from kvbench.judge.judge import judge
from kvbench.judge.needed import units_needed
from kvbench.record.tables import LEDGER
from tests.judge.ask import about, evidence, result_of
from tests.judge.build import (
    PROMPT,
    as_table,
    comparison,
    good_pairs,
    request_rows,
    rules,
    source_metrics,
    ttfts,
)
from tests.judge.change import (
    edited,
    fail,
)


class TestHitsWorthIt:
    def split(
        self, hit_ratio: float, computed_ratio: float, hits: float = 0.5, noise: float = 0.02
    ) -> list[RoundPair]:
        """Hits and computed requests of the candidate have ratios of their own."""
        pairs = []
        for index, plain in enumerate(good_pairs(hits=hits), start=1):
            base = ttfts(400, seed=index)
            wobble = np.exp(np.random.default_rng(index).normal(0, noise))
            served = np.arange(400) < hits * 400
            factor = np.where(served, hit_ratio * wobble, computed_ratio)
            table = request_rows(base * factor, cached=np.where(served, 0.9 * PROMPT, 0))
            pairs.append(replace(plain, candidate=replace(plain.candidate, requests=table[0], tokens=table[1])))
        return pairs

    def test_hits_slower_than_recomputing_are_a_no_go(self) -> None:
        lenient = rules(guardrails=[])
        verdict = judge(comparison(self.split(1.3, 0.1, hits=0.4), lenient))
        assert result_of(verdict, "ttft-p50").status == "pass"
        assert verdict.verdict == "NO_GO"
        assert verdict.reasons[0].endswith("hits are slower than recomputing")
        assert verdict.action is not None

    def test_hits_faster_than_recomputing_pass(self) -> None:
        found = evidence(comparison(self.split(0.2, 1.0)), "hits-worth-it")
        assert found.status == "pass"
        assert about(found) == ("hits-worth-it", "evidence", "ttft_service", 0.5, "all", "ratio", 1.0)
        assert found.effect == pytest.approx(0.2, rel=0.05)
        logs = np.log([float(row["ratio"]) for row in found.windows])
        assert found.ci == pytest.approx(np.exp(stats.t.interval(0.95, 2, logs.mean(), stats.sem(logs))))
        assert found.ci is not None
        refuted_by_either = float(np.exp(stats.t.interval(1 - 0.025, 2, logs.mean(), stats.sem(logs))[0]))
        assert found.decision_ci == pytest.approx((refuted_by_either, found.ci[1])), "two tests may refute"
        assert re.fullmatch(
            r"TTFT of requests that the tier served, against the same requests computed: "
            r"ratio 0\.\d+ \[0\.\d+, 0\.\d+\]: hits are faster than recomputing",
            found.text,
        )
        assert [row["round"] for row in found.windows] == [1.0, 2.0, 3.0]
        assert found.windows[0]["ratio"] == pytest.approx(0.2, rel=0.1)

    def test_neither_leaves_it_inconclusive_with_the_rounds_it_takes(self) -> None:
        verdict = judge(comparison(self.split(0.85, 0.1, noise=0.3, hits=0.4)))
        found = result_of(verdict, "hits-worth-it")
        assert found.status == "unknown"
        assert found.text.endswith("]: neither faster nor slower than recomputing yet")
        assert verdict.verdict == "INCONCLUSIVE"
        (ruling,) = (
            r
            for r in judge_evidence(build_case(comparison(self.split(0.85, 0.1, noise=0.3, hits=0.4))))
            if r.result.rule == "hits-worth-it"
        )
        logs = np.log([float(row["ratio"]) for row in found.windows])
        assert logs.mean() > 0, "so that it would be refuted, by either of two tests"
        wanted = units_needed(logs.mean(), logs.std(ddof=1), 3, alpha=0.025 / 2, confidence=0.95)
        assert ruling.needed_units == wanted

    def test_before_the_first_look_there_is_a_ratio_and_no_interval_that_decides(self) -> None:
        found = evidence(comparison(self.split(0.2, 1.0)[:2]), "hits-worth-it")
        assert (found.status, found.decision_ci) == ("unknown", None)
        assert found.text.endswith(
            f"computed: ratio {found.effect:.3g}: neither faster nor slower than recomputing yet"
        )

    def test_requests_that_the_baseline_had_cached_as_well_do_not_count(self) -> None:
        pairs = self.split(0.2, 1.0)
        cached = [
            replace(p, baseline=edited(p.baseline, lambda t: t.__setitem__("cached_tokens", 900))) for p in pairs
        ]
        found = evidence(comparison(cached), "hits-worth-it")
        assert found.status == "unknown"
        assert about(found) == ("hits-worth-it", "evidence", "ttft_service", 0.5, "all", "ratio", 1.0)
        assert found.text == (
            "whether hits beat recomputing is unknown: no round has enough requests that were cached in the "
            "candidate and computed in the baseline"
        )

    @pytest.mark.parametrize(("cached", "status"), [(PROMPT // 2, "pass"), (PROMPT // 2 - 1, "unknown")])
    def test_half_of_the_prompt_beyond_the_baseline_is_mostly(self, cached: int, status: str) -> None:
        def edit(table: pd.DataFrame) -> None:
            table["cached_tokens"] = table["cached_tokens"].clip(upper=cached)

        pairs = [replace(p, candidate=edited(p.candidate, edit)) for p in self.split(0.2, 1.0)]
        assert evidence(comparison(pairs), "hits-worth-it").status == status

    @pytest.mark.parametrize(("hits", "status"), [(6 / 400, "pass"), (5 / 400, "unknown")])
    def test_a_round_needs_six_of_them(self, hits: float, status: str) -> None:
        assert evidence(comparison(self.split(0.2, 1.0, hits=hits)), "hits-worth-it").status == status

    def test_rounds_without_enough_of_them_say_nothing(self) -> None:
        pairs = self.split(0.2, 1.0)
        pairs[1] = self.split(0.2, 1.0, hits=0.0)[1]
        found = evidence(comparison(pairs), "hits-worth-it")
        assert [row["round"] for row in found.windows] == [1.0, 3.0]
        assert found.status == "unknown"

    def test_failed_requests_do_not_count(self) -> None:
        pairs = [
            replace(p, candidate=replace(p.candidate, requests=fail(p.candidate.requests, slice(0, 200))))
            for p in self.split(0.2, 1.0)
        ]
        assert evidence(comparison(pairs), "hits-worth-it").status == "unknown"

    def served_by(self, tiers: Sequence[str], pairs: list[RoundPair]) -> list[RoundPair]:
        """The candidate's requests with a ledger: of each, which tier had nine tenths of its prompt."""
        rows = {tier: [0.9 * PROMPT * (tier == each) for each in tiers] for tier in ("host", "disk")}
        cached = np.add(rows["host"], rows["disk"])
        frame = pd.DataFrame(
            {"id": range(len(tiers)), "prompt_tokens": PROMPT, "computed": PROMPT - cached, "device": 0, **rows}
        )
        table = as_table(frame.assign(unattributed=0, evidence="told"), LEDGER)
        counted = source_metrics(*(frame[source].sum() for source in ("device", "host", "disk", "computed")))
        return [replace(p, candidate=replace(p.candidate, ledger=table, metrics=counted)) for p in pairs]

    def mixed(self, host_ratio: float, disk_ratio: float) -> list[RoundPair]:
        """Of 400 requests, 140 were served by the host and then 60 by the disk."""
        pairs = self.split(host_ratio, 1.0)
        slower = [
            replace(p, candidate=replace(p.candidate, requests=self.stretched(p.candidate.requests, disk_ratio)))
            for p in pairs
        ]
        return self.served_by(["host"] * 140 + ["disk"] * 60 + [""] * 200, slower)

    def stretched(self, table: pd.DataFrame, by: float) -> pd.DataFrame:
        changed = table.copy()
        later = ((by - 1) * (changed["first_token_s"] - changed["sent_s"]))[140:200]
        for name in ("first_token_s", "last_token_s", "ended_s"):
            changed.loc[later.index, name] += later
        return changed

    def test_a_slow_disk_is_not_hidden_by_a_fast_host(self) -> None:
        found = evidence(comparison(self.mixed(0.2, 7.0)), "hits-worth-it")
        assert (found.status, found.effect) == ("fail", pytest.approx(1.4, rel=0.05))
        assert found.text.startswith("TTFT of requests that disk served, against the same requests computed: ratio")
        verdict = judge(comparison(self.mixed(0.2, 7.0)))
        assert verdict.verdict == "NO_GO"
        assert verdict.action is not None
        assert verdict.action.disable_tier == "disk"

    def test_two_tests_of_hits_share_the_level_at_which_they_refute(self) -> None:
        pairs = [
            replace(p, candidate=replace(p.candidate, requests=self.stretched(p.candidate.requests, by)))
            for p, by in zip(self.mixed(0.2, 1.0), (6.3, 6.8, 7.4), strict=True)
        ]
        case = build_case(comparison(pairs))
        assert judge_hits(case, case.alpha).result.status == "fail"
        assert judge_hits(case, case.alpha / 2).result.status == "pass"
        assert evidence(comparison(pairs), "hits-worth-it").status == "pass", "none of the two is sure enough"

    def test_a_ledger_that_the_counters_deny_singles_out_no_tier(self) -> None:
        host_alone = source_metrics(0, 0.9 * 200 * PROMPT, 0, 0.1 * 200 * PROMPT + 200 * PROMPT)
        denied = [replace(p, candidate=replace(p.candidate, metrics=host_alone)) for p in self.mixed(0.2, 7.0)]
        found = evidence(comparison(denied), "hits-worth-it")
        assert (found.status, found.effect) == ("pass", pytest.approx(0.2, rel=0.05))

    def test_a_disk_that_is_not_proven_slower_is_judged_with_the_host(self) -> None:
        found = evidence(comparison(self.mixed(0.2, 1.0)), "hits-worth-it")
        assert (found.status, found.effect) == ("pass", pytest.approx(0.2, rel=0.05))
        assert "requests that the tier served" in found.text

    def test_an_engine_that_does_not_tell_cached_tokens(self) -> None:
        pairs = [
            replace(p, baseline=edited(p.baseline, _no_cached), candidate=edited(p.candidate, _no_cached))
            for p in good_pairs()
        ]
        verdict = judge(comparison(pairs))
        assert "does not tell the cached tokens" in result_of(verdict, "hits-worth-it").text
        assert verdict.verdict == "INCONCLUSIVE"


def _no_cached(table: pd.DataFrame) -> None:
    table["cached_tokens"] = np.nan
