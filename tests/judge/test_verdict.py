"""How a verdict is reached: validity, then guardrails, then evidence, then benefit."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
from scipy import stats

from kvbench.judge.benefits import judge_benefits
from kvbench.judge.case import build_case
from kvbench.judge.judge import judge
from kvbench.judge.verdict import CandidateVerdict, Outcome
from tests.judge.ask import SLOWER, exact_pairs, noisy_pairs, result_of
from tests.judge.build import COPY, comparison, good_pairs, rules
from tests.judge.change import (
    with_candidate,
)


class TestGo:
    def test_needs_a_proven_benefit_safe_guardrails_and_a_tier_that_was_used(self) -> None:
        verdict = judge(comparison(good_pairs()))
        assert (verdict.verdict, verdict.exit_code, verdict.action) == (Outcome.GO, 0, None)
        assert verdict.reasons[0] == result_of(verdict, "ttft-p50").text
        assert verdict.reasons[0].endswith("proven")
        assert verdict.reasons == [
            result_of(verdict, rule).text
            for rule in ("ttft-p50", "stability", "ttft-p90", "promoted", "hits-worth-it")
        ]

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

    def test_a_benefit_of_two_bounds_is_refuted_by_either_so_they_share_its_level(self) -> None:
        """No file may give a benefit an absolute bound; other rules are refuted no more often by chance."""
        (plain,) = rules().benefits
        ratios = (0.7, 0.75, 0.8)
        logs = np.log(ratios)
        for benefit, bounds in ((plain, 1), (plain.model_copy(update={"max": 50.0}), 2)):
            written = rules().model_copy(update={"benefits": [benefit]})
            (ruling,) = judge_benefits(build_case(comparison(exact_pairs(ratios), written)))
            low, high = (stats.t.isf(level, 2) * stats.sem(logs) for level in (0.025 / bounds, 0.025))
            assert ruling.result.limit == 0.8
            assert ruling.result.decision_ci == pytest.approx(np.exp([logs.mean() - low, logs.mean() + high]))

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

    def test_says_one_number_where_the_noise_leaves_no_range(self) -> None:
        """No failure in 900 requests; 2 % need 183, and 0.3 % need 1,228: a fourth round and a fifth."""
        strict = {"id": "errors", "metric": "error_rate", "max": 0.003}
        verdict = judge(comparison(good_pairs(n=300), rules(guardrails=[strict])))
        assert verdict.rounds.needed == (5, 5)
        assert verdict.reasons[-1] == "at the noise seen so far about 2 more rounds would settle it, after 3"
        verdict = judge(comparison(good_pairs(n=310), rules(guardrails=[strict])))
        assert verdict.reasons[-1] == "at the noise seen so far about 1 more round would settle it, after 3"

    def test_counts_at_the_level_that_earlier_looks_leave(self) -> None:
        """0.3 % takes 1,228 requests at 2.5 %, five rounds of 290; after the looks before the last of twelve rounds
        it takes 1,466, six of them."""
        strict = rules(guardrails=[{"id": "errors", "metric": "error_rate", "max": 0.003}], rounds=(3, 12))
        assert judge(comparison(good_pairs(4, n=290), strict)).rounds.needed == (6, 6)

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

    def test_a_decided_run_has_no_number(self) -> None:
        assert judge(comparison(good_pairs())).rounds.needed is None

    def test_what_rounds_cannot_settle_has_no_number_and_is_named(self) -> None:
        run = comparison(
            good_pairs(n=71), rules(guardrails=[{"id": "r", "metric": "ttft", "quantile": 0.99, "max_ratio": 2}])
        )
        assert judge(run).rounds.needed is None
        assert judge(run).reasons[-1] == "rounds alone do not settle r"


class TestWordsOfWhatIsNeeded:
    """An arm against itself whose median wanders by a tenth, and rules without a benefit, so that guardrails alone
    are open."""

    AT_ITS_LIMIT: ClassVar = {"id": "level", "metric": "ttft", "quantile": 0.5, "max_ratio": 1.0}
    NEAR: ClassVar = {"id": "near", "metric": "ttft", "quantile": 0.5, "max_ratio": 1.2}
    TAIL: ClassVar = {"id": "tail", "metric": "ttft", "quantile": 0.99, "max_ratio": 2.0}
    VERY_MANY = "at the noise seen so far level would take more than 1,000 rounds"

    def judged(self, *guardrails: dict[str, Any], launch: str | None = None) -> CandidateVerdict:
        pairs = exact_pairs((0.9, 1.0, 1 / 0.9))
        if launch is not None:
            pairs = [
                replace(
                    p, baseline=replace(p.baseline, launch=launch), candidate=replace(p.candidate, launch=launch)
                )
                for p in pairs
            ]
        verdict = judge(comparison(pairs, rules(guardrails=guardrails, benefits=[]), candidate=COPY))
        assert verdict.verdict == "INCONCLUSIVE"
        return verdict

    def test_what_lies_at_its_limit_takes_more_than_a_thousand(self) -> None:
        verdict = self.judged(self.AT_ITS_LIMIT)
        assert verdict.rounds.needed is None
        assert verdict.reasons[-1] == self.VERY_MANY

    def test_a_rule_without_a_range_does_not_silence_that_of_others(self) -> None:
        alone, among = self.judged(self.NEAR), self.judged(self.AT_ITS_LIMIT, self.NEAR, self.TAIL)
        assert alone.rounds.needed is not None
        assert among.rounds.needed is None, "that of all"
        assert re.fullmatch(
            r"at the noise seen so far about \d+ to \d+ more rounds would settle it, after 3", alone.reasons[-1]
        )
        assert among.reasons[-3:] == [
            alone.reasons[-1].replace("settle it", "settle near"),
            self.VERY_MANY,
            "rounds alone do not settle tail",
        ]

    def test_an_upper_end_that_is_cut_off_is_told_as_such(self) -> None:
        verdict = self.judged(self.NEAR | {"max_ratio": 1.02})
        assert verdict.rounds.needed is not None
        assert verdict.rounds.needed[1] == 1000
        assert re.fullmatch(r"at the noise .* about \d+ to more than 997 more rounds .*", verdict.reasons[-1])

    def test_one_launch_tells_nothing_of_the_noise(self) -> None:
        verdict = self.judged(self.NEAR, launch="the only one")
        assert verdict.rounds.needed is None
        assert "after 1 launch it cannot be told how many rounds near would take" in verdict.reasons
