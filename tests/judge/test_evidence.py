"""Evidence: the tier was really used, and what is asked for beside that."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from kvbench.judge.case import Ruling, build_case
from kvbench.judge.evidence import RoundPair
from kvbench.judge.evidence_rules import judge_evidence
from kvbench.judge.judge import judge
from kvbench.judge.needed import BEYOND
from kvbench.judge.verdict import RuleResult
from kvbench.spec.profile import Profile
from tests.judge.ask import about, evidence, result_of
from tests.judge.build import (
    BASELINE,
    SCRAPES,
    TIERED,
    against_itself,
    comparison,
    good_pairs,
    metric_rows,
    rules,
    same_pairs,
)
from tests.judge.change import (
    with_candidate,
)


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

    def test_says_what_it_is_about(self) -> None:
        found = evidence(comparison(good_pairs()), "promoted")
        assert about(found) == ("promoted", "evidence", "promoted_tokens", None, "all", "tokens", 1.0)
        assert (found.candidate, found.effect) == (pytest.approx(9000), pytest.approx(9000))
        assert found.text == (
            "9,000 prompt tokens were promoted from disk; at least 1 asked for: the tier was used"
        )

    @pytest.mark.parametrize(
        ("expected", "words"), [(0.0, "the workload never reaches the tier"), (None, "size of disk")]
    )
    def test_promotions_that_were_not_to_be_expected(self, expected: float | None, words: str) -> None:
        run = comparison(self.without_promotions(expected))
        assert evidence(run, "promoted").status == "unknown"
        verdict = judge(run)
        assert verdict.verdict == "INCONCLUSIVE"
        assert words in verdict.reasons[0]

    def test_a_workload_that_never_reaches_the_tier_refutes_no_benefit(self) -> None:
        pairs = []
        for silent, slow in zip(self.without_promotions(0.0), good_pairs(ratio=1.0, hits=0), strict=True):
            tables = {"requests": slow.candidate.requests, "tokens": slow.candidate.tokens}
            pairs.append(replace(silent, candidate=replace(silent.candidate, **tables)))
        verdict = judge(comparison(pairs))
        assert result_of(verdict, "ttft-p50").status == "fail"
        assert verdict.verdict == "INCONCLUSIVE"

    def test_as_many_promotions_as_the_rule_asks_for(self) -> None:
        def asked(tokens: int) -> RuleResult:
            written = [{"id": "p", "metric": "promoted_tokens", "min": tokens}]
            return evidence(comparison(good_pairs(), rules(evidence=written)), "p")

        assert (asked(8999).status, asked(8999).limit) == ("pass", 8999)
        assert asked(9001).status == "unknown"

    def asked_for(self, least: int, pairs: list[RoundPair]) -> Ruling:
        written = [{"id": "p", "metric": "promoted_tokens", "min": least}]
        rulings = judge_evidence(build_case(comparison(pairs, rules(evidence=written, rounds=(3, 12)))))
        return next(ruling for ruling in rulings if ruling.result.rule == "p")

    @pytest.mark.parametrize("expected", [3000.0, 3001.0, 9000.0], ids=["as-many", "one-more", "far-more"])
    def test_some_but_fewer_than_asked_for_refute_nothing(self, expected: float) -> None:
        """9,000 in three rounds: whether `min` is reached depends on how many rounds there will be."""
        pairs = good_pairs()
        for place in range(3):
            pairs = with_candidate(pairs, place, expected_sources={"disk": expected, "computed": 1000.0})
        ruling = self.asked_for(9001, pairs)
        assert ruling.result.status == "unknown"
        assert ruling.result.text == (
            "9,000 prompt tokens were promoted from disk; the tier was used, but 9,001 are asked for"
        )
        assert ruling.needed_units == (4, 4)
        assert self.asked_for(20_000, pairs).needed_units == (7, 7)
        assert self.asked_for(9000, pairs).result.status == "pass"

    def test_a_tier_that_is_never_reached_is_reached_by_no_number_of_rounds(self) -> None:
        """Where some tokens come, a minimum of any size is reached in the end."""
        assert self.asked_for(1, self.without_promotions(0.0)).needed_units is None
        assert self.asked_for(4_000_000, good_pairs()).needed_units == BEYOND
        verdict = judge(comparison(self.without_promotions(0.0)))
        assert verdict.reasons[-1] == "rounds alone do not settle promoted"

    def test_none_of_fewer_than_asked_for_refute_the_tier_all_the_same(self) -> None:
        """15,000 were to be expected so far and none came, whatever the rule asks for in the end."""
        for least in (1, 50_000):
            ruling = self.asked_for(least, self.without_promotions(5000.0))
            assert ruling.result.status == "fail"
            assert ruling.result.text.endswith("about 15,000: the tier does not work")
            assert ruling.needed_units is None

    @pytest.mark.parametrize(("expected", "status"), [(128, "unknown"), (2000, "unknown"), (2001, "fail")])
    def test_so_few_that_the_prediction_may_err_by_them_refute_nothing(self, expected: int, status: str) -> None:
        pairs = self.without_promotions(0.0)
        for place in range(3):
            told = {"device": 0.0, "host": 0.0, "disk": float(expected), "computed": 100_000.0 - expected}
            pairs = with_candidate(pairs, place, expected_sources=told)
        found = self.asked_for(1, pairs).result
        assert found.status == status
        if status == "unknown":
            assert f"the workload hardly reaches the tier, about {3 * expected:,} (" in found.text

    def test_a_rule_may_name_another_source(self) -> None:
        written = [{"id": "p", "metric": "promoted_tokens", "source": "host", "min": 1}]
        assert evidence(comparison(good_pairs(), rules(evidence=written)), "p").candidate == pytest.approx(6000)

    def test_holds_where_the_rules_do_not_mention_it(self) -> None:
        run = comparison(self.without_promotions(5000.0), rules(evidence=[]))
        assert evidence(run, "tier-used").status == "fail"
        assert [ruling.result.rule for ruling in judge_evidence(build_case(run))] == ["tier-used", "hits-worth-it"]
        assert judge(run).verdict == "NO_GO"

    def test_of_a_tier_before_the_newest_leaves_the_newest_to_be_shown(self) -> None:
        """Candidate: host and disk. The host serves; the disk, which a rollback would disable, never does."""
        from_host = [{"id": "from-host", "metric": "promoted_tokens", "source": "host", "min": 1}]
        run = comparison(self.without_promotions(5000.0), rules(evidence=from_host))
        assert evidence(run, "from-host").status == "pass"
        found = evidence(run, "tier-used")
        assert (found.status, found.text.split(";")[0]) == ("fail", "0 prompt tokens were promoted from disk")
        assert judge(run).verdict == "NO_GO"
        never_reached = comparison(self.without_promotions(0.0), rules(evidence=from_host))
        assert judge(never_reached).verdict == "INCONCLUSIVE"

    @pytest.mark.parametrize("named", [{}, {"source": "disk"}])
    def test_a_rule_on_the_newest_tier_is_enough(self, named: dict[str, str]) -> None:
        written = [{"id": "p", "metric": "promoted_tokens", "min": 1} | named]
        rulings = judge_evidence(build_case(comparison(good_pairs(), rules(evidence=written))))
        assert [ruling.result.rule for ruling in rulings] == ["p", "hits-worth-it"]

    def test_is_not_asked_for_twice(self) -> None:
        rulings = judge_evidence(build_case(comparison(good_pairs())))
        assert [ruling.result.rule for ruling in rulings] == ["promoted", "hits-worth-it"]

    def test_other_evidence_is_judged_by_its_own_metric(self) -> None:
        written = [{"id": "share", "metric": "source_share", "source": "disk", "min": 0.5}]
        run = comparison(good_pairs(), rules(evidence=written))
        assert evidence(run, "share").status == "fail"
        assert judge(run).verdict == "NO_GO"

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
        assert evidence(comparison(good_pairs(), rules(evidence=written)), "p").status == "unknown"

    def test_without_complete_rounds_it_is_unknown(self) -> None:
        pairs = [replace(p, candidate=replace(p.candidate, complete=False)) for p in good_pairs()]
        assert evidence(comparison(pairs), "promoted").status == "unknown"


class TestLevels:
    """Any piece of evidence that is refuted is a NO_GO: those that chance may refute share the level."""

    SHARE = {"id": "share", "metric": "source_share", "source": "host", "min": 0.5}  # noqa: RUF012
    HOST_ALONE = TIERED.model_copy(update={"tiers": TIERED.tiers.model_copy(update={"disk": None})})

    def pairs(self) -> list[RoundPair]:
        return [
            good_pairs(index, sources=(1000.0, 5000.0 + 100 * index, 3000.0, 1000.0))[-1] for index in (1, 2, 4)
        ]

    @pytest.mark.parametrize(
        ("candidate", "more", "tests"),
        [
            (HOST_ALONE, [], 2),  # itself and hits
            (TIERED, [], 3),  # and hits of the newest tier alone
            (TIERED, [SHARE | {"id": "other"}], 4),
            (TIERED, [{"id": "promoted", "metric": "promoted_tokens", "source": "host", "min": 1}], 3),
        ],
        ids=["one-tier", "two-tiers", "two-rules", "a-count-takes-none"],
    )
    def test_refuting_takes_its_share_and_showing_does_not(
        self, candidate: Profile, more: list[dict[str, object]], tests: int
    ) -> None:
        run = comparison(self.pairs(), rules(evidence=[self.SHARE, *more]), candidate=candidate)
        self.holds(evidence(run, "share"), tests)

    def test_two_bounds_share_what_falls_on_their_rule(self) -> None:
        both = self.SHARE | {"max": 0.9}
        found = evidence(comparison(self.pairs(), rules(evidence=[both])), "share")
        assert found.limit == 0.5
        self.holds(found, 6)

    def holds(self, found: RuleResult, tests: int) -> None:
        shares = np.array([float(row["candidate"] or 0) for row in found.windows])
        assert len(set(shares)) == 3
        low = shares.mean() - stats.t.isf(0.025, 2) * stats.sem(shares)
        high = shares.mean() + stats.t.isf(0.025 / tests, 2) * stats.sem(shares)
        assert found.decision_ci == pytest.approx((low, high))


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
