"""Known truths, as series, and the verdict that each must give by the rule that each must give it by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from kvbench.canary.judge import judge_canary
from kvbench.canary.observed import Observed, Unread
from kvbench.canary.series import Group, Replica, Samples, key_of
from kvbench.canary.verdict import CanaryVerdict
from kvbench.judge.verdict import Outcome, RuleResult
from tests.canary.build import ERRORS, P99, SUSTAINED, T0, TTFT, Truth, group, observed, rules

S = 1500.0
SPIKE = Truth(slow=lambda t: 0.5 if 600 < t < 610 else 0.001)
BREACH = Truth(slow=lambda t: 0.15 if t > 600 else 0.001)
BURN = Truth(slow=lambda t: 0.03)
ALL = rules(P99, ERRORS, SUSTAINED)


def candidate(*truths: Truth, **more: object) -> Observed:
    return observed(
        group("canary", *truths, seconds=S), group("stable", Truth(seed=2), seconds=S), seconds=S, **more
    )  # type: ignore[arg-type]


def rule(verdict: CanaryVerdict, id_: str) -> RuleResult:
    return next(result for result in verdict.rules if result.rule == id_)


class TestHealthy:
    def test_may_stay(self) -> None:
        verdict = judge_canary(candidate(Truth(), asked=ALL))
        assert verdict.verdict is Outcome.GO
        assert verdict.exit_code == 0
        assert {result.status for result in verdict.rules} == {"pass"}
        assert (verdict.window.start, verdict.window.end) == (T0, T0 + S)
        assert verdict.sources["canary"]["computed"]
        assert verdict.action is None

    def test_has_no_sustained_verdict_before_the_end_of_the_watch(self) -> None:
        verdict = judge_canary(candidate(Truth(), asked=ALL, planned_s=7200))
        assert verdict.verdict is Outcome.INCONCLUSIVE
        assert "passes at the end" in rule(verdict, "sustained").text
        assert rule(verdict, "p99").status == "pass"

    def test_may_stay_as_soon_as_it_is_certain_where_no_rule_needs_the_end(self) -> None:
        seen = candidate(Truth(), asked=rules(P99, ERRORS), planned_s=7200)
        assert not seen.final
        assert judge_canary(seen).verdict is Outcome.GO

    def test_may_stay_on_absolute_budgets_alone_at_one_look(self) -> None:
        seen = observed(group("canary", Truth(), seconds=300), seconds=300, once=True, asked=ALL)
        assert judge_canary(seen).verdict is Outcome.GO


class TestBreach:
    def test_that_lasts_calls_for_rollback_of_the_newest_tier(self) -> None:
        verdict = judge_canary(candidate(BREACH))
        assert verdict.verdict is Outcome.NO_GO
        assert verdict.action is not None
        assert verdict.action.disable_tier == "host"
        fired = rule(verdict, "sustained")
        assert fired.status == "fail"
        assert float(fired.windows[0]["t_s"] or 0) - T0 < 600 + 120

    def test_of_one_spike_does_not(self) -> None:
        verdict = judge_canary(candidate(SPIKE))
        assert verdict.verdict is Outcome.GO

    def test_that_smoulders_is_seen_by_the_long_window_only(self) -> None:
        verdict = judge_canary(candidate(BURN, asked=ALL))
        assert rule(verdict, "sustained").status == "pass"
        assert rule(verdict, "p99").status == "fail"
        assert verdict.verdict is Outcome.NO_GO

    def test_of_the_error_rate_is_one(self) -> None:
        verdict = judge_canary(candidate(Truth(errors=0.08)))
        assert verdict.verdict is Outcome.NO_GO
        assert rule(verdict, "errors").status == "fail"

    def test_that_the_baseline_has_as_well_is_no_reason_to_act(self) -> None:
        sick = Truth(slow=lambda t: 0.2)
        seen = observed(group("c", sick, seconds=S), group("b", sick, seconds=S), seconds=S, asked=ALL)
        verdict = judge_canary(seen)
        assert verdict.verdict is Outcome.INCONCLUSIVE
        assert verdict.action is None
        assert "sick itself" in rule(verdict, "sustained").text
        assert "sick itself" in rule(verdict, "p99").text

    def test_of_the_baseline_alone_changes_nothing(self) -> None:
        sick = Truth(slow=lambda t: 0.2)
        seen = observed(group("c", Truth(), seconds=S), group("b", sick, seconds=S), seconds=S, asked=ALL)
        assert judge_canary(seen).verdict is Outcome.GO

    def test_is_a_canary_that_holds_requests_and_makes_no_token(self) -> None:
        verdict = judge_canary(candidate(Truth(frozen_from=900)))
        assert verdict.verdict is Outcome.NO_GO
        assert rule(verdict, "stability").status == "fail"


class TestReplicas:
    def test_one_of_three_that_carries_the_group_over_is_named(self) -> None:
        verdict = judge_canary(candidate(Truth(), Truth(), Truth(slow=lambda t: 0.5)))
        assert verdict.verdict is Outcome.NO_GO
        assert "canary-2" in rule(verdict, "sustained").text
        assert [row.replica for row in verdict.replicas if row.odd] == ["canary-2"]

    def test_one_of_three_that_fires_alone_is_neither_a_breach_nor_a_pass(self) -> None:
        verdict = judge_canary(candidate(Truth(), Truth(), Truth(slow=lambda t: 0.1)))
        assert verdict.verdict is Outcome.INCONCLUSIVE
        assert "canary-2 alone" in verdict.reasons[0]
        assert "canary-2 is the odd one out" in rule(verdict, "replica-differs").text

    def test_a_baseline_replica_that_was_scaled_away_is_said_and_blocks_nothing(self) -> None:
        base = group("b", Truth(seed=2), Truth(seed=3, silent_from=600), seconds=S)
        verdict = judge_canary(observed(group("c", Truth(), seconds=S), base, seconds=S))
        assert verdict.verdict is Outcome.GO
        assert "b-1 has no new sample" in rule(verdict, "series-stale").text

    def test_one_that_was_scaled_away_does_not_make_the_others_look_slow(self) -> None:
        """A replica of the candidate makes 60 % of the tokens that one of the baseline makes."""
        base = group("b", Truth(seed=2), Truth(seed=3, silent_from=600), seconds=S)
        asked = rules({"id": "it", "metric": "throughput_tokens", "min_ratio": 0.9}, ERRORS)
        verdict = judge_canary(observed(group("c", Truth(per_s=6.0), seconds=S), base, seconds=S, asked=asked))
        assert rule(verdict, "it").status == "fail"
        assert rule(verdict, "it").effect == pytest.approx(0.6, rel=0.05)


UNKNOWNS: list[tuple[str, Truth, str]] = [
    ("no-traffic", Truth(per_s=0), "too-few-requests"),
    ("too-few", Truth(per_s=0.01), "too-few-requests"),
    ("restarted", Truth(restart_at=900), "engine-restarted"),
    ("missing", Truth(without=TTFT), "series-missing"),
    ("stale", Truth(silent_from=900), "series-stale"),
    ("long gap", Truth(gap=(600, 900)), "scrape-gap"),
]


class TestWhatIsNotKnown:
    @pytest.mark.parametrize(("name", "truth", "finding"), UNKNOWNS)
    def test_is_a_finding_and_never_a_pass(self, name: str, truth: Truth, finding: str) -> None:
        verdict = judge_canary(candidate(truth))
        assert verdict.verdict is Outcome.INCONCLUSIVE
        assert verdict.exit_code == 3
        assert rule(verdict, finding).status == "unknown", name

    def test_is_a_replica_that_is_up_and_tells_nothing(self) -> None:
        seen = candidate(Truth(), asked=ALL)
        times = seen.candidate.replicas[0].t_s
        mute = Replica("canary-1", {key_of("up", {}): (times, np.ones(len(times)))})
        told = replace(seen, candidate=Group("canary", (*seen.candidate.replicas, mute)))
        verdict = judge_canary(told)
        assert verdict.verdict is Outcome.INCONCLUSIVE
        assert "no series of an engine from canary-1" in rule(verdict, "series-missing").text

    @pytest.mark.parametrize(
        ("without", "asked"),
        [
            ("vllm:request_success", ERRORS),
            ("vllm:generation_tokens", {"id": "it", "metric": "throughput_tokens", "min": 1}),
            ("vllm:num_requests_waiting", {"id": "it", "metric": "requests_waiting", "max": 9}),
        ],
    )
    def test_of_one_replica_is_not_what_the_others_tell(self, without: str, asked: dict[str, object]) -> None:
        told = candidate(Truth(), Truth(without=without), asked=rules(SUSTAINED, asked))
        assert judge_canary(candidate(Truth(), Truth(), asked=rules(SUSTAINED, asked))).verdict is Outcome.GO
        verdict = judge_canary(told)
        assert verdict.verdict is Outcome.INCONCLUSIVE
        assert f"canary-1 without {verdict.reasons[0].split(' without ')[1].split()[0]}" in verdict.reasons[0]
        assert rule(verdict, "series-missing").status == "unknown"

    def test_is_what_the_baseline_is_where_the_candidate_is_part_of_it(self) -> None:
        seen = candidate(Truth(), asked=ALL)
        assert seen.baseline is not None
        whole = Group("all", (*seen.baseline.replicas, *seen.candidate.replicas))
        verdict = judge_canary(replace(seen, baseline=whole))
        assert verdict.verdict is Outcome.INCONCLUSIVE
        assert "canary-0 in both selections" in rule(verdict, "selections-overlap").text

    def test_is_a_pod_that_was_replaced_under_its_name(self) -> None:
        """Where `replica` names a pod: series of the new one carry another address."""

        def moved(one: Replica) -> Replica:
            samples: Samples = {}
            for (name, labels), (t_s, values) in one.samples.items():
                anew = t_s >= T0 + 900
                for address, part in (("10.0.0.1:8000", ~anew), ("10.0.0.2:8000", anew)):
                    samples[key_of(name, {**dict(labels), "instance": address})] = (t_s[part], values[part])
            return Replica(one.name, samples)

        seen = candidate(Truth(restart_at=900), asked=ALL)
        verdict = judge_canary(replace(seen, candidate=seen.candidate.each(moved)))
        assert verdict.verdict is Outcome.INCONCLUSIVE
        assert "canary-0 restarted" in rule(verdict, "engine-restarted").text
        assert [row.restarts for row in verdict.replicas] == [1, 0]

    def test_a_minute_without_scrapes_is_said_and_outlived(self) -> None:
        verdict = judge_canary(candidate(Truth(gap=(600, 660))))
        assert verdict.verdict is Outcome.GO
        assert "no scrapes for 60 s" in rule(verdict, "scrape-gap").text

    def test_series_that_cannot_be_read_now_block(self) -> None:
        unread = (Unread(T0 + S - 30, "connection refused"),)
        verdict = judge_canary(candidate(Truth(), unread=unread))
        assert verdict.verdict is Outcome.INCONCLUSIVE
        assert "connection refused" in rule(verdict, "metrics-unreachable").text

    def test_a_restart_of_the_baseline_is_waited_for_and_not_held_against_anybody(self) -> None:
        base = group("b", Truth(seed=2), Truth(seed=3, restart_at=300), seconds=S)
        verdict = judge_canary(observed(group("c", Truth(), seconds=S), base, seconds=S, warm_up=True))
        assert verdict.verdict is Outcome.GO
        assert "b-1 restarted" in rule(verdict, "engine-restarted").text

    def test_unequal_traffic_spoils_ratios_only(self) -> None:
        ratio = {"id": "r", "metric": "ttft", "quantile": 0.5, "max_ratio": 3}
        verdict = judge_canary(candidate(Truth(per_s=2), asked=rules(ratio)))
        assert verdict.verdict is Outcome.INCONCLUSIVE
        assert rule(verdict, "unequal-traffic").status == "unknown"
        assert judge_canary(candidate(Truth(per_s=2))).verdict is Outcome.GO

    def test_a_rule_of_a_class_is_unknown(self) -> None:
        asked = rules({**P99, "class": "short"}, ERRORS)
        verdict = judge_canary(candidate(Truth(), asked=asked))
        assert verdict.verdict is Outcome.INCONCLUSIVE
        assert "by class" in rule(verdict, "p99").text

    def test_what_is_proven_against_it_outweighs_what_is_unknown(self) -> None:
        verdict = judge_canary(candidate(replace(BREACH, restart_at=1200)))
        assert verdict.verdict is Outcome.NO_GO


class TestBuckets:
    def test_a_quantile_is_a_bound(self) -> None:
        asked = rules({"id": "r", "metric": "ttft", "quantile": 0.9, "max_ratio": 1.1})
        same = judge_canary(candidate(Truth(), asked=asked))
        assert rule(same, "r").status == "unknown"
        assert rule(same, "r").candidate is None
        assert "40 ms to 60 ms" in rule(same, "r").text
        slower = judge_canary(candidate(Truth(fast_s=0.3), asked=asked))
        assert rule(slower, "r").status == "fail"
        low, high = rule(slower, "r").ci or (0, 0)
        assert (low, high) == pytest.approx((250 / 60, 500 / 40))

    def test_a_budget_between_two_edges_is_judged_at_both(self) -> None:
        def asked(budget: float) -> Observed:
            return candidate(Truth(slow=lambda t: 0.2), asked=rules({**P99, "max": budget}))

        # Slow ones take 3 s: between 2.5 and 5. A budget of 4 s cannot tell on which side they are.
        assert rule(judge_canary(asked(4.0)), "p99").status == "unknown"
        assert "between the bucket edges 2.5 s and 5 s" in rule(judge_canary(asked(4.0)), "p99").text
        assert rule(judge_canary(asked(2.5)), "p99").status == "fail"
        assert rule(judge_canary(asked(5.0)), "p99").status == "pass"

    def test_a_sustained_budget_between_two_edges_neither_fires_nor_passes(self) -> None:
        asked = rules({**SUSTAINED, "max": 4.0})
        verdict = judge_canary(candidate(Truth(slow=lambda t: 0.2), asked=asked))
        assert rule(verdict, "sustained").status == "unknown"
        assert "bucket edges" in rule(verdict, "sustained").text


class TestSeveralBounds:
    def test_of_one_rule_share_its_level_as_two_rules_share_that_of_all(self) -> None:
        def found(*asked: dict[str, object]) -> RuleResult:
            return rule(judge_canary(candidate(Truth(slow=lambda t: 0.2), asked=rules(*asked))), "p99")

        budget = {**P99, "max": 2.5}
        one, both, two = found(budget), found({**budget, "max_ratio": 50}), found(budget, {**budget, "id": "other"})
        assert (one.status, both.status) == ("fail", "fail")
        assert one.ci is not None
        assert both.ci == two.ci
        assert both.ci is not None
        assert both.ci[0] < one.ci[0]
        assert both.ci[1] == one.ci[1]


class TestOtherRules:
    @pytest.mark.parametrize(
        ("written", "status"),
        [
            ({"metric": "throughput_tokens", "min_ratio": 0.9}, "pass"),
            ({"metric": "throughput_tokens", "min": 1000}, "fail"),
            ({"metric": "source_share", "source": "host", "min": 0.1}, "pass"),
            ({"metric": "source_share", "source": "host", "min": 0.5}, "fail"),
            ({"metric": "requests_running", "max": 2}, "pass"),
            ({"metric": "preemptions", "max": 0}, "unknown"),
            ({"metric": "output_parity"}, "unknown"),
        ],
    )
    def test_on_what_metrics_tell_are_judged_and_on_what_they_do_not_are_unknown(
        self, written: dict[str, object], status: str
    ) -> None:
        asked = rules({"id": "it", **written}, ERRORS)
        assert rule(judge_canary(candidate(Truth(), asked=asked)), "it").status == status

    @pytest.mark.parametrize(
        ("truth", "outcome"), [(Truth(fast_s=0.01), Outcome.GO), (Truth(fast_s=0.3), Outcome.NO_GO)]
    )
    def test_a_benefit_is_proven_or_refuted(self, truth: Truth, outcome: Outcome) -> None:
        benefit = {"id": "faster", "metric": "ttft", "quantile": 0.5, "max_ratio": 0.9}
        verdict = judge_canary(candidate(truth, asked=rules(P99, benefits=[benefit])))
        assert verdict.verdict is outcome

    def test_evidence_of_promotions_is_asked_for(self) -> None:
        evidence = [{"id": "promoted", "metric": "promoted_tokens", "min": 1}]
        assert judge_canary(candidate(Truth(), asked=rules(P99, evidence=evidence))).verdict is Outcome.GO
        other = replace(candidate(Truth(), asked=rules(P99, evidence=evidence)), newest_tier="disk")
        assert judge_canary(other).verdict is Outcome.INCONCLUSIVE


class TestWarmUp:
    def test_is_over_when_hits_do_not_rise_any_more_and_what_was_before_does_not_count(self) -> None:
        verdict = judge_canary(candidate(Truth(), warm_up=True))
        assert verdict.verdict is Outcome.GO
        assert rule(verdict, "warming-up").status == "pass"

    def test_of_a_new_replica_of_the_baseline_blocks_nothing_while_others_serve(self) -> None:
        base = group("b", Truth(seed=2), Truth(seed=3, per_s=0.05), seconds=S)
        verdict = judge_canary(observed(group("c", Truth(), seconds=S), base, seconds=S, warm_up=True))
        assert "b-1 is not warm" in rule(verdict, "warming-up").text
        assert verdict.verdict is Outcome.GO

    def test_of_a_canary_with_too_few_requests_to_tell_is_waited_for(self) -> None:
        seen = observed(group("c", Truth(per_s=0.05), seconds=S), seconds=S, warm_up=True)
        verdict = judge_canary(seen)
        assert rule(verdict, "warming-up").status == "unknown"
        assert verdict.verdict is Outcome.INCONCLUSIVE


def test_every_rule_is_listed_whichever_decided() -> None:
    verdict = judge_canary(candidate(BREACH, asked=ALL))
    assert {"p99", "errors", "sustained", "stability", "metrics-unreachable"} <= {r.rule for r in verdict.rules}


def test_a_look_at_nothing_is_inconclusive() -> None:
    empty: Callable[[], Observed] = lambda: observed(group("c", seconds=S), seconds=S)  # noqa: E731
    verdict = judge_canary(empty())
    assert verdict.verdict is Outcome.INCONCLUSIVE
    assert rule(verdict, "series-missing").status == "unknown"
