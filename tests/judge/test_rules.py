"""One rule at a time: ratios, budgets, rates, and what makes a rule unknown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
from scipy import stats

from kvbench.judge.boundary_table import BOUNDARIES
from kvbench.judge.evidence import RoundPair
from kvbench.judge.judge import judge
from kvbench.judge.rates import share_upper
from kvbench.judge.verdict import RuleResult
from tests.judge.build import (
    WARM_S,
    arm_round,
    comparison,
    fail,
    good_pairs,
    host_rows,
    metric_rows,
    pair,
    request_rows,
    result_of,
    rules,
    same_pairs,
    ttfts,
    with_baseline,
    with_candidate,
    workload,
)

RATIO = {"id": "r", "metric": "ttft", "quantile": 0.5, "max_ratio": 1.2}
Pairs = Sequence[RoundPair]


def guardrail(
    pairs: Pairs, rule: dict[str, Any], *others: dict[str, Any], rounds: tuple[int, int] = (3, 3), **more: Any
) -> RuleResult:
    written = {"id": "r", **rule}
    return result_of(judge(comparison(pairs, rules(guardrails=[written, *others], rounds=rounds), **more)), "r")


def exact_pairs(ratios: Sequence[float], n: int = 40, median: float = 1.0) -> list[RoundPair]:
    """Pairs whose TTFT ratio is exactly the one given, at every quantile."""
    return [
        RoundPair(
            index,
            arm_round("base", index, *request_rows(ttfts(n, median, seed=index))),
            arm_round("tiered", index, *request_rows(ttfts(n, median, seed=index) * ratio)),
        )
        for index, ratio in enumerate(ratios, start=1)
    ]


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
        assert result_of(judge(run), "r").decision_ci == pytest.approx(expected)

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
        assert "2 s asked for: safe" in found.text

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

    def test_and_a_ratio_in_one_rule_must_both_hold(self) -> None:
        both = self.RULE | {"max_ratio": 1.2}
        assert guardrail(exact_pairs((1.0, 1.02, 1.01)), both).limit == 1.2
        broken = guardrail(exact_pairs((1.0, 1.02, 1.01), median=3.0), both)
        assert (broken.status, broken.limit) == ("fail", 2.0)


class TestErrorRate:
    RULE: ClassVar = {"metric": "error_rate", "max": 0.02}

    def failing(self, failed: Sequence[int], n: int = 170) -> list[RoundPair]:
        pairs = good_pairs(len(failed), n=n)
        for place, count in enumerate(failed):
            pairs = with_candidate(pairs, place, requests=fail(pairs[place].candidate.requests, slice(0, count)))
        return pairs

    def test_without_a_failure_in_five_hundred_two_per_cent_are_safe(self) -> None:
        found = guardrail(self.failing([0, 0, 0]), self.RULE)
        assert found.status == "pass"
        assert found.decision_ci == pytest.approx((0.0, share_upper(0, 510, 0.025)))
        assert (found.baseline, found.candidate, found.effect, found.unit) == (0.0, 0.0, 0.0, "fraction")
        assert found.text == "error rate: 0 of 510 failed [0 %, 0.721 %]; at most 2 % asked for: safe"

    @pytest.mark.parametrize(
        ("failed", "status"), [((2, 0, 1), "pass"), ((3, 3, 2), "unknown"), ((9, 9, 9), "fail")]
    )
    def test_is_pooled_over_rounds(self, failed: Sequence[int], status: str) -> None:
        found = guardrail(self.failing(failed), self.RULE)
        assert found.status == status
        exact = stats.binomtest(sum(failed), 510).proportion_ci(0.95, method="exact")
        assert found.ci == pytest.approx((exact.low, exact.high))

    def test_while_looking_early_takes_a_wider_bound(self) -> None:
        found = guardrail(self.failing([0, 0, 0]), self.RULE, rounds=(3, 12))
        level = stats.t.sf(BOUNDARIES[0.025, 3, 12][0], 2)
        assert found.decision_ci == pytest.approx((0.0, share_upper(0, 510, level)))
        assert level == pytest.approx(0.025 / 16, rel=1e-3)

    def test_before_the_first_look_nothing_is_decided(self) -> None:
        found = guardrail(self.failing([0, 0]), self.RULE)
        assert (found.status, found.decision_ci) == ("unknown", None)

    def test_of_one_class(self) -> None:
        pairs = self.failing([9, 9, 9])
        pairs = [
            replace(
                p,
                candidate=replace(
                    p.candidate, requests=p.candidate.requests.assign(**{"class": ["a"] * 9 + ["b"] * 161})
                ),
            )
            for p in pairs
        ]
        pairs = [
            replace(p, baseline=replace(p.baseline, requests=p.baseline.requests.assign(**{"class": "b"})))
            for p in pairs
        ]
        found = guardrail(pairs, self.RULE | {"class": "b"})
        assert (found.status, found.candidate, found.class_) == ("pass", 0.0, "b")
        assert guardrail(pairs, self.RULE | {"class": "none"}).status == "unknown"

    def test_against_the_baseline(self) -> None:
        pairs = self.failing([30, 30, 30])
        for place in range(3):
            pairs = with_baseline(pairs, place, requests=fail(pairs[place].baseline.requests, slice(0, 10)))
        found = guardrail(pairs, {"metric": "error_rate", "max_ratio": 1.1})
        assert (found.status, found.effect) == ("fail", pytest.approx(3.0))
        assert "90 of 510 failed instead of 30 of 510, ratio [" in found.text

    def test_against_a_baseline_without_failures_is_unbounded(self) -> None:
        found = guardrail(self.failing([1, 0, 0]), {"metric": "error_rate", "max_ratio": 1.1})
        assert (found.status, found.effect, found.decision_ci, found.ci) == ("unknown", None, None, None)
        assert "unbounded" in found.text


class TestGoodput:
    LOAD = workload(classes={"long": {"suffix_tokens": 1, "output_tokens": 5, "targets": {"ttft": 1.0}}})

    def test_is_good_requests_per_second_of_the_measured_part(self) -> None:
        found = guardrail(good_pairs(), {"metric": "goodput", "min_ratio": 0.9}, workload=self.LOAD)
        assert found.windows[0]["candidate"] == pytest.approx(4.0, abs=0.05)
        assert found.status == "pass"

    def test_that_is_the_same_in_every_round_is_known_to_one_request(self) -> None:
        """All 400 requests are good in both arms: no spread, but a count is known to one."""
        pairs = [pair(index, ratio=0.9, median=0.1, names=("base", "tiered")) for index in (1, 2, 3)]
        found = guardrail(pairs, {"metric": "goodput", "min_ratio": 0.95}, workload=self.LOAD)
        assert found.effect == 1.0
        width = stats.t.isf(0.025, 2) / 400 / 3**0.5
        assert found.decision_ci == pytest.approx((math.exp(-width), math.exp(width)))
        assert found.status == "pass"

    def test_of_nothing_in_one_arm_is_half_a_request(self) -> None:
        pairs = [pair(index, ratio=0.01, median=9.0, n=100) for index in (1, 2, 3)]
        found = guardrail(pairs, {"metric": "goodput", "min_ratio": 1.1}, workload=self.LOAD)
        assert [row["ratio"] for row in found.windows] == pytest.approx([100.5 / 0.5] * 3)

    def test_of_nothing_in_both_arms_is_no_ratio(self) -> None:
        pairs = [pair(index, ratio=0.9, median=9.0, n=40) for index in (1, 2, 3)]
        found = guardrail(pairs, {"metric": "goodput", "min_ratio": 1.1}, workload=self.LOAD)
        assert found.status == "unknown"
        assert "not above zero in round 1" in found.text

    def test_against_an_absolute_minimum(self) -> None:
        found = guardrail(good_pairs(), {"metric": "goodput", "min": "2/s"}, workload=self.LOAD)
        assert (found.status, found.limit) == ("pass", 2.0)
        assert found.text.startswith("goodput: 4/s [3.9")
        assert guardrail(good_pairs(), {"metric": "goodput", "min": "9/s"}, workload=self.LOAD).status == "fail"

    def test_of_a_class_without_requests_is_unknown(self) -> None:
        found = guardrail(good_pairs(), {"metric": "goodput", "min": 2.0, "class": "none"})
        assert found.text == "goodput of class none has no request in round 1"


class TestOtherMetrics:
    def test_output_throughput(self) -> None:
        found = guardrail(good_pairs(n=40), {"metric": "throughput_tokens", "min": 1.0})
        assert found.candidate == pytest.approx(2.0)
        assert found.unit == "tokens/s"

    def test_the_share_of_a_source(self) -> None:
        found = guardrail(good_pairs(), {"metric": "source_share", "source": "disk", "min": 0.2})
        assert (found.status, found.candidate) == ("pass", pytest.approx(0.3))
        assert found.text.startswith("source share from disk: 30 % [")

    def test_the_share_of_a_source_needs_all_sources(self) -> None:
        metrics = metric_rows({("prompt_tokens_by_source", "device"): [0, 5]}, [5.0, 500.0])
        pairs = with_candidate(good_pairs(), 0, metrics=metrics)
        found = guardrail(pairs, {"metric": "source_share", "source": "device", "min": 0.2})
        assert (
            found.text
            == "source share from device is unknown: the engine of tiered does not tell its sources apart"
        )

    def test_the_share_of_a_source_of_no_tokens(self) -> None:
        pairs = good_pairs(sources=(0, 0, 0, 0))
        found = guardrail(pairs, {"metric": "source_share", "source": "disk", "min": 0.2})
        assert found.text.endswith("has no prompt token in round 1")

    def test_tokens_from_a_source(self) -> None:
        assert guardrail(good_pairs(), {"metric": "promoted_tokens", "min": 1}).candidate == pytest.approx(3000)
        found = guardrail(good_pairs(), {"metric": "promoted_tokens", "source": "host", "min": 1})
        assert found.candidate == pytest.approx(2000)
        metrics = metric_rows({("prompt_tokens_by_source", "device"): [0, 5]}, [5.0, 500.0])
        found = guardrail(with_candidate(good_pairs(), 1, metrics=metrics), {"metric": "promoted_tokens", "min": 1})
        assert found.text == "promoted tokens is unknown: the engine of tiered does not tell tokens from disk apart"

    def test_tokens_of_no_tier(self) -> None:
        run = comparison(same_pairs(), rules(guardrails=[{"id": "r", "metric": "promoted_tokens", "min": 1}]))
        run = replace(run, candidate=run.baseline.model_copy(update={"name": "copy"}))
        assert result_of(judge(run), "r").text.endswith("needs a tier that is new, or a `source`")

    def test_a_counter_of_the_engine_is_its_increase(self) -> None:
        pairs = good_pairs()
        for place in range(3):
            rows = metric_rows({("preemptions", None): [1, 2, 5 + place]}, [1.0, WARM_S, 120.0])
            pairs = with_candidate(pairs, place, metrics=rows)
        found = guardrail(pairs, {"metric": "preemptions", "max": 50})
        assert [row["candidate"] for row in found.windows] == [3.0, 4.0, 5.0]
        assert found.status == "pass"
        assert found.unit == "requests"

    def test_a_counter_of_seconds_is_not_a_count(self) -> None:
        pairs = good_pairs()
        for place in range(3):
            rows = metric_rows({("disk_read_seconds", None): [0, 2]}, [1.0, 120.0])
            pairs = with_candidate(pairs, place, metrics=rows)
        assert guardrail(pairs, {"metric": "disk_read_seconds", "max": 50}).status == "unknown"

    def test_a_gauge_is_its_mean_over_the_measured_part(self) -> None:
        pairs = good_pairs()
        for place in range(3):
            rows = metric_rows(
                {("requests_waiting", "a"): [99, 1, 2 + place], ("requests_waiting", "b"): [99, 1, 1]},
                [1.0, 20.0, 30.0],
            )
            pairs = with_candidate(pairs, place, metrics=rows)
        found = guardrail(pairs, {"metric": "requests_waiting", "max": 50})
        assert [row["candidate"] for row in found.windows] == [2.5, 3.0, 3.5]

    def test_a_histogram_is_its_mean(self) -> None:
        pairs = good_pairs()
        for place in range(3):
            rows = metric_rows(
                {("engine_ttft_sum", None): [1, 5 + place], ("engine_ttft_count", None): [1, 5]}, [1.0, 120.0]
            )
            pairs = with_candidate(pairs, place, metrics=rows)
        found = guardrail(pairs, {"metric": "engine_ttft", "max": 50})
        assert [row["candidate"] for row in found.windows] == [1.0, 1.25, 1.5]

    @pytest.mark.parametrize("metric", ["preemptions", "requests_waiting", "engine_ttft"])
    def test_what_the_engine_does_not_report_is_unknown(self, metric: str) -> None:
        found = guardrail(good_pairs(), {"metric": metric, "max": 50})
        assert found.text == f"{metric.replace('_', ' ')} was not reported by tiered in round 1"

    def test_host_memory_is_the_peak_of_the_engine(self) -> None:
        rows = host_rows()
        memory = rows.iloc[:3].assign(name="engine_memory_bytes", value=[2.0**30, 2.0**31, 2.0**30])
        pairs = [replace(p, candidate=replace(p.candidate, host=memory)) for p in good_pairs()]
        found = guardrail(pairs, {"metric": "host_memory", "max": "4GiB"})
        assert found.candidate == 2.0**31
        assert found.status == "unknown"
        missing = guardrail(good_pairs(), {"metric": "host_memory", "max": "4GiB"})
        assert missing.text == "host memory was not recorded for tiered in round 1"

    @pytest.mark.parametrize("metric", ["capacity", "quote_recall"])
    def test_what_a_comparison_does_not_have_is_unknown(self, metric: str) -> None:
        found = guardrail(good_pairs(), {"metric": metric, "min": 0.5})
        assert found.status == "unknown"

    def test_what_is_not_known_by_class_says_so(self) -> None:
        assert guardrail(good_pairs(), {"metric": "preemptions", "max": 1, "class": "long"}).text.endswith(
            "by class"
        )


class TestUnknown:
    def test_a_sample_that_cannot_carry_the_quantile(self) -> None:
        found = guardrail(good_pairs(n=71), {"metric": "ttft", "quantile": 0.99, "max_ratio": 1.2})
        assert found.status == "unknown"
        assert found.text == (
            "TTFT p99 needs 300 requests a round, round 1 of tiered has 71; they carry a quantile of at most 0.95"
        )
        assert (found.limit, found.unit, found.quantile) == (1.2, "s", 0.99)

    def test_too_few_to_carry_anything(self) -> None:
        assert (
            "they carry no quantile"
            in guardrail(good_pairs(n=5), {"metric": "ttft", "quantile": 0.5, "max": 1}).text
        )

    def test_for_itl_requests_count_not_gaps(self) -> None:
        rule = {"metric": "itl", "quantile": 0.99, "max_ratio": 1.2}
        assert guardrail(good_pairs(n=299), rule).status == "unknown"
        assert guardrail(good_pairs(n=300), rule).status == "pass"

    def test_one_round_that_is_too_small_is_enough(self) -> None:
        pairs = good_pairs(n=300)
        pairs[2] = pair(3, ratio=0.3, n=299)
        found = guardrail(pairs, {"metric": "ttft", "quantile": 0.99, "max_ratio": 1.2})
        assert "round 3 of tiered has 299" in found.text

    def test_a_class_that_nobody_sent(self) -> None:
        found = guardrail(good_pairs(), RATIO | {"class": "none"})
        assert found.text == "TTFT p50 of class none has no request in round 1"

    def test_a_single_round(self) -> None:
        found = guardrail(good_pairs(1), RATIO, rounds=(1, 1))
        assert (found.status, found.ci, found.decision_ci) == ("unknown", None, None)
        assert found.text.endswith("1 independent round cannot decide it yet")

    def test_rounds_that_agree_to_the_last_digit(self) -> None:
        found = guardrail(exact_pairs((1.0, 1.0, 1.0)), RATIO)
        assert found.status == "unknown"
        assert "agree to the last digit" in found.text
        assert found.effect == 1.0

    def test_a_scaled_copy_of_the_baseline_was_not_measured(self) -> None:
        assert guardrail(exact_pairs((0.5, 0.5, 0.5)), RATIO).status == "unknown"

    def test_times_that_are_no_numbers_are_not_a_pass(self) -> None:
        pairs = with_candidate(
            good_pairs(), 1, requests=good_pairs()[1].candidate.requests.assign(intended_s=np.nan)
        )
        found = guardrail(pairs, RATIO)
        assert found.status != "pass"

    def test_a_zero_gap_has_no_ratio(self) -> None:
        pairs = good_pairs()
        for place in range(3):
            requests, tokens = request_rows(ttfts(400, seed=place), gaps=0.0)
            pairs = with_candidate(pairs, place, requests=requests, tokens=tokens)
        found = guardrail(pairs, {"metric": "itl", "quantile": 0.5, "max_ratio": 1.2})
        assert "not above zero in round 1" in found.text
        budget = guardrail(pairs, {"metric": "itl", "quantile": 0.5, "max": 1.0})
        assert budget.text == "ITL p50 is zero in a round: take a higher quantile"

    def test_no_complete_pair(self) -> None:
        pairs = [replace(p, candidate=replace(p.candidate, complete=False)) for p in good_pairs()]
        for rule in (RATIO, {"metric": "error_rate", "max": 0.02}):
            assert guardrail(pairs, rule).status == "unknown"

    def test_only_complete_pairs_are_used(self) -> None:
        pairs = with_candidate(exact_pairs((1.0, 1.05, 1.02, 9.0)), 3, complete=False)
        assert len(guardrail(pairs, RATIO).windows) == 3


class TestARuleThatSaysNothing:
    """Loading refuses such rules; reached some other way, they are unknown and never a pass."""

    @pytest.mark.parametrize(
        ("rule", "missing", "words"),
        [
            (RATIO, "max_ratio", "has no limit to be held against"),
            ({"metric": "error_rate", "max": 0.1}, "max", "has no limit to be held against"),
            (RATIO, "quantile", "needs a quantile"),
            ({"metric": "source_share", "source": "disk", "min": 0.1}, "source", "needs a `source`"),
            (
                RATIO | {"max": 2.0, "sustained": {"window": 10, "for": 40}},
                "max",
                "as a sustained rule needs a latency, a quantile and `max`",
            ),
        ],
    )
    def test_is_unknown(self, rule: dict[str, Any], missing: str, words: str) -> None:
        whole = rules(guardrails=[{"id": "r", **rule}])
        broken = whole.guardrails[0].model_copy(update={missing: None})
        run = comparison(good_pairs(), whole.model_copy(update={"guardrails": [broken]}))
        found = result_of(judge(run), "r")
        assert (found.status, found.kind) == ("unknown", "guardrail")
        assert found.text.endswith(words)
