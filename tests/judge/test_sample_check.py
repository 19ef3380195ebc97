"""Before a run: rules that the workload cannot carry, and what would."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kvbench.judge import wording
from kvbench.judge.sample_check import check_sample, check_windows
from kvbench.judge.together import conversations, mean_place
from kvbench.spec.loading import load_rules, load_workload
from kvbench.workload.build import build_schedule
from tests.judge.ask import guardrail
from tests.judge.build import WARM_S, good_pairs, metric_rows, rules
from tests.judge.change import with_candidate

SHIPPED = Path(__file__).resolve().parents[2]
P99 = {"id": "ttft-p99", "metric": "ttft", "quantile": 0.99, "max_ratio": 1.1}


def problems(counts: dict[str, int | None], *guardrails: dict[str, object], **more: object) -> list[str]:
    return check_sample(rules(guardrails=list(guardrails), benefits=[], evidence=[], **more), counts)  # type: ignore[arg-type]


class TestQuantiles:
    def test_a_rule_that_is_carried_is_fine(self) -> None:
        assert problems({"long": 300}, P99) == []

    def test_one_that_is_not_says_what_would_be(self) -> None:
        assert problems({"long": 71}, P99 | {"class": "long"}) == [
            "ttft-p99 needs 300 requests a round in class long, the schedule has 71; "
            "use quantile ≤ 0.95 or measured phases 4.3 times as long"
        ]

    def test_of_all_classes_takes_their_sum(self) -> None:
        assert problems({"long": 150, "short": 150}, P99) == []
        assert problems({"long": 150, "short": 149}, P99) == [
            "ttft-p99 needs 300 requests a round, the schedule has 299; "
            "use quantile ≤ 0.98 or measured phases 1.1 times as long"
        ]

    def test_so_few_that_no_quantile_is_carried(self) -> None:
        (sentence,) = problems({"long": 3}, P99)
        assert "it carries no quantile; use measured phases 100 times as long" in sentence

    def test_none_at_all(self) -> None:
        (sentence,) = problems({"long": 0}, P99)
        assert sentence.endswith("use a workload that has some")

    def test_a_class_that_the_schedule_lacks(self) -> None:
        assert problems({"long": 900}, P99 | {"class": "shrot"}) == [
            "ttft-p99 is about class shrot, which the schedule does not have; it has all, long"
        ]

    def test_benefits_and_evidence_are_rules_too(self) -> None:
        written = rules(benefits=[{"id": "b", "metric": "e2e", "quantile": 0.9, "max_ratio": 0.8}])
        assert [s.split()[0] for s in check_sample(written, {"long": 29})] == ["ttft-p90", "b"]

    def test_a_sustained_rule_counts_by_windows(self) -> None:
        rule = {key: value for key, value in P99.items() if key != "max_ratio"}
        assert problems({"long": 30}, rule | {"max": 2.0, "sustained": {"window": 10, "for": 40}}) == []

    def test_the_round_with_fewest_must_carry_it(self) -> None:
        written = rules(guardrails=[P99], benefits=[], evidence=[])
        assert check_sample(written, {"long": 310}, {"long": 300, "all": 300}) == []
        assert check_sample(written, {"long": 310}, {"long": 299, "all": 299})[0].startswith(
            "ttft-p99 needs 300 requests a round, the schedule has 299; "
        )

    def test_what_is_not_known_by_class_can_never_be_decided(self) -> None:
        for metric in ("output_parity", "host_memory", "preemptions"):
            rule = {"id": "r", "metric": metric, "max": 0.5, "class": "long"}
            assert problems({"long": 900}, rule) == [f"r: {metric} is not known by class; leave class out"]

    def test_what_has_no_quantile_needs_no_sample(self) -> None:
        assert problems({"long": 1}, {"id": "g", "metric": "goodput", "min": 1.0}) == []

    @pytest.mark.parametrize(("metric", "carried"), [("ttft", True), ("e2e", False), ("itl", False)])
    def test_beyond_the_first_token_those_who_stay_must_carry_it(self, metric: str, carried: bool) -> None:
        written = rules(guardrails=[P99 | {"metric": metric}], benefits=[], evidence=[])
        counts = {"long": 400, "all": 400}
        assert (check_sample(written, {"long": 400}, counts, {"long": 299, "all": 299}) == []) == carried
        assert check_sample(written, {"long": 400}, counts, {"long": 300, "all": 300}) == []


class TestWindows:
    RULE = {  # noqa: RUF012
        "id": "ttft-p99", "metric": "ttft", "quantile": 0.99, "max": 2.0, "sustained": {"window": 10, "for": 40}
    }  # fmt: skip

    def problems(self, per_s: float, until_s: float = 100.0, **rule: object) -> list[str]:
        written = rules(guardrails=[self.RULE | rule], benefits=[], evidence=[])
        times = [n / per_s for n in range(int(until_s * per_s))]
        return check_windows(written, {"all": times, "long": times}, 0.0, until_s)

    def test_enough_requests_in_every_window_are_fine(self) -> None:
        assert self.problems(2.1) == []

    def test_too_few_are_told_with_the_share_of_time_that_has_enough(self) -> None:
        assert self.problems(1.5) == [
            "ttft-p99 needs 20 requests in its window of 10 s for 90 % of the time, the schedule has them for 0 %; "
            "use a longer window or a higher rate"
        ]

    def test_more_looks_than_are_kept_are_refused_before_any_is_made(self) -> None:
        rule = self.RULE | {"sustained": {"window": 0.1, "for": 40}}
        written = rules(guardrails=[rule], benefits=[], evidence=[])
        for known in ({}, {"all": [1.0]}):
            assert check_windows(written, known, 0.0, 20_000.0) == [
                "ttft-p99 looks 1,996,001 times at a round, ten times a window of 100 ms; at most 1,000,000 are "
                "kept: use a longer window or shorter phases"
            ]

    def test_answers_that_go_on_for_long_may_fill_a_window_that_few_are_due_in(self) -> None:
        """Of ITL only what no length of answers makes good is said beforehand."""
        assert self.problems(1.5, metric="itl") == []
        assert self.problems(0.3, metric="itl") == [
            "ttft-p99 needs 20 requests in its window of 10 s for 90 % of the time, the schedule has them for "
            "60.7 %; use a longer window or a higher rate"
        ]

    def test_a_round_shorter_than_the_rule_looks_back(self) -> None:
        assert self.problems(9.0, until_s=30.0) == [
            "ttft-p99 looks back over 40 s, the measured part of a round is 30 s long; "
            "use longer phases or a shorter for"
        ]

    def test_a_class_whose_times_are_not_known_is_left_alone_but_for_the_length(self) -> None:
        assert self.problems(0.1, **{"class": "agent"}) == []
        assert "looks back over 40 s" in self.problems(0.1, until_s=30.0, **{"class": "agent"})[0]
        assert self.problems(0.1, **{"class": "long"}) != []


class TestErrorRates:
    RULE = {"id": "errors", "metric": "error_rate", "max": 0.001}  # noqa: RUF012

    def test_need_enough_requests_over_all_rounds(self) -> None:
        assert problems({"long": 308}, self.RULE, rounds=(12, 12)) == []
        assert problems({"long": 307}, self.RULE, rounds=(12, 12)) == [
            "errors needs 3,688 requests over all rounds to prove at most 0.1 %, 12 rounds have 3,684; "
            "use a higher limit, longer phases or more rounds"
        ]

    def test_need_more_where_earlier_looks_take_some_of_the_level(self) -> None:
        assert problems({"long": 367}, self.RULE, rounds=(3, 12)) == []
        assert problems({"long": 366}, self.RULE, rounds=(3, 12)) == [
            "errors needs 4,402 requests over all rounds to prove at most 0.1 %, 12 rounds have 4,392; "
            "use a higher limit, longer phases or more rounds"
        ]

    @pytest.mark.parametrize(("n", "status"), [(367, "pass"), (366, "unknown")])
    def test_what_is_accepted_is_what_a_run_without_a_failure_proves(self, n: int, status: str) -> None:
        assert guardrail(good_pairs(12, n=n), self.RULE | {"id": "r"}, rounds=(3, 12)).status == status

    def test_of_a_class(self) -> None:
        assert problems({"a": 10, "b": 9000}, self.RULE | {"class": "a"}, rounds=(1, 1)) == [
            "errors needs 3,688 requests of class a over all rounds to prove at most 0.1 %, 1 round has 10; "
            "use a higher limit, longer phases or more rounds"
        ]

    def test_a_limit_that_every_sample_keeps_is_not_about_the_sample(self) -> None:
        assert problems({"long": 1}, self.RULE | {"max": 1.0}) == []

    def test_no_failure_at_all_is_what_no_sample_proves(self) -> None:
        never = self.RULE | {"max": 0}
        assert guardrail(good_pairs(), never | {"id": "r"}).status == "unknown"
        assert problems({"long": 400}, never) == [
            "errors: no number of requests proves that none ever fails, these 1,200 at most 0.307 %; "
            "use a limit above 0"
        ]
        for count in (0, None):
            assert problems({"long": count}, never | {"class": "long"}) == [
                "errors: no number of requests of class long proves that none ever fails; use a limit above 0"
            ]

    @pytest.mark.parametrize(("n", "status"), [(340, "pass"), (330, "unknown")])
    def test_in_sessions_a_failing_turn_takes_others_along_and_so_more_are_needed(
        self, n: int, status: str
    ) -> None:
        """Of ten turns each: 2 % take 183 requests, 1,005 in such sessions. What is refused is what a run without
        a failure does not prove."""
        rule = self.RULE | {"id": "r", "max": 0.02}
        pairs = good_pairs(n=n)
        for place, pair in enumerate(pairs):
            pairs = with_candidate(
                pairs, place, requests=pair.candidate.requests.assign(session=np.arange(n) // 10)
            )
        assert guardrail(pairs, rule).status == status
        told = check_sample(
            rules(guardrails=[rule], benefits=[], evidence=[]), {"long": n}, taken_by_class={"all": 5.5}
        )
        assert told == [
            "r needs 1,005 requests over all rounds to prove at most 2 %, since a failing turn takes 5.5 requests "
            "with it, 3 rounds have 990; use a higher limit, longer phases or more rounds"
        ] * (status == "unknown")

    def test_of_none_that_may_fail_tells_what_is_proven_in_sessions(self) -> None:
        written = rules(guardrails=[self.RULE | {"max": 0}], benefits=[], evidence=[])
        (told,) = check_sample(written, {"long": 400}, taken_by_class={"all": 5.5})
        assert "these 1,200 at most 1.68 %" in told

    def test_follow_the_confidence(self) -> None:
        assert problems({"long": 367}, self.RULE, rounds=(3, 12), confidence=0.99) != []

    def test_a_confidence_beyond_what_looks_are_known_to(self) -> None:
        (sentence,) = problems({"long": 9000}, self.RULE, rounds=(3, 4), confidence=0.9999999)
        assert sentence == "errors: no number of requests gives a confidence of 0.9999999; use at most 0.9999"


class TestLimitsThatNoIntervalReaches:
    def preempted(self, limit: float, rounds: tuple[int, int] = (3, 3)) -> str:
        """What becomes of a limit on preemptions in rounds that have none."""
        pairs = good_pairs(rounds[1], n=40)
        for place in range(rounds[1]):
            rows = metric_rows({("preemptions", None): [0, 0, 0]}, [1.0, WARM_S, 120.0])
            pairs = with_candidate(pairs, place, metrics=rows)
        return guardrail(pairs, {"metric": "preemptions", "max": limit}, rounds=rounds).status

    def test_a_count_of_nothing_is_known_to_one_event_a_round(self) -> None:
        rule = {"id": "r", "metric": "preemptions"}
        assert problems({"long": 400}, rule | {"max": 2}) == [
            "r: preemptions of 0 in each of 3 rounds proves at most 2.484 requests a round, "
            "at most 2 requests asked for; use a higher limit or more rounds"
        ]
        assert problems({"long": None}, rule | {"max": 0}, rounds=(3, 12)) == [
            "r: preemptions of 0 in each of 12 rounds proves at most 0.752 requests a round, "
            "at most 0 requests asked for; use a higher limit"
        ]
        assert problems({"long": 400}, rule | {"max": 3}) == []
        assert problems({"long": 400}, rule | {"max": 1}, rounds=(3, 12)) == []

    def test_which_is_what_a_run_proves(self) -> None:
        assert [self.preempted(limit) for limit in (0, 2, 3)] == ["unknown", "unknown", "pass"]
        assert [self.preempted(limit, (3, 12)) for limit in (0, 1)] == ["unknown", "pass"]

    @pytest.mark.parametrize(
        "rule",
        [
            {"metric": "ttft", "quantile": 0.5, "max": 0},
            {"metric": "source_share", "source": "computed", "max": 0},
            {"metric": "requests_waiting", "max": 0},
            {"metric": "disk_read_seconds", "max": 0},
        ],
    )
    def test_an_interval_does_not_end_at_nothing(self, rule: dict[str, object]) -> None:
        (sentence,) = problems({"long": 400}, {"id": "r"} | rule)
        assert sentence == "r: no interval over rounds ends at 0; use a limit above 0"

    def test_nor_begin_at_everything(self) -> None:
        everything = {"id": "r", "metric": "source_share", "source": "disk", "min": 1}
        assert guardrail(good_pairs(sources=(0, 0, 3000, 0)), everything).status == "unknown"
        assert problems({"long": 400}, everything) == [
            "r: no interval over rounds begins at 100 %; use a limit below"
        ]
        assert problems({"long": 400}, everything | {"min": 0.99}) == []

    def test_evidence_of_promotions_is_a_count_and_no_interval(self) -> None:
        assert check_sample(rules(guardrails=[], benefits=[]), {"long": 400}) == []


class TestWithoutCounts:
    """A closed loop: how many requests there are is known when they have been answered."""

    def test_what_only_a_count_could_tell_is_left_alone(self) -> None:
        assert problems({"long": None}, P99, TestErrorRates.RULE) == []
        assert problems({"long": None, "short": 9}, P99) == []

    def test_what_no_count_would_change_is_told(self) -> None:
        by_class = {"id": "p", "metric": "promoted_tokens", "min": 1, "class": "long"}
        elsewhere = P99 | {"class": "shrot"}
        written = rules(guardrails=[elsewhere], benefits=[], evidence=[by_class])
        assert check_sample(written, {"long": None}) == [
            "ttft-p99 is about class shrot, which the schedule does not have; it has all, long",
            "p: promoted_tokens is not known by class; leave class out",
        ]


class TestWording:
    @pytest.mark.parametrize(
        ("amount", "unit", "text"),
        [
            (0.21, "s", "210 ms"),
            (0.021, "fraction", "2.1 %"),
            (2.0**31, "bytes", "2 GiB"),
            (12345.0, "tokens", "12,345 tokens"),
            (0.5, "cores", "0.5 cores"),
            (4.0, "1/s", "4/s"),
            (4.25, "tokens/s", "4.25 tokens/s"),
            (4.25, None, "4.25"),
            (float("inf"), "s", "unbounded"),
            (float("nan"), None, "unbounded"),
        ],
    )
    def test_figures_have_their_unit(self, amount: float, unit: str | None, text: str) -> None:
        assert wording.value(amount, unit) == text

    def test_metrics_go_by_their_usual_names(self) -> None:
        assert wording.what("ttft", 0.99, "long") == "TTFT p99 of class long"
        assert wording.what("source_share", None, "all", "disk") == "source share from disk"
        assert wording.what("ttft_service", 0.999) == "TTFT from the actual send p99.9"
        assert wording.what("throughput_tokens") == "output throughput"

    def test_numbers_and_lists(self) -> None:
        assert wording.count(1, "round") == "1 round"
        assert wording.count(1200, "round") == "1,200 rounds"
        assert (wording.count(1, "launch", "launches"), wording.count(2, "launch", "launches")) == (
            "1 launch",
            "2 launches",
        )
        assert wording.ratio(0.18765) == "0.188"
        assert wording.listed(["a", "b", "c"]) == "a; b; c"
        assert wording.listed(["a", "b", "c", "d"], most=2) == "a; b; and 2 more"


def test_the_shipped_workload_carries_the_error_rate_of_the_shipped_rules_though_turns_take_others_along() -> None:
    """In twelve rounds without a failure; agents' sessions make its requests worth a third less."""
    load, shipped = (
        load_workload(SHIPPED / "workloads/mixed.yaml"),
        load_rules(SHIPPED / "profiles/rules/default.yaml"),
    )
    counts, taken = [], []
    for index in range(1, shipped.rounds.max + 1):
        schedule = build_schedule(
            load, index, block_tokens=128, capacities_tokens=None, max_model_len=None
        ).requests
        sessions = [request.session for request in schedule if request.measured]
        counts.append(len(sessions))
        taken.append(mean_place(conversations([np.array(sessions, dtype=float)])))
    assert np.mean(taken) > 1.3
    errors = shipped.model_copy(
        update={"guardrails": [rule for rule in shipped.guardrails if rule.metric == "error_rate"], "benefits": []}
    )
    assert len(errors.guardrails) == 1
    assert check_sample(errors, {"long": min(counts)}, taken_by_class={"all": max(taken)}) == []
