"""How a verdict is reached: validity, then guardrails, then evidence, then benefit; and what it carries."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest

from kvbench.judge.evidence import Comparison, EngineEvent, RoundPair
from kvbench.judge.judge import combine, decided, judge
from kvbench.judge.verdict import CandidateVerdict, Outcome, Verdict
from tests.judge.build import (
    BASELINE,
    COPY,
    PROMPT,
    SCRAPES,
    TIERED,
    against_itself,
    arm_round,
    comparison,
    died,
    edited,
    fail,
    good_pairs,
    metric_rows,
    pair,
    request_rows,
    result_of,
    rules,
    same_pairs,
    ttfts,
    with_baseline,
    with_candidate,
)

RULE_KEYS = (
    "rule kind status metric quantile class baseline candidate unit effect ci decision_ci limit windows text"
)
VERDICT_KEYS = "schema verdict exit_code baseline candidate action rules sources rounds instrument"

SLOWER = {"id": "slower", "metric": "ttft", "quantile": 0.5, "max_ratio": 0.1}


def noisy_pairs(k: int = 3, **more: Any) -> list[RoundPair]:
    """So noisy that nothing can be told at these margins."""
    return [pair(index, **{"ratio": 0.6, "hits": 0.5, "noise": 0.8} | more) for index in range(1, k + 1)]


class TestGo:
    def test_needs_a_proven_benefit_safe_guardrails_and_a_tier_that_was_used(self) -> None:
        verdict = judge(comparison(good_pairs()))
        assert (verdict.verdict, verdict.exit_code, verdict.action) == (Outcome.GO, 0, None)
        assert verdict.reasons[0] == result_of(verdict, "ttft-p50").text
        assert verdict.reasons[0].endswith("proven")
        assert result_of(verdict, "ttft-p90").text in verdict.reasons
        assert result_of(verdict, "promoted").text in verdict.reasons

    def test_says_what_was_not_tested(self) -> None:
        words = " ".join(judge(comparison(good_pairs())).not_tested)
        assert all(word in words for word in ("restart", "loss of the tier", "memory pressure"))

    def test_one_proven_benefit_of_several_is_enough(self) -> None:
        both = rules(benefits=[SLOWER, {"id": "faster", "metric": "ttft", "quantile": 0.5, "max_ratio": 0.8}])
        verdict = judge(comparison(good_pairs(), both))
        assert verdict.verdict == "GO"
        assert result_of(verdict, "slower").status == "fail"
        assert verdict.reasons[0] == result_of(verdict, "faster").text

    def test_each_of_several_benefits_takes_its_share_of_the_level(self) -> None:
        one = result_of(judge(comparison(good_pairs())), "ttft-p50").decision_ci
        written = [{"id": i, "metric": "ttft", "quantile": 0.5, "max_ratio": 0.8} for i in ("ttft-p50", "again")]
        two = result_of(judge(comparison(good_pairs(), rules(benefits=written))), "ttft-p50").decision_ci
        assert one is not None
        assert two is not None
        assert two[1] > one[1]
        assert two[0] == pytest.approx(one[0])

    def test_without_guardrails_stability_alone_is_left(self) -> None:
        verdict = judge(comparison(good_pairs(), rules(guardrails=[])))
        assert verdict.verdict == "GO"
        assert [rule.rule for rule in verdict.rules if rule.kind == "guardrail"] == ["stability"]


class TestInvalid:
    def test_comes_before_everything(self) -> None:
        pairs = with_candidate(good_pairs(ratio=3.0), 0, residue=("old blocks",))
        verdict = judge(comparison(pairs))
        assert (verdict.verdict, verdict.exit_code, verdict.action) == ("INVALID", 4, None)
        assert "old blocks" in verdict.reasons[0]
        assert verdict.not_tested == []

    def test_still_lists_every_rule(self) -> None:
        pairs = with_candidate(good_pairs(ratio=3.0), 0, residue=("old blocks",))
        verdict = judge(comparison(pairs))
        assert {rule.kind for rule in verdict.rules} == {"validity", "guardrail", "evidence", "benefit"}
        assert result_of(verdict, "ttft-p90").status == "fail"


class TestGuardrails:
    def test_a_breach_is_a_no_go_that_names_the_newest_tier(self) -> None:
        verdict = judge(comparison(good_pairs(ratio=3.0, hits=0.0)))
        assert (verdict.verdict, verdict.exit_code) == ("NO_GO", 1)
        assert verdict.action is not None
        assert verdict.action.disable_tier == "disk"
        assert verdict.action.why == verdict.reasons[0] == result_of(verdict, "ttft-p90").text

    def test_a_breach_outweighs_a_proven_benefit(self) -> None:
        pays = rules(guardrails=[{"id": "itl", "metric": "itl", "quantile": 0.5, "max_ratio": 0.5}])
        verdict = judge(comparison(good_pairs(), pays))
        assert result_of(verdict, "ttft-p50").status == "pass"
        assert verdict.verdict == "NO_GO"

    def test_one_that_is_unknown_leaves_it_inconclusive(self) -> None:
        strict = rules(guardrails=[{"id": "itl", "metric": "itl", "quantile": 0.5, "max_ratio": 1.01}])
        verdict = judge(comparison(good_pairs(), strict))
        assert (verdict.verdict, verdict.exit_code, verdict.action) == ("INCONCLUSIVE", 3, None)
        assert verdict.reasons[0] == result_of(verdict, "itl").text
        assert result_of(verdict, "ttft-p50").status == "pass"


class TestStability:
    @pytest.mark.parametrize(
        ("event", "words"),
        [
            (died(), "the engine of tiered died 40 s into round 2: exit code 137"),
            (EngineEvent("frozen", 61.0, "no token"), "the engine of tiered froze 61 s into round 2: no token"),
            (EngineEvent("restarted", 61.0, "uptime"), "the engine of tiered restarted 61 s into round 2: uptime"),
        ],
    )
    def test_death_or_freeze_of_the_candidate_alone_is_a_breach(self, event: EngineEvent, words: str) -> None:
        verdict = judge(comparison(with_candidate(good_pairs(), 1, events=(event,), complete=False)))
        assert verdict.verdict == "NO_GO"
        assert verdict.reasons[0] == words
        assert result_of(verdict, "stability").status == "fail"

    def test_it_needs_no_number_of_rounds(self) -> None:
        verdict = judge(comparison(with_candidate(good_pairs(1), 0, events=(died(),), complete=False)))
        assert verdict.verdict == "NO_GO"
        assert decided(verdict, rules())

    def test_what_the_baseline_suffers_too_is_no_breach(self) -> None:
        pairs = with_candidate(good_pairs(), 1, events=(died(),), complete=False)
        verdict = judge(comparison(with_baseline(pairs, 0, events=(died(),), complete=False)))
        assert result_of(verdict, "stability").status == "unknown"
        assert result_of(verdict, "stability").text.endswith("the baseline was no better")
        assert verdict.verdict == "INVALID"

    def short(self, status: str = "ok", error: str | None = None) -> list[RoundPair]:
        def edit(table: pd.DataFrame) -> None:
            table.loc[:1, ["output_tokens_received", "status", "error"]] = [3, status, error]

        pairs = good_pairs()
        return with_candidate(pairs, 1, requests=edited(pairs[1].candidate, edit).requests)

    @pytest.mark.parametrize(("status", "error"), [("ok", None), ("error", "short_output: 3 of 5 tokens")])
    def test_completed_but_short_answers_of_the_candidate_alone_are_a_breach(
        self, status: str, error: str | None
    ) -> None:
        verdict = judge(comparison(self.short(status, error)))
        assert verdict.verdict == "NO_GO"
        assert verdict.reasons[0] == "2 of 1,200 completed answers of tiered too short"

    def test_short_answers_within_the_tolerated_share_are_none(self) -> None:
        run = comparison(self.short(), rules(validity={"token_mismatch": "0.2%"}))
        assert result_of(judge(run), "stability").status == "pass"

    def test_failures_that_were_cut_off_are_errors_not_short_answers(self) -> None:
        verdict = judge(comparison(self.short("error", "stream_broken: ended early")))
        assert result_of(verdict, "stability").status == "pass"

    def test_short_answers_of_both_are_invalid(self) -> None:
        pairs = self.short()
        pairs = with_baseline(pairs, 1, requests=pairs[1].candidate.requests)
        verdict = judge(comparison(pairs))
        assert verdict.verdict == "INVALID"
        assert result_of(verdict, "stability").status == "unknown"


class TestEvidence:
    def without_promotions(self, expected: float | None) -> list[RoundPair]:
        sources = None if expected is None else {"device": 1.0, "host": 1.0, "disk": expected, "computed": 1.0}
        pairs = good_pairs(sources=(1000, 2000, 0, 4000))
        for place in range(3):
            pairs = with_candidate(pairs, place, expected_sources=sources)
        return pairs

    def test_promotions_that_were_to_be_expected_and_did_not_come(self) -> None:
        verdict = judge(comparison(self.without_promotions(5000.0)))
        assert verdict.verdict == "NO_GO"
        assert "the tier does not work" in verdict.reasons[0]
        assert "about 15,000" in verdict.reasons[0]
        assert verdict.action is not None
        assert verdict.action.disable_tier == "disk"

    @pytest.mark.parametrize(
        ("expected", "words"), [(0.0, "the workload never reaches the tier"), (None, "size of disk")]
    )
    def test_promotions_that_were_not_to_be_expected(self, expected: float | None, words: str) -> None:
        verdict = judge(comparison(self.without_promotions(expected)))
        assert verdict.verdict == "INCONCLUSIVE"
        assert words in verdict.reasons[0]
        assert result_of(verdict, "promoted").status == "unknown"

    def test_a_workload_that_never_reaches_the_tier_refutes_no_benefit(self) -> None:
        pairs = []
        for silent, slow in zip(self.without_promotions(0.0), good_pairs(ratio=1.0, hits=0), strict=True):
            tables = {"requests": slow.candidate.requests, "tokens": slow.candidate.tokens}
            pairs.append(replace(silent, candidate=replace(silent.candidate, **tables)))
        verdict = judge(comparison(pairs))
        assert result_of(verdict, "ttft-p50").status == "fail"
        assert verdict.verdict == "INCONCLUSIVE"

    def test_as_many_promotions_as_the_rule_asks_for(self) -> None:
        def asked(tokens: int) -> CandidateVerdict:
            return judge(
                comparison(good_pairs(), rules(evidence=[{"id": "p", "metric": "promoted_tokens", "min": tokens}]))
            )

        assert result_of(asked(8999), "p").status == "pass"
        assert result_of(asked(9001), "p").status == "unknown"
        assert result_of(asked(8999), "p").candidate == pytest.approx(9000)

    def test_a_rule_may_name_another_source(self) -> None:
        written = [{"id": "p", "metric": "promoted_tokens", "source": "host", "min": 1}]
        assert result_of(judge(comparison(good_pairs(), rules(evidence=written))), "p").candidate == pytest.approx(
            6000
        )

    def test_holds_where_the_rules_do_not_mention_it(self) -> None:
        verdict = judge(comparison(self.without_promotions(5000.0), rules(evidence=[])))
        assert result_of(verdict, "tier-used").status == "fail"
        assert verdict.verdict == "NO_GO"

    def test_other_evidence_is_judged_by_its_own_metric(self) -> None:
        written = [{"id": "share", "metric": "source_share", "source": "disk", "min": 0.5}]
        verdict = judge(comparison(good_pairs(), rules(evidence=written)))
        assert result_of(verdict, "share").status == "fail"
        assert verdict.verdict == "NO_GO"

    def test_an_engine_that_does_not_tell_its_tiers_apart_leaves_it_inconclusive(self) -> None:
        pairs = good_pairs()
        for place in range(3):
            rows = metric_rows({("prompt_tokens_by_source", "device"): [0, 100]}, [5.0, 500.0])
            pairs = with_candidate(pairs, place, metrics=rows)
        verdict = judge(comparison(pairs))
        assert verdict.verdict == "INCONCLUSIVE"
        assert "does not tell tokens from disk apart" in verdict.reasons[0]
        assert verdict.sources["tiered"] == {"device": 300.0, "host": None, "disk": None, "computed": None}

    def test_no_metrics_at_all_leave_it_inconclusive(self) -> None:
        """Whatever the benefits say: nothing shows that they are the tier's doing."""
        for ratio in (0.3, 1.0):
            pairs = good_pairs(ratio=ratio, hits=0.5)
            for place in range(3):
                gone = metric_rows({}, [])
                pairs = with_candidate(pairs, place, metrics=gone, scrapes=replace(SCRAPES, supported=False))
            verdict = judge(comparison(pairs))
            assert verdict.verdict == "INCONCLUSIVE"

    def test_a_class_of_promotions_is_not_known(self) -> None:
        written = [{"id": "p", "metric": "promoted_tokens", "min": 1, "class": "long"}]
        assert result_of(judge(comparison(good_pairs(), rules(evidence=written))), "p").status == "unknown"

    def test_without_complete_rounds_it_is_unknown(self) -> None:
        pairs = [replace(p, candidate=replace(p.candidate, complete=False)) for p in good_pairs()]
        assert result_of(judge(comparison(pairs)), "promoted").status == "unknown"


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
        found = result_of(judge(comparison(self.split(0.2, 1.0))), "hits-worth-it")
        assert (found.status, found.kind, found.unit, found.limit) == ("pass", "evidence", "ratio", 1.0)
        assert found.effect == pytest.approx(0.2, rel=0.05)
        assert found.ci is not None
        assert [row["round"] for row in found.windows] == [1.0, 2.0, 3.0]
        assert found.windows[0]["ratio"] == pytest.approx(0.2, rel=0.1)

    def test_neither_leaves_it_inconclusive_with_the_rounds_it_takes(self) -> None:
        verdict = judge(comparison(self.split(0.85, 0.1, noise=0.3, hits=0.4)))
        assert result_of(verdict, "hits-worth-it").status == "unknown"
        assert verdict.verdict == "INCONCLUSIVE"

    def test_requests_that_the_baseline_had_cached_as_well_do_not_count(self) -> None:
        pairs = self.split(0.2, 1.0)
        cached = [
            replace(p, baseline=edited(p.baseline, lambda t: t.__setitem__("cached_tokens", 900))) for p in pairs
        ]
        found = result_of(judge(comparison(cached)), "hits-worth-it")
        assert found.status == "unknown"
        assert "no round has enough requests" in found.text

    @pytest.mark.parametrize(("cached", "status"), [(PROMPT // 2, "pass"), (PROMPT // 2 - 1, "unknown")])
    def test_half_of_the_prompt_beyond_the_baseline_is_mostly(self, cached: int, status: str) -> None:
        def edit(table: pd.DataFrame) -> None:
            table["cached_tokens"] = table["cached_tokens"].clip(upper=cached)

        pairs = [replace(p, candidate=edited(p.candidate, edit)) for p in self.split(0.2, 1.0)]
        assert result_of(judge(comparison(pairs)), "hits-worth-it").status == status

    @pytest.mark.parametrize(("hits", "status"), [(6 / 400, "pass"), (5 / 400, "unknown")])
    def test_a_round_needs_six_of_them(self, hits: float, status: str) -> None:
        assert result_of(judge(comparison(self.split(0.2, 1.0, hits=hits))), "hits-worth-it").status == status

    def test_rounds_without_enough_of_them_say_nothing(self) -> None:
        pairs = self.split(0.2, 1.0)
        pairs[1] = self.split(0.2, 1.0, hits=0.0)[1]
        found = result_of(judge(comparison(pairs)), "hits-worth-it")
        assert [row["round"] for row in found.windows] == [1.0, 3.0]
        assert found.status == "unknown"

    def test_failed_requests_do_not_count(self) -> None:
        pairs = [
            replace(p, candidate=replace(p.candidate, requests=fail(p.candidate.requests, slice(0, 200))))
            for p in self.split(0.2, 1.0)
        ]
        assert result_of(judge(comparison(pairs)), "hits-worth-it").status == "unknown"

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


class TestWithoutANewTier:
    def test_an_arm_against_itself_is_a_no_go_for_no_benefit(self) -> None:
        verdict = judge(against_itself(same_pairs()))
        assert (verdict.verdict, verdict.action) == ("NO_GO", None)
        assert verdict.reasons[0].startswith("no benefit: TTFT p50")

    def test_or_inconclusive_where_noise_hides_it(self) -> None:
        verdict = judge(against_itself(same_pairs(noise=0.5), rules(guardrails=[])))
        assert verdict.verdict == "INCONCLUSIVE"

    def test_evidence_does_not_apply_and_does_not_block(self) -> None:
        verdict = judge(against_itself(good_pairs(names=("base", "copy"))))
        found = result_of(verdict, "promoted")
        assert (found.status, found.text) == (
            "unknown",
            "promoted tokens does not apply: the candidate adds no tier",
        )
        assert [rule.rule for rule in verdict.rules if rule.kind == "evidence"] == ["promoted"]
        assert verdict.verdict == "GO"

    def test_another_kv_data_type_is_the_device_tier(self) -> None:
        tiers = BASELINE.tiers.model_copy(
            update={"device": BASELINE.tiers.device.model_copy(update={"kv_dtype": "fp8"})}
        )
        fp8 = BASELINE.model_copy(update={"name": "fp8", "tiers": tiers})
        verdict = judge(comparison(good_pairs(ratio=1.0, names=("base", "fp8")), candidate=fp8))
        assert verdict.verdict == "NO_GO"
        assert verdict.action is not None
        assert verdict.action.disable_tier == "device"


class TestBenefits:
    def test_when_every_one_is_refuted_it_is_a_no_go(self) -> None:
        both = rules(benefits=[SLOWER, SLOWER | {"id": "slower-too"}])
        verdict = judge(comparison(good_pairs(), both))
        assert verdict.verdict == "NO_GO"
        assert verdict.reasons[0].startswith("no benefit: ")
        assert len(verdict.reasons) == 2
        assert verdict.action is not None
        assert verdict.action.disable_tier == "disk"

    def test_one_that_is_open_keeps_it_inconclusive(self) -> None:
        open_one = {"id": "open", "metric": "ttft", "quantile": 0.5, "max_ratio": 0.297}
        verdict = judge(comparison(good_pairs(), rules(benefits=[SLOWER, open_one])))
        assert verdict.verdict == "INCONCLUSIVE"
        assert verdict.reasons[0] == result_of(verdict, "open").text

    def test_without_one_declared_there_is_no_go(self) -> None:
        verdict = judge(comparison(good_pairs(), rules(benefits=[])))
        assert verdict.verdict == "INCONCLUSIVE"
        assert "declare no benefit" in verdict.reasons[0]

    def test_all_refuted_is_proven_even_while_a_guardrail_is_open(self) -> None:
        strict = rules(
            guardrails=[{"id": "itl", "metric": "itl", "quantile": 0.5, "max_ratio": 1.01}], benefits=[SLOWER]
        )
        assert judge(comparison(good_pairs(), strict)).verdict == "NO_GO"


class TestInconclusive:
    def test_says_how_many_rounds_the_noise_asks_for(self) -> None:
        verdict = judge(comparison(noisy_pairs()))
        assert verdict.verdict == "INCONCLUSIVE"
        assert verdict.rounds.needed is not None
        low, high = verdict.rounds.needed
        assert 3 < low < high
        assert (
            verdict.reasons[-1]
            == f"at the noise seen so far about {low - 3} to {high - 3} more rounds would settle it, after 3"
        )

    def test_the_slowest_open_rule_sets_the_number(self) -> None:
        wide = {"id": "wide", "metric": "ttft", "quantile": 0.5, "max_ratio": 50.0}
        near = {"id": "near", "metric": "ttft", "quantile": 0.5, "max_ratio": 2.0}
        run = comparison(noisy_pairs(), rules(guardrails=[wide], benefits=[]))
        harder = comparison(noisy_pairs(), rules(guardrails=[wide, near], benefits=[]))
        easy, hard = judge(run).rounds.needed, judge(harder).rounds.needed
        assert hard is not None
        assert easy is None or easy[1] <= hard[1]

    def test_of_benefits_the_easiest_sets_the_number(self) -> None:
        near, far = (
            {"id": f"at-{limit}", "metric": "ttft", "quantile": 0.5, "max_ratio": limit} for limit in (0.65, 0.99)
        )

        def needed(*benefits: dict[str, Any]) -> tuple[int, int]:
            found = judge(
                comparison(noisy_pairs(4), rules(guardrails=[], benefits=benefits, rounds=(4, 4)))
            ).rounds.needed
            assert found is not None
            return found

        assert needed(near, near | {"id": "b"}) > needed(near, far) == needed(far, near)

    def test_what_rounds_cannot_settle_has_no_number(self) -> None:
        run = comparison(
            good_pairs(n=71), rules(guardrails=[{"id": "r", "metric": "ttft", "quantile": 0.99, "max_ratio": 2}])
        )
        assert judge(run).rounds.needed is None

    def test_a_decided_run_has_no_number(self) -> None:
        assert judge(comparison(good_pairs())).rounds.needed is None


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
        rows = judge(comparison(good_pairs())).latency
        assert len(rows) == 2 * 5
        row = next(row for row in rows if row["arm"] == "tiered" and row["metric"] == "ttft")
        pooled = np.concatenate(
            [p.candidate.requests["first_token_s"] - p.candidate.requests["intended_s"] for p in good_pairs()]
        )
        assert (row["class"], row["count"], row["values"]) == ("long", 1200, 1200)
        assert [row["p50"], row["p90"], row["p99"]] == pytest.approx(np.quantile(pooled, [0.5, 0.9, 0.99]).tolist())
        itl = next(row for row in rows if row["arm"] == "base" and row["metric"] == "itl")
        assert (itl["count"], itl["values"]) == (1200, 4800)

    def test_latencies_of_every_class_and_of_all(self) -> None:
        requests, tokens = request_rows(ttfts(400), classes=["a"] * 200 + ["b"] * 200)
        side = arm_round("base", 1, requests, tokens)
        rows = judge(comparison([RoundPair(1, side, side)])).latency
        assert {row["class"] for row in rows} == {"all", "a", "b"}

    def test_a_class_without_gaps_has_no_row_for_them(self) -> None:
        requests, tokens = request_rows(ttfts(40), output=1)
        side = arm_round("base", 1, requests, tokens)
        rows = judge(comparison([RoundPair(1, side, side)])).latency
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


@cache
def outcome(of: str) -> CandidateVerdict:
    runs: dict[str, Comparison] = {
        "GO": comparison(good_pairs()),
        "NO_GO": comparison(good_pairs(ratio=3.0, hits=0.0)),
        "INCONCLUSIVE": comparison(noisy_pairs()),
        "INVALID": comparison(good_pairs(), arm_differences=("model",)),
    }
    found = judge(runs[of])
    assert found.verdict == of
    return found


class TestCombine:
    @pytest.mark.parametrize(
        ("several", "worst"),
        [
            (["GO", "GO"], "GO"),
            (["GO", "INCONCLUSIVE"], "INCONCLUSIVE"),
            (["NO_GO", "INCONCLUSIVE", "GO"], "NO_GO"),
            (["NO_GO", "INVALID"], "INVALID"),
        ],
    )
    def test_the_worst_is_on_top(self, several: Sequence[str], worst: str) -> None:
        verdicts = [outcome(of) for of in several]
        combined = combine(verdicts)
        assert (combined.verdict, combined.exit_code) == (worst, Outcome(worst).exit_code)
        assert combined.candidates == verdicts
        assert combined.reasons == next(v for v in verdicts if v.verdict == worst).reasons

    def test_one_candidate_stands_alone(self) -> None:
        assert combine([outcome("GO")]).candidates is None

    def test_none_is_an_error(self) -> None:
        with pytest.raises(ValueError, match="no verdict"):
            combine([])

    @pytest.mark.parametrize(("of", "code"), [("GO", 0), ("NO_GO", 1), ("INCONCLUSIVE", 3), ("INVALID", 4)])
    def test_exit_codes(self, of: str, code: int) -> None:
        assert outcome(of).exit_code == code


class TestDecided:
    @pytest.mark.parametrize(
        ("of", "final"), [("GO", True), ("NO_GO", True), ("INCONCLUSIVE", False), ("INVALID", True)]
    )
    def test_more_rounds_change_nothing_about_these(self, of: str, final: bool) -> None:
        assert decided(outcome(of), rules()) is final
        assert decided(combine([outcome(of)]), rules()) is final

    def test_too_few_rounds_so_far_are_made_good_by_more(self) -> None:
        verdict = judge(comparison(good_pairs(2)))
        assert verdict.verdict == "INVALID"
        assert not decided(verdict, rules())
        broken = judge(comparison(good_pairs(2), arm_differences=("model",)))
        assert decided(broken, rules())

    def test_every_candidate_must_be_decided(self) -> None:
        assert not decided(combine([outcome("GO"), outcome("INCONCLUSIVE")]), rules())
        assert not decided(combine([outcome("NO_GO"), outcome("INCONCLUSIVE")]), rules())
        assert decided(combine([outcome("GO"), outcome("NO_GO")]), rules())


def test_profiles_of_the_builder_are_what_they_say() -> None:
    assert TIERED.tier_names == ("device", "host", "disk")
    assert COPY.tiers == BASELINE.tiers
