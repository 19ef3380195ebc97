"""The rollback rule: shares over budget, counted, over the whole `for` and the latest `window`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.judge.judge import judge
from kvbench.judge.latency import RoundLatencies
from kvbench.judge.sustained import (
    Exceedances,
    enough_time_seen,
    exceedances,
    firing_share,
    watch,
)
from kvbench.judge.verdict import CandidateVerdict, RuleResult
from kvbench.spec.rules import Sustained
from tests.judge.ask import about, guarded, result_of
from tests.judge.build import MEASURED_S, WARM_S, arm_round, comparison, good_pairs, request_rows, rules, ttfts
from tests.judge.change import fail, leave, with_baseline, with_candidate

RULE = Sustained.model_validate({"window": 10, "for": 40})


def counts(over: list[bool], per_s: float = 4.0, requests: float = 1.0) -> Exceedances:
    """One request after the other, `per_s` a second, from time zero."""
    n = len(over)
    ones = np.full(n, requests)
    flags = np.array(over, dtype=float)
    return Exceedances(np.arange(1, n + 1) / per_s, ones, flags, ones, flags)


class TestFiringShare:
    @pytest.mark.parametrize(
        ("quantile", "share"), [(0.99, 0.05), (0.999, 0.005), (0.95, 0.15), (0.9, 0.2), (0.5, 0.6)]
    )
    def test_is_five_times_what_is_allowed_or_ten_points_more(self, quantile: float, share: float) -> None:
        assert firing_share(quantile) == pytest.approx(share)


class TestWatch:
    def watched(self, over: list[bool], quantile: float = 0.95, end: float | None = None, **more: float):
        rows = counts(over, **more)
        return watch(rows, RULE, quantile, 0.0, float(rows.t_s[-1]) if end is None else end)

    def test_looks_ten_times_a_window_once_a_whole_for_has_passed(self) -> None:
        moments = self.watched([False] * 400).moments
        assert moments[0].t_s == 40.0
        assert moments[1].t_s == 41.0
        assert moments[-1].t_s == 100.0
        assert len(moments) == 61

    def test_never_looks_when_the_stretch_is_shorter_than_for(self) -> None:
        assert self.watched([False] * 100).moments == ()
        assert self.watched([False] * 160, end=40.0).moments[0].t_s == 40.0

    def test_fires_on_a_lasting_breach(self) -> None:
        watched = self.watched([False] * 200 + [True] * 200)
        fired = watched.fired
        assert fired is not None
        # 15 % of the last 160 requests are over 6 s after the breach began at 50 s.
        assert fired.t_s == 56.0
        assert fired.for_share == pytest.approx(24 / 160)
        assert fired.window_share == pytest.approx(24 / 40)
        assert (fired.requests, fired.requests_over) == (40, 24)

    def test_one_spike_does_not_fire_it(self) -> None:
        assert self.watched([False] * 200 + [True] * 20 + [False] * 200).fired is None

    def test_the_latest_window_must_be_over_as_well(self) -> None:
        """Enough over the whole `for`, but long past by the time a whole `for` was seen."""
        watched = self.watched([True] * 60 + [False] * 200)
        assert watched.moments[0].for_share > firing_share(0.95)
        assert watched.fired is None

    def test_fewer_than_five_requests_over_do_not_fire_it(self) -> None:
        over = [False] * 360 + [True] * 4
        assert self.watched(over, quantile=0.999).fired is None
        assert self.watched([*over, True], quantile=0.999, end=91.25).fired is None
        assert self.watched([*over, True, False, False, False], quantile=0.999).fired is not None

    def test_the_share_is_enough_when_it_is_reached_exactly(self) -> None:
        """p95 fires from 15 %: 6 of 40 in the latest window and 24 of 160 over the whole `for`."""
        block = [True] * 6 + [False] * 34
        assert self.watched(block * 4).fired is not None
        assert self.watched([True] * 5 + [False] * 35 + block * 3).fired is None

    def test_fewer_than_twenty_requests_in_a_window_say_nothing(self) -> None:
        thin = self.watched([True] * 190, per_s=1.9)
        assert thin.evaluable == 0
        assert thin.fired is None
        assert thin.worst is None
        assert self.watched([True] * 200, per_s=2.0).fired is not None

    def test_a_scrape_may_stand_for_many_requests(self) -> None:
        lasting = self.watched([True] * 20, per_s=0.2, requests=50.0)
        assert lasting.moments[0].requests == 100
        assert lasting.moments[0].evaluable

    @settings(max_examples=25, deadline=None)
    @given(st.lists(st.booleans(), min_size=170, max_size=400), st.floats(0.01, 100))
    def test_the_unit_of_time_does_not_matter(self, over: list[bool], scale: float) -> None:
        rows = counts(over)
        scaled = replace(rows, t_s=rows.t_s * scale)
        rule = Sustained.model_validate({"window": RULE.window * scale, "for": RULE.for_s * scale})
        one = watch(rows, RULE, 0.95, 0.0, 100.0)
        other = watch(scaled, rule, 0.95, 0.0, 100.0 * scale)
        assert [m.fires for m in one.moments] == [m.fires for m in other.moments]
        assert [m.requests for m in one.moments] == [m.requests for m in other.moments]

    @settings(max_examples=25, deadline=None)
    @given(st.lists(st.booleans(), min_size=170, max_size=300), st.integers(0, 299))
    def test_one_more_request_over_budget_never_calms_it(self, over: list[bool], place: int) -> None:
        worse = [flag or i == place for i, flag in enumerate(over)]
        if self.watched(over).fired is not None:
            assert self.watched(worse).fired is not None

    def test_passing_needs_to_be_evaluable_most_of_the_time(self) -> None:
        whole = self.watched([False] * 400)
        assert enough_time_seen([whole])
        assert not enough_time_seen([])
        assert not enough_time_seen([self.watched([False] * 100)])
        thin = self.watched([False] * 190, per_s=1.9)
        # 61 looks count, and 5, 6 or 7 of 66, 67, 68 do not.
        few = replace(thin, moments=thin.moments[:6])
        assert enough_time_seen([whole, few])
        assert not enough_time_seen([whole, replace(thin, moments=thin.moments[:7])])


class TestExceedances:
    def test_a_request_stands_at_its_intended_time(self) -> None:
        requests, tokens = request_rows([1.0, 3.0, 2.0])
        round_ = RoundLatencies(arm_round("a", 1, requests, tokens), 60.0)
        found = exceedances(round_, "ttft", "all", 2.0)
        assert found.t_s == pytest.approx(requests["intended_s"])
        assert found.over.tolist() == [0, 1, 0]
        assert found.requests.tolist() == [1, 1, 1]

    def test_of_one_class_with_a_failure_over_budget(self) -> None:
        requests, tokens = request_rows([1.0, 1.0, 9.0], classes=["a", "a", "b"])
        round_ = RoundLatencies(arm_round("a", 1, fail(requests, [0]), tokens), 60.0)
        assert exceedances(round_, "ttft", "a", 2.0).over.tolist() == [1, 0]

    @pytest.mark.parametrize("metric", ["ttft", "ttft_service", "e2e", "tpot", "itl"])
    @pytest.mark.parametrize("budget_s", [60.0, 100.0])
    def test_one_that_never_came_back_is_over_every_budget(self, metric: str, budget_s: float) -> None:
        """It counts at the time-out, 60 s, so that no comparison of numbers tells it from one that was as slow."""
        requests, tokens = request_rows([1.0, 1.0, 1.0])
        requests.loc[1, ["first_token_s", "last_token_s"]] = np.nan
        round_ = RoundLatencies(arm_round("a", 1, fail(requests, [0]), tokens), 60.0)
        over = exceedances(round_, metric, "all", budget_s)
        without_a_token = metric in ("ttft", "ttft_service", "e2e")
        assert over.requests_over.sum() == 1 + without_a_token

    def test_one_whose_user_left_may_be_over_every_budget(self) -> None:
        requests, tokens = request_rows([1.0, 1.0])
        round_ = RoundLatencies(arm_round("a", 1, leave(requests, [0], 5.0), tokens), 60.0)
        assert exceedances(round_, "ttft", "all", 60.0).over.tolist() == [0, 0]
        assert exceedances(round_, "ttft", "all", 60.0, most=True).over.tolist() == [1, 0]

    def test_gaps_are_samples_each_of_its_request(self) -> None:
        requests, tokens = request_rows([1.0, 1.0], gaps=[0.1, 0.3])
        tokens.loc[3:4, "t_s"] += 1.0
        round_ = RoundLatencies(arm_round("a", 1, requests, tokens), 60.0)
        found = exceedances(round_, "itl", "all", 0.2)
        assert found.t_s.tolist() == sorted(found.t_s)
        assert (found.samples.sum(), found.over.sum()) == (8, 5)
        assert found.owners is not None
        assert np.bincount(found.owners).tolist() == [4, 4]
        assert np.bincount(found.owners, found.requests_over).tolist() == [1, 4]

    def test_a_failed_request_is_over_budget_with_all_its_gaps(self) -> None:
        requests, tokens = request_rows([1.0, 1.0], gaps=0.1, classes=["a", "b"])
        round_ = RoundLatencies(arm_round("a", 1, fail(requests, [0]), tokens), 60.0)
        found = exceedances(round_, "itl", "all", 0.2)
        assert found.t_s[0] == requests["intended_s"][0]
        assert (found.samples[0], found.over[0], found.requests[0], found.requests_over[0]) == (4, 4, 1, 1)
        assert (found.samples.sum(), found.over.sum()) == (8, 4)
        assert found.owners is not None
        assert np.bincount(found.owners, found.requests).tolist() == [1, 4]
        assert exceedances(round_, "itl", "b", 0.2).samples.sum() == 4


class TestRequestsOfManySamples:
    """With ITL a request has a sample at each of its tokens: it counts once in every stretch that has one."""

    LONG = Sustained.model_validate({"window": 30, "for": 60})

    def streams(self, began_s: np.ndarray, answers_s: int, slow: Callable[[np.ndarray], np.ndarray]) -> Exceedances:
        """Requests that get a token a second for so long; `slow`: at which moments it came late."""
        t_s = (began_s[:, None] + np.arange(1.0, answers_s + 1)).ravel()
        order = np.argsort(t_s, kind="stable")
        t_s, owners = t_s[order], np.repeat(np.arange(len(began_s), dtype=np.int32), answers_s)[order]
        ones, over = np.ones(len(t_s)), slow(t_s).astype(float)
        return Exceedances(t_s, ones, over, ones, over, owners=owners)

    def test_streams_count_in_every_window_that_they_run_through(self) -> None:
        """One every two seconds: fifteen begin within thirty seconds, which is too few, but sixty are under way."""
        began_s = np.arange(0.0, 300.0, 2.0)
        streams = [self.streams(began_s, seconds, lambda t_s: t_s < 0) for seconds in (120, 1)]
        long, short = (watch(counts, self.LONG, 0.9, 0.0, 300.0) for counts in streams)
        assert enough_time_seen([long])
        # Those that began after 150 s have had a token in the last thirty seconds.
        assert long.moments[-1].requests == 74
        assert short.evaluable == 0

    def test_a_stall_that_hits_old_streams_again_fires(self) -> None:
        """Forty that began together, all over budget once by then."""
        began_s = np.arange(0.0, 10.0, 0.25)
        streams = self.streams(began_s, 290, lambda t_s: (t_s < 12) | (t_s > 120) & (t_s % 3 < 1))
        fired = watch(streams, self.LONG, 0.9, 60.0, 300.0).fired
        assert fired is not None
        assert (fired.requests, fired.requests_over) == (40, 40)

    @settings(max_examples=50, deadline=None)
    @given(
        st.lists(st.tuples(st.integers(0, 60), st.integers(0, 6), st.booleans()), max_size=60),
        st.integers(1, 20),
    )
    def test_are_counted_as_by_hand(self, entries: list[tuple[int, int, bool]], span: int) -> None:
        entries = sorted(entries)
        t_s = np.array([t for t, _, _ in entries], dtype=float)
        owners = np.array([owner for _, owner, _ in entries], dtype=np.int32)
        over = np.array([flag for _, _, flag in entries], dtype=float)
        rows = Exceedances(t_s, np.ones(len(t_s)), over, np.ones(len(t_s)), over, owners=owners)
        rule = Sustained.model_validate({"window": span, "for": span})
        for moment in watch(rows, rule, 0.9, 0.0, 80.0).moments:
            inside = (t_s > moment.t_s - span + 1e-6) & (t_s <= moment.t_s + 1e-6)
            assert moment.requests == len(set(owners[inside]))
            assert moment.requests_over == len(set(owners[inside & (over > 0)]))


class TestAsAGuardrail:
    RULE: ClassVar = {
        "id": "rollback",
        "metric": "ttft",
        "quantile": 0.99,
        "max": 2.0,
        "sustained": {"window": 10, "for": 40},
    }

    def verdict(self, pairs, **rule: object) -> CandidateVerdict:
        return judge(comparison(pairs, rules(guardrails=[self.RULE | rule])))

    def found(self, pairs, **rule: object) -> RuleResult:
        return guarded(comparison(pairs, rules(guardrails=[self.RULE | rule])), "rollback")

    def slow_half(self, arm: str, index: int, n: int = 400):
        return arm_round(arm, index, *request_rows(np.where(np.arange(n) < n / 2, 0.3, 5.0)))

    def test_passes_when_it_never_fires(self) -> None:
        verdict = self.verdict(good_pairs())
        found = result_of(verdict, "rollback")
        assert found.status == "pass"
        assert about(found) == (
            "rollback", "guardrail", "ttft", 0.99, "all", "fraction", pytest.approx(0.05),
        )  # fmt: skip
        assert found.text == "TTFT p99 over 2 s, sustained for 40 s: never fired"
        assert verdict.verdict == "GO"

    def test_a_lasting_breach_in_one_round_is_a_breach(self) -> None:
        pairs = good_pairs()
        broken = self.slow_half("tiered", 2)
        pairs = with_candidate(pairs, 1, requests=broken.requests, tokens=broken.tokens)
        verdict = self.verdict(pairs)
        found = result_of(verdict, "rollback")
        assert found.status == "fail"
        assert found.text == (
            "TTFT p99 over 2 s, sustained for 40 s: fired 62 s into round 2 with 5 % of requests over budget, "
            "20 % in the latest 10 s"
        )
        assert [row["fired"] for row in found.windows] == ["no", "yes", "no"]
        assert [row["round"] for row in found.windows] == [1.0, 2.0, 3.0]
        fired = found.windows[1]
        assert fired == {
            "round": 2.0,
            "t_s": 62.0,  # four a second are over from 60 s on: eight are 5 % of the last 40 s
            "for_share": pytest.approx(0.05),
            "window_share": pytest.approx(0.2),
            "requests": 40.0,
            "requests_over": 8.0,
            "fired": "yes",
        }
        assert found.candidate == pytest.approx(1.0, abs=0.1)
        assert found.baseline == pytest.approx(0.02, abs=0.03)
        assert verdict.verdict == "NO_GO"
        assert verdict.action is not None
        assert verdict.action.disable_tier == "disk"

    def test_when_the_baseline_fires_as_well_nothing_is_concluded(self) -> None:
        pairs = good_pairs()
        for change, arm in ((with_candidate, "tiered"), (with_baseline, "base")):
            broken = self.slow_half(arm, 1)
            pairs = change(pairs, 0, requests=broken.requests, tokens=broken.tokens)
        verdict = self.verdict(pairs)
        assert result_of(verdict, "rollback").status == "unknown"
        assert result_of(verdict, "rollback").text.endswith("it fires in the baseline as well")
        assert verdict.verdict == "INCONCLUSIVE"
        assert verdict.action is None

    def test_a_baseline_that_fires_alone_is_no_concern(self) -> None:
        broken = self.slow_half("base", 1)
        pairs = with_baseline(good_pairs(), 0, requests=broken.requests, tokens=broken.tokens)
        assert self.found(pairs).status == "pass"

    def test_rounds_too_short_or_too_thin_for_it_leave_it_unknown(self) -> None:
        long_for = self.found(good_pairs(), sustained={"window": 10, "for": 200})
        assert long_for.status == "unknown"
        assert long_for.text == (
            "TTFT p99 over 2 s, sustained for 3 min 20 s: too few requests or too short rounds to be evaluated "
            "90 % of the time"
        )
        assert long_for.windows[0] == {"round": 1.0, "fired": "no"}
        thin = self.found(good_pairs(n=100))
        assert thin.status == "unknown"

    def test_without_a_complete_round_it_is_unknown(self) -> None:
        pairs = [replace(pair, candidate=replace(pair.candidate, complete=False)) for pair in good_pairs()]
        assert self.found(pairs).status == "unknown"

    def test_it_watches_the_measured_part_alone(self) -> None:
        """Slow requests of the warm-up are no concern of the rule."""
        requests, tokens = request_rows(ttfts(400))
        requests.loc[requests["intended_s"] < 30, "measured"] = False
        slow = requests["intended_s"] < 30
        requests.loc[slow, "first_token_s"] += 30
        pairs = with_candidate(good_pairs(), 0, requests=requests, tokens=tokens)
        found = self.found(pairs)
        assert found.status == "pass"
        assert found.windows[0]["t_s"] >= WARM_S + 40
        assert found.windows[0]["t_s"] <= WARM_S + MEASURED_S
