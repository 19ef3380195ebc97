"""Rules on rates, token sources, engine metrics and host memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from scipy import stats

from kvbench.judge.evidence import RoundPair
from tests.judge.ask import guarded, guardrail
from tests.judge.build import (
    WARM_S,
    comparison,
    good_pairs,
    host_rows,
    metric_rows,
    pair,
    rules,
    same_pairs,
    workload,
)
from tests.judge.change import (
    with_baseline,
    with_candidate,
)


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

    @pytest.mark.parametrize("change", [with_baseline, with_candidate], ids=["base", "tiered"])
    def test_is_unknown_where_it_is_not_known_whether_targets_were_met(
        self, change: Callable[..., list[RoundPair]]
    ) -> None:
        """Neither met, which would prove a benefit by lost tokens, nor missed, which would in the baseline."""
        load = workload(classes={"long": {"suffix_tokens": 1, "output_tokens": 5, "targets": {"itl": 1.0}}})
        pairs = good_pairs()
        tokens = (pairs[1].baseline if change is with_baseline else pairs[1].candidate).tokens
        rule = {"metric": "goodput", "min_ratio": 0.9}
        found = guardrail(change(pairs, 1, tokens=tokens[tokens["id"] >= 7]), rule, workload=load)
        assert found.status == "unknown"
        assert found.text.startswith("goodput is unknown: of 7 completed requests in round 2 of ")
        assert guardrail(pairs, rule, workload=load).status == "pass"

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
        assert guarded(run, "r").text.endswith("needs a tier that is new, or a `source`")

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
                {("engine_ttft_sum", None): [0, 1, 5 + place], ("engine_ttft_count", None): [0, 1, 5]},
                [1.0, WARM_S, 120.0],
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
