"""Rules on rates, token sources, engine metrics and host memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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

LEAST = float(stats.t.isf(0.025, 2)) / 3**0.5
"""How far three rounds that agree may lie from their mean, in steps of what each is known to."""


def everywhere(
    series: dict[tuple[str, str | None], Sequence[float]],
    times: Sequence[float],
    pairs: Sequence[RoundPair] | None = None,
    *,
    change: Callable[..., list[RoundPair]] = with_candidate,
) -> list[RoundPair]:
    """These metrics in each of three rounds of the candidate, or of the arm that `change` is about."""
    changed = list(pairs or good_pairs())
    for place in range(3):
        changed = change(changed, place, metrics=metric_rows(series, times))
    return changed


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

    @pytest.mark.parametrize("seconds", [0.0, 2.0])
    def test_a_counter_of_seconds_that_repeats_is_known_to_a_microsecond(self, seconds: float) -> None:
        """A tier that is never read has read for no time at all in every round, which is a measurement: taken for
        none, it was unknown after any number of rounds."""
        found = guardrail(
            everywhere({("disk_read_seconds", None): [0, seconds]}, [1.0, 120.0]),
            {"metric": "disk_read_seconds", "max": 50},
        )
        assert found.status == "pass"
        assert found.decision_ci == pytest.approx((seconds - LEAST * 1e-6, seconds + LEAST * 1e-6))
        assert "agree to the last digit" not in found.text

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

    @pytest.mark.parametrize("waiting", [0, 3])
    def test_a_queue_that_is_always_as_long_is_known_to_one_request_of_one_scrape(self, waiting: int) -> None:
        """An idle queue repeats, and so does a measurement of it."""
        queue = everywhere({("requests_waiting", None): [9] + [waiting] * 4}, [1.0, 20.0, 30.0, 40.0, 50.0])
        found = guardrail(queue, {"metric": "requests_waiting", "max": 5})
        assert (found.status, found.candidate) == ("pass", waiting)
        assert found.decision_ci == pytest.approx((waiting - LEAST / 4, waiting + LEAST / 4))
        assert guardrail(queue, {"metric": "requests_waiting", "max": waiting + LEAST / 5}).status == "unknown"

    @pytest.mark.parametrize(
        ("metric", "value", "budget"),
        [
            ("kv_cache_usage", 0.0, 0.5),
            ("host_pinned_by_promotions", 0.0, 0.1),
            ("host_cache_bytes", 2.0**34, 2.0**35),
            ("host_blocks_used", 64, 100),
            ("disk_store_delay", 0.0, 1.0),
            ("promotions_running", 0, 1),
        ],
    )
    def test_a_gauge_that_never_moves_is_within_its_limit(self, metric: str, value: float, budget: float) -> None:
        still = everywhere({(metric, None): [value] * 20}, [20.0 + n for n in range(20)])
        assert guardrail(still, {"metric": metric, "max": budget}).status == "pass"

    def test_as_many_bytes_in_both_arms_are_no_more_of_them(self) -> None:
        """However many: a byte of 16 GiB is less than a billionth."""
        series = {("host_cache_bytes", None): [2.0**34] * 20}
        times = [20.0 + n for n in range(20)]
        both = everywhere(series, times, everywhere(series, times), change=with_baseline)
        found = guardrail(both, {"metric": "host_cache_bytes", "max_ratio": 1.01})
        assert (found.status, found.effect) == ("pass", 1.0)

    @pytest.mark.parametrize("metric", ["disk_read_seconds", "kv_cache_usage"])
    def test_some_time_against_none_has_no_ratio(self, metric: str) -> None:
        """Half of what a clock can tell is no measure of how much more it is, other than half a request."""
        times = [1.0, 60.0, 100.0]
        none = everywhere({(metric, None): [0, 0, 0]}, times, change=with_baseline)
        found = guardrail(
            everywhere({(metric, None): [0, 0.5, 0.5]}, times, none), {"metric": metric, "max_ratio": 1.5}
        )
        assert found.status == "unknown"
        assert found.text.endswith("has no ratio: it is not above zero in round 1")

    def test_a_histogram_of_nothing_is_known_to_one_event(self) -> None:
        quiet = everywhere(
            {("preemptions_per_request_sum", None): [0, 0], ("preemptions_per_request_count", None): [0, 50]},
            [1.0, 120.0],
        )
        found = guardrail(quiet, {"metric": "preemptions_per_request", "max": 0.5})
        assert found.status == "pass"
        assert found.decision_ci == pytest.approx((-LEAST / 50, LEAST / 50))

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
        # The same peak in every round is what memory taken at the start looks like; it is told in pages.
        assert found.status == "pass"
        assert found.decision_ci == pytest.approx((2.0**31 - LEAST * 4096, 2.0**31 + LEAST * 4096), abs=1)
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
