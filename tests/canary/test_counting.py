"""Counters along scrapes, buckets as bounds, and intervals over segments: what judging rests on."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.canary.histogram import counts_over, quantile_bounds
from kvbench.canary.segments import Grid, SegmentCounts, buckets_in, choose_grid
from kvbench.canary.sequential import FEWEST_SEGMENTS, Plan, boundary, interval, spread_of
from kvbench.canary.series import Replica, Samples, key_of, merge
from kvbench.canary.shares import Levels, share_of
from kvbench.canary.warm import warmth

TTFT = "engine_ttft"


def series(name: str, values: list[float], times: list[float] | None = None, **labels: str) -> Samples:
    t_s = np.array(times if times is not None else range(len(values)), dtype=float)
    return {key_of(name, labels): (t_s, np.array(values, dtype=float))}


class TestGrowth:
    @given(st.lists(st.integers(0, 1000), min_size=2, max_size=40))
    @settings(max_examples=30, deadline=None)
    def test_of_a_counter_adds_up_to_what_it_grew(self, growth: list[int]) -> None:
        replica = Replica("r", series("a_total", np.cumsum(growth).tolist()))
        grown = replica.grown(replica.keys("a_total"))
        assert np.isnan(grown[0])
        assert np.nansum(grown) == sum(growth[1:])

    def test_after_a_fall_is_what_it_counted_anew(self) -> None:
        replica = Replica("r", series("a_total", [10, 15, 3, 4]))
        assert replica.grown(replica.keys("a_total")).tolist()[1:] == [5, 3, 1]
        assert replica.resets_s.tolist() == [2.0]

    def test_of_a_series_that_appears_later_counts_from_zero(self) -> None:
        samples = {**series("a_total", [1, 2, 3]), **series("b_total", [4.0], [2.0])}
        replica = Replica("r", samples)
        grown = replica.grown(replica.keys("b_total"))
        assert np.isnan(grown[:2]).all()
        assert grown[2] == 4

    def test_of_what_a_scrape_lacks_is_not_zero(self) -> None:
        samples = {**series("a_total", [1, 2, 3, 4]), **series("b_total", [5, 9], [0, 3])}
        replica = Replica("r", samples)
        grown = replica.grown(replica.keys("b_total"))
        assert np.isnan(grown[:3]).all()
        assert grown[3] == 4

    def test_of_several_ranks_is_one(self) -> None:
        samples = {**series("a_total", [0, 1], engine="0"), **series("a_total", [0, 2], engine="1")}
        replica = Replica("r", samples)
        assert replica.grown(replica.keys("a_total"))[1] == 3

    def test_over_a_gap_is_known_as_such(self) -> None:
        replica = Replica("r", series("a_total", [1, 2, 3, 4, 9], [0, 1, 2, 3, 9]))
        assert replica.after_gap.tolist() == [False, False, False, False, True]

    def test_another_start_is_a_restart_and_a_waver_is_none(self) -> None:
        replica = Replica("r", series("process_start_time_seconds", [100, 100.01, 100.0, 160]))
        assert replica.restarts_s.tolist() == [3.0]

    def test_a_start_that_is_told_by_a_series_that_came_later_is_a_restart(self) -> None:
        old = series("process_start_time_seconds", [50, 50, 50], [100, 115, 130], instance="a")
        new = series("process_start_time_seconds", [140, 140], [145, 160], instance="b")
        assert Replica("r", {**old, **new}).restarts_s.tolist() == [145.0]
        beside = series("process_start_time_seconds", [60, 60], [145, 160], instance="b")
        assert Replica("r", {**old, **beside}).restarts_s.tolist() == []

    def test_merging_leaves_out_what_is_known(self) -> None:
        old, new = series("a", [1, 2], [0, 1]), series("a", [2, 3], [1, 2])
        t_s, values = merge(old, new)[key_of("a", {})]
        assert t_s.tolist() == [0, 1, 2]
        assert values.tolist() == [1, 2, 3]


class TestBuckets:
    @given(
        st.lists(st.floats(1e-3, 20.0), min_size=1, max_size=200),
        st.floats(0.01, 0.999),
        st.lists(st.floats(0.01, 10.0), min_size=1, max_size=8, unique=True),
    )
    @settings(max_examples=40, deadline=None)
    def test_bound_the_true_quantile(self, values: list[float], quantile: float, edges: list[float]) -> None:
        ordered = sorted(values)
        buckets = {edge: float(sum(v <= edge for v in values)) for edge in (*edges, math.inf)}
        truth = ordered[max(math.ceil(quantile * len(values) - 1e-9) - 1, 0)]
        low, high = quantile_bounds(buckets, quantile) or (math.nan, math.nan)
        assert low <= truth <= high

    def test_without_samples_bound_nothing(self) -> None:
        assert quantile_bounds({0.5: 0.0, math.inf: 0.0}, 0.5) is None

    @pytest.mark.parametrize(("budget", "least", "most"), [(0.5, 3, 3), (0.7, 1, 3), (1.0, 1, 1), (9.0, 0, 1)])
    def test_count_what_is_over_a_budget_at_least_and_at_most(self, budget: float, least: int, most: int) -> None:
        samples = {
            **series(TTFT + "_bucket", [0, 7], le="0.5"),
            **series(TTFT + "_bucket", [0, 9], le="1.0"),
            **series(TTFT + "_bucket", [0, 10], le="+Inf"),
            **series(TTFT + "_count", [0, 10]),
        }
        counts = counts_over(Replica("r", samples), "ttft", budget)
        assert counts is not None
        assert (counts.over_least[-1], counts.over_most[-1]) == (least, most)
        assert counts.exact == (least == most)


class TestSegments:
    def test_hold_at_least_two_scrapes_and_are_whole(self) -> None:
        assert choose_grid(0, 100, 15, once=False) == Grid(0, 30.0, 3)
        assert choose_grid(0, 200, 60, once=False) == Grid(0, 120.0, 1)
        assert choose_grid(0, 60, 1, once=True) == Grid(0, 5.0, 12)
        assert choose_grid(0, 60, 1, once=False, planned_s=240) == Grid(0, 10.0, 6)

    def test_a_scrape_on_an_edge_belongs_to_what_it_looks_back_on(self) -> None:
        places, inside = Grid(100, 10, 2).places(np.array([100.0, 100.5, 110.0, 110.5, 120.0, 121.0]))
        assert places[inside].tolist() == [0, 0, 1, 1]

    def test_of_replicas_with_other_edges_are_counted_where_all_have_one(self) -> None:
        """All requests of one replica took at most 1 s, all of the other 1.2 s, which is the p75 of both."""
        replicas = [
            Replica(
                name,
                {
                    **series(TTFT + "_bucket", [0, 100], [0, 10], le=edge),
                    **series(TTFT + "_bucket", [0, 100], [0, 10], le="2.0"),
                    **series(TTFT + "_bucket", [0, 100], [0, 10], le="+Inf"),
                },
            )
            for name, edge in (("old", "1.0"), ("new", "1.5"))
        ]
        buckets = buckets_in(replicas, "ttft", Grid(0, 10, 1))
        low, high = quantile_bounds({edge: float(each[0]) for edge, each in buckets.items()}, 0.75) or (9.0, 0.0)
        assert low <= 1.2 <= high
        assert list(buckets) == [2.0, math.inf]


class TestLookingAgainAndAgain:
    PLAN = Plan(once=False, segments=240)

    def test_decides_nothing_before_the_spread_is_known(self) -> None:
        assert boundary(0.025, FEWEST_SEGMENTS - 1, self.PLAN) is None
        assert boundary(0.025, FEWEST_SEGMENTS, self.PLAN) is not None

    def test_asks_for_more_than_a_single_look_does(self) -> None:
        once = Plan(once=True, segments=240)
        for n in (20, 80, 240):
            wide, single = boundary(0.025, n, self.PLAN), boundary(0.025, n, once)
            assert wide is not None
            assert single is not None
            assert wide > single

    @pytest.mark.parametrize("rho", [0.0, 0.4])
    def test_finds_what_is_not_there_in_no_more_watches_than_it_says(self, rho: float) -> None:
        """Two hours of half-minute segments, looked at after each; neighbours independent or correlated."""
        rng = np.random.default_rng(7)
        fired = 0
        for _ in range(100):
            noise = rng.standard_normal(240)
            for i in range(1, 240):
                noise[i] = rho * noise[i - 1] + math.sqrt(1 - rho**2) * noise[i]
            ends = (interval(spread_of(noise[:n]), 0.025, 0.025, self.PLAN) for n in range(20, 241, 4))
            fired += any(end is not None and not end[0] <= 0 <= end[1] for end in ends)
        # 5 % allowed for both ends; four standard errors of 100 watches above it.
        assert fired / 100 <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / 100)

    def test_finds_what_is_there(self) -> None:
        rng = np.random.default_rng(8)
        found = interval(spread_of(rng.standard_normal(240) + 0.5), 0.025, 0.025, self.PLAN)
        assert found is not None
        assert found[0] > 0


class TestShares:
    def share(self, over: list[int], n: int = 100, allowed: float = 0.01, *, once: bool = True) -> str:
        samples, flags = np.full(len(over), float(n)), np.array(over, dtype=float)
        counts = SegmentCounts(samples, samples, flags, flags)
        return share_of(counts, allowed, Levels(0.025, 0.025), Plan(once, len(over)), 30.0).status

    def test_without_any_excess_need_enough_requests_to_be_safe(self) -> None:
        assert self.share([0] * 5, n=10) == "unknown"
        assert self.share([0] * 12, n=100) == "pass"

    def test_beyond_what_is_allowed_are_a_breach(self) -> None:
        assert self.share([5, 4, 6, 5, 3, 7, 5, 4] * 2) == "fail"

    def test_few_over_are_no_breach_however_few_there_are(self) -> None:
        assert self.share([1, 1, 1, 1], n=4) == "unknown"

    def test_of_one_bad_segment_are_no_breach(self) -> None:
        assert self.share([100] + [0] * 15, once=False) == "unknown"


class TestWarmth:
    def replica(self, cached: list[float], more: Samples | None = None) -> Replica:
        n = len(cached)
        samples = {
            **series(TTFT + "_count", [100.0 * i for i in range(n)]),
            **series("prompt_tokens", [1000.0 * i for i in range(n)]),
            **series("cached_tokens", np.cumsum([1000 * c for c in cached]).tolist()),
        }
        return Replica("r", {**samples, **(more or {})})

    def test_comes_when_the_share_of_hits_levels(self) -> None:
        found = warmth(self.replica([0, 0.1, 0.3, 0.5, 0.6, 0.62, 0.61]), None)
        assert found.since_s == 5.0

    def test_does_not_come_while_it_rises(self) -> None:
        assert warmth(self.replica([0, 0.1, 0.3, 0.5, 0.7]), None).since_s is None

    def test_comes_when_as_much_was_stored_as_the_host_tier_holds(self) -> None:
        stored = series("host_store_bytes", [0, 1e9, 2e9, 3e9, 4e9])
        assert warmth(self.replica([0, 0.1, 0.3, 0.5, 0.7], stored), int(2.5e9)).since_s == 3.0

    def test_begins_anew_after_a_restart(self) -> None:
        started = series("process_start_time_seconds", [1, 1, 1, 1, 1, 1, 50.0])
        assert warmth(self.replica([0, 0.1, 0.3, 0.5, 0.6, 0.62, 0.61], started), None).since_s is None

    def test_cannot_be_told_without_the_series_and_is_not_waited_for(self) -> None:
        assert warmth(Replica("r", series(TTFT + "_count", [0, 5])), None).since_s == 0.0
