"""Rules on one figure a round: ratios to the baseline, absolute budgets."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
from scipy import stats

from kvbench.judge.boundary_table import BOUNDARIES
from kvbench.judge.case import build_case
from kvbench.judge.guardrails import breach_level, judge_guardrails
from kvbench.spec.rules import Guardrail
from tests.judge.ask import RATIO, about, exact_pairs, guarded, guardrail
from tests.judge.build import comparison, pair, rules, ttfts, workload
from tests.judge.change import (
    fail,
)


class TestARatio:
    RATIOS = (1.00, 1.05, 1.02)

    def test_is_the_mean_log_ratio_of_per_round_quantiles(self) -> None:
        found = guardrail(exact_pairs(self.RATIOS), RATIO)
        logs = np.log(self.RATIOS)
        assert found.effect == pytest.approx(math.exp(logs.mean()))
        expected = np.exp(stats.t.interval(0.95, 2, logs.mean(), stats.sem(logs)))
        assert found.ci == pytest.approx(expected)
        assert found.decision_ci == pytest.approx(expected)
        assert (found.status, found.limit, found.unit, found.quantile, found.class_) == (
            "pass",
            1.2,
            "s",
            0.5,
            "all",
        )

    def test_shows_both_arms_so_that_their_ratio_is_the_effect(self) -> None:
        found = guardrail(exact_pairs(self.RATIOS), RATIO)
        assert found.baseline is not None
        assert found.candidate is not None
        assert found.candidate / found.baseline == pytest.approx(found.effect)
        medians = [np.median(ttfts(40, seed=index)) for index in (1, 2, 3)]
        assert found.baseline == pytest.approx(stats.gmean(medians))

    def test_says_what_it_is_about(self) -> None:
        found = guardrail(exact_pairs(self.RATIOS), RATIO | {"class": "long"})
        assert about(found) == ("r", "guardrail", "ttft", 0.5, "long", "s", 1.2)

    def test_lists_every_round(self) -> None:
        found = guardrail(exact_pairs(self.RATIOS), RATIO)
        assert [row["round"] for row in found.windows] == [1.0, 2.0, 3.0]
        assert [row["ratio"] for row in found.windows] == pytest.approx(list(self.RATIOS))
        assert found.windows[0]["baseline"] == pytest.approx(np.median(ttfts(40, seed=1)))
        assert found.windows[0]["candidate"] == pytest.approx(np.median(ttfts(40, seed=1)))

    def test_says_it_in_one_sentence(self) -> None:
        text = guardrail(exact_pairs((0.18, 0.2, 0.19)), RATIO | {"class": "long"}).text
        assert text.startswith("TTFT p50 of class long: ")
        assert "instead of" in text
        assert text.endswith("at most 1.2 asked for: safe")
        assert "ratio 0.19 [0.167, 0.216]" in text

    @pytest.mark.parametrize(
        ("ratios", "status"),
        [
            ((1.0, 1.05, 1.02), "pass"),
            ((1.5, 1.6, 1.55), "fail"),
            ((1.1, 1.2, 1.3), "unknown"),
            ((0.9, 1.2, 1.1), "unknown"),
        ],
    )
    def test_is_safe_within_the_limit_a_breach_beyond_it_and_unknown_between(
        self, ratios: Sequence[float], status: str
    ) -> None:
        found = guardrail(exact_pairs(ratios), RATIO)
        assert found.status == status
        low, high = found.decision_ci or (0, 0)
        assert (high <= 1.2) == (status == "pass")
        assert (low > 1.2) == (status == "fail")

    def test_looking_early_takes_a_wider_interval(self) -> None:
        found = guardrail(exact_pairs(self.RATIOS), RATIO, rounds=(3, 12))
        logs = np.log(self.RATIOS)
        width = BOUNDARIES[0.025, 3, 12][0] * stats.sem(logs)
        assert found.decision_ci == pytest.approx(np.exp([logs.mean() - width, logs.mean() + width]))
        assert found.status == "unknown"
        assert found.ci == pytest.approx(np.exp(stats.t.interval(0.95, 2, logs.mean(), stats.sem(logs))))

    def test_a_breach_takes_its_share_of_the_level_and_safety_does_not(self) -> None:
        others = [RATIO | {"id": f"other-{n}"} for n in range(3)]
        alone, among = (guardrail(exact_pairs(self.RATIOS), RATIO, *more) for more in ((), others))
        assert alone.decision_ci is not None
        assert among.decision_ci is not None
        assert among.decision_ci[1] == pytest.approx(alone.decision_ci[1])
        logs = np.log(self.RATIOS)
        low = logs.mean() - stats.t.isf(0.025 / 4, 2) * stats.sem(logs)
        assert among.decision_ci[0] == pytest.approx(math.exp(low))
        assert among.ci == alone.ci

    def test_two_bounds_of_one_rule_share_what_falls_on_it(self) -> None:
        """Each is a test that may fail by chance, so two guardrails of two bounds are four."""
        both = RATIO | {"max": 50.0}
        alone, among = (guardrail(exact_pairs(self.RATIOS), both, *more) for more in ((), (RATIO | {"id": "o"},)))
        logs = np.log(self.RATIOS)
        for found, tests in ((alone, 2), (among, 4)):
            assert found.limit == 1.2
            low = logs.mean() - stats.t.isf(0.025 / tests, 2) * stats.sem(logs)
            high = logs.mean() + stats.t.isf(0.025, 2) * stats.sem(logs)
            assert found.decision_ci == pytest.approx((math.exp(low), math.exp(high)))

    def test_a_rule_of_two_bounds_breaks_no_oftener_by_chance_than_one_of_one(self) -> None:
        """Both at their margin: 6,000 draws of three rounds, of which 2.5 % may be called a breach."""
        rng = np.random.default_rng(8)
        rule = Guardrail.model_validate(RATIO | {"max": 2.0})
        level = breach_level(rule, [rule], 0.025)
        draws = rng.normal(0, 0.1, (2, 6000, 3))
        t = draws.mean(axis=2) / (draws.std(axis=2, ddof=1) / 3**0.5)
        share = float(np.mean((t > stats.t.isf(level, 2)).any(axis=0)))
        assert share <= 0.025 + 3 * (0.025 * 0.975 / 6000) ** 0.5
        assert float(np.mean((t > stats.t.isf(0.025, 2)).any(axis=0))) > 0.04, "what it was before"

    def test_sustained_rules_have_no_share_of_the_level(self) -> None:
        sustained = {
            "id": "s", "metric": "ttft", "quantile": 0.99, "max": 2.0, "sustained": {"window": 10, "for": 40},
        }  # fmt: skip
        alone, among = (guardrail(exact_pairs(self.RATIOS), RATIO, *more) for more in ((), (sustained,)))
        assert among.decision_ci == alone.decision_ci

    def test_confidence_sets_the_level(self) -> None:
        run = comparison(exact_pairs(self.RATIOS), rules(guardrails=[RATIO], confidence=0.8))
        logs = np.log(self.RATIOS)
        expected = np.exp(stats.t.interval(0.8, 2, logs.mean(), stats.sem(logs)))
        assert guarded(run, "r").decision_ci == pytest.approx(expected)

    def test_a_lower_bound_is_its_mirror_image(self) -> None:
        load = workload(classes={"long": {"suffix_tokens": 1, "output_tokens": 5, "targets": {"ttft": 1.0}}})
        rule = {"metric": "goodput", "min_ratio": 0.9}
        pairs = [pair(index, ratio=ratio, n=40) for index, ratio in enumerate((1.0, 1.0, 1.0), start=1)]
        found = guardrail(pairs, rule, RATIO | {"id": "other"}, workload=load)
        assert (found.unit, found.limit) == ("1/s", 0.9)
        logs = np.log([row["ratio"] for row in found.windows])
        spread = max(np.std(logs, ddof=1), *(1 / (100 * min(r["baseline"], r["candidate"])) for r in found.windows))
        assert found.decision_ci == pytest.approx(
            np.exp(
                [
                    logs.mean() - stats.t.isf(0.025, 2) * spread / 3**0.5,
                    logs.mean() + stats.t.isf(0.025 / 2, 2) * spread / 3**0.5,
                ]
            )
        )

    def test_rounds_that_share_a_launch_count_once(self) -> None:
        pairs = exact_pairs((1.0, 1.1, 1.02, 1.12))
        shared = [replace(p, candidate=replace(p.candidate, launch=str(n // 2))) for n, p in enumerate(pairs)]
        found = guardrail(shared, RATIO, rounds=(4, 4))
        logs = np.log([1.0, 1.1, 1.02, 1.12]).reshape(2, 2).mean(axis=1)
        assert found.ci == pytest.approx(np.exp(stats.t.interval(0.95, 1, logs.mean(), stats.sem(logs))))


class TestABudget:
    RULE: ClassVar = {"metric": "ttft", "quantile": 0.5, "max": 2.0}

    def test_is_held_against_the_candidates_quantiles_alone(self) -> None:
        found = guardrail(exact_pairs((1.0, 1.02, 1.01)), self.RULE)
        logs = np.log([float(row["candidate"]) for row in found.windows])
        assert found.decision_ci == pytest.approx(np.exp(stats.t.interval(0.95, 2, logs.mean(), stats.sem(logs))))
        assert (found.status, found.limit) == ("pass", 2.0)
        assert "ratio" not in found.windows[0]
        assert found.text.startswith("TTFT p50 in a typical round: ")
        assert found.text.endswith("at most 2 s asked for: safe, in each single round as well")

    @pytest.mark.parametrize(("median", "status"), [(1.0, "pass"), (2.0, "unknown"), (3.0, "fail")])
    def test_has_three_outcomes(self, median: float, status: str) -> None:
        assert guardrail(exact_pairs((1.0, 1.02, 1.01), median=median), self.RULE).status == status

    def test_does_not_need_the_baseline(self) -> None:
        pairs = [
            replace(p, baseline=replace(p.baseline, requests=p.baseline.requests.assign(**{"class": "other"})))
            for p in exact_pairs((1.0, 1.02, 1.01))
        ]
        found = guardrail(pairs, self.RULE | {"class": "long"})
        assert found.status == "pass"
        assert found.baseline is None
        assert found.windows[0]["baseline"] is None

    def test_is_broken_when_no_request_ever_comes_back(self) -> None:
        pairs = exact_pairs((1.0, 1.0, 1.0))
        pairs = [
            replace(p, candidate=replace(p.candidate, requests=fail(p.candidate.requests, slice(None))))
            for p in pairs
        ]
        assert guardrail(pairs, self.RULE).status == "fail"
        assert guardrail(pairs, self.RULE | {"max": 60.0}).status == "unknown"
        assert guardrail(pairs, self.RULE, rounds=(4, 12)).status == "unknown"

    def test_kept_in_the_typical_round_names_the_terrible_one(self) -> None:
        """Eleven of 0.2 s and one at the time-out have a geometric mean of 0.33 s, and an interval below 2 s."""
        pairs = exact_pairs((*(0.2 + 0.002 * n for n in range(11)), 60.0))
        found = guardrail(pairs, self.RULE, rounds=(12, 12))
        assert found.decision_ci is not None
        assert found.decision_ci[1] < 2.0
        assert (found.status, found.effect) == ("pass", pytest.approx(0.33, abs=0.05))
        assert "at most 2 s asked for: safe, though round 12 alone had " in found.text
        assert "alone" not in guardrail(pairs[:11], self.RULE, rounds=(11, 11)).text

    def test_tells_every_round_beyond_it(self) -> None:
        run = comparison(
            exact_pairs((0.2, 2.5, 0.21, 0.2, 2.6, 0.2, 0.22)), rules(guardrails=[{"id": "r", **self.RULE}])
        )
        (ruling,) = (each for each in judge_guardrails(build_case(run)) if each.result.rule == "r")
        assert ruling.result.status == "pass"
        assert re.search(r"though round 2 alone had 2\.\d+ s; round 5 alone had 2\.\d+ s$", ruling.result.text)

    def test_of_a_round_at_the_time_out_says_that_it_had_so_much_or_more(self) -> None:
        pairs = exact_pairs((0.2, 0.21, 0.2))
        last = replace(pairs[2].candidate, requests=fail(pairs[2].candidate.requests, slice(None)))
        found = guardrail([*pairs[:2], replace(pairs[2], candidate=last)], self.RULE | {"max": 1e6})
        assert found.status == "unknown"
        assert found.text.endswith("not safe, since round 3 alone had 60 s or more, the request time-out")

    def test_is_broken_as_before_whatever_a_single_round_had(self) -> None:
        found = guardrail(exact_pairs((3.0, 3.2, 2.8)), self.RULE | {"max": 1.0})
        assert found.status == "fail"
        assert found.text.endswith("at most 1 s asked for: breach")

    def test_beyond_the_time_out_is_never_kept(self) -> None:
        """At 60 s it is not known how much more."""
        pairs = exact_pairs((1.0, 1.0, 1.0))
        pairs = [
            replace(p, candidate=replace(p.candidate, requests=fail(p.candidate.requests, slice(n, None))))
            for n, p in zip((0, 20, 21), pairs, strict=True)
        ]
        found = guardrail(pairs, self.RULE | {"max": 1e6})
        assert found.status == "unknown"
        assert "round 1 alone had 60 s or more, the request time-out" in found.text

    def test_a_ratio_is_no_budget(self) -> None:
        """A round far above the others widens its interval, and that is all."""
        found = guardrail(exact_pairs((1.0, 1.25, 1.0, 0.9, 0.95)), RATIO, rounds=(5, 5))
        assert (found.status, "alone" in found.text, "typical" in found.text) == ("pass", False, False)

    def test_and_a_ratio_in_one_rule_must_both_hold(self) -> None:
        both = self.RULE | {"max_ratio": 1.2}
        assert guardrail(exact_pairs((1.0, 1.02, 1.01)), both).limit == 1.2
        broken = guardrail(exact_pairs((1.0, 1.02, 1.01), median=3.0), both)
        assert (broken.status, broken.limit) == ("fail", 2.0)
