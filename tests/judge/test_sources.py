"""Tokens by source from canonical counters, and which rounds are independent."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from kvbench.judge.looks import Look
from kvbench.judge.sources import Counters, add_sources
from kvbench.judge.tiers import newest_tier
from kvbench.judge.units import independent_units
from kvbench.spec.profile import Profile
from kvbench.spec.rules import Rounds
from tests.judge.build import BASELINE, TIERED, good_pairs, metric_rows, same_pairs

BY_SOURCE = "prompt_tokens_by_source"


class TestIncrease:
    def test_is_from_the_last_scrape_at_or_before_the_start_to_the_last_scrape(self) -> None:
        metrics = metric_rows(
            {(BY_SOURCE, "device"): [1, 5, 7, 20], (BY_SOURCE, "disk"): [0, 0, 3, 4]}, [0.0, 10.0, 11.0, 99.0]
        )
        counters = Counters(metrics)
        assert counters.by_source(10.0) == {"device": 15.0, "host": None, "disk": 4.0, "computed": None}
        assert counters.by_source(10.9)["device"] == 15.0
        assert counters.by_source(11.0)["device"] == 13.0
        assert counters.increase(BY_SOURCE) == 23.0
        assert counters.increase(BY_SOURCE, 11.0) == 14.0

    def test_scrapes_may_be_stored_in_any_order(self) -> None:
        metrics = metric_rows({(BY_SOURCE, "device"): [1, 5, 20]}, [0.0, 10.0, 99.0]).iloc[::-1]
        assert Counters(metrics).by_source(0.0)["device"] == 19.0

    def test_without_a_scrape_before_the_start_nothing_is_known(self) -> None:
        metrics = metric_rows({(BY_SOURCE, "device"): [5, 20], ("prompt_tokens", None): [5, 20]}, [12.0, 99.0])
        assert set(Counters(metrics).by_source(10.0).values()) == {None}
        assert Counters(metrics).increase("prompt_tokens", 10.0) is None
        assert Counters(metrics).increase("prompt_tokens") == 15.0

    def test_a_source_that_shows_up_later_began_at_zero(self) -> None:
        metrics = metric_rows(
            {(BY_SOURCE, "device"): [5, 6, 7], (BY_SOURCE, "disk"): [float("nan"), 3, 8]}, [9.0, 20.0, 99.0]
        )
        assert Counters(metrics).by_source(10.0)["disk"] == 8.0

    def test_a_counter_that_fell_has_no_increase(self) -> None:
        metrics = metric_rows(
            {(BY_SOURCE, "device"): [5, 9, 2], ("cached_tokens", None): [1, 2, 2]}, [9.0, 20.0, 99.0]
        )
        counters = Counters(metrics)
        assert counters.by_source(10.0)["device"] is None
        assert counters.resets() == [(BY_SOURCE, 99.0)]

    def test_a_reset_that_the_scrapes_told_is_one_though_the_sum_grew(self) -> None:
        """One rank of several began anew."""
        grown = metric_rows({("prompt_tokens", None): [1, 5, 20]}, [0.0, 10.0, 99.0])
        told = grown.iloc[:1].assign(
            t_s=10.0, name="counter_reset", labels='{"counter": "prompt_tokens"}', value=4.0
        )
        assert Counters(pd.concat([grown, told])).resets() == [("prompt_tokens", 10.0)]

    @pytest.mark.parametrize("counter", [BY_SOURCE, "process"])
    def test_what_a_told_reset_took_makes_the_increase_unknown_though_the_sum_grew(self, counter: str) -> None:
        """Given one rank of several that began anew, or a process that counted further than the one before it."""
        names = ("device", "host", "disk", "computed")
        grown = metric_rows({(BY_SOURCE, source): [1, 5, 20] for source in names}, [0.0, 10.0, 99.0])
        told = grown.iloc[:1].assign(
            t_s=50.0, name="counter_reset", labels=f'{{"counter": "{counter}"}}', value=4.0
        )
        counters = Counters(pd.concat([grown, told]))
        assert set(counters.by_source(0.0).values()) == {None}
        assert counters.increase(BY_SOURCE) is None
        assert counters.grown(BY_SOURCE, 0.0) is None
        assert not counters.unbroken({BY_SOURCE}, 0.0)
        assert counters.sources_between(10.0, 99.0) is None
        assert counters.by_source(50.0)["device"] == 15.0, "what came after it is known"
        assert counters.unbroken({BY_SOURCE}, 50.0)
        assert counters.sources_between(0.0, 10.0) == dict.fromkeys(names, 4.0)

    def test_buckets_of_a_histogram_that_began_anew_are_unknown(self) -> None:
        grown = metric_rows({("block_lifetime_count", None): [1, 5, 20]}, [0.0, 10.0, 99.0])
        edges = grown.assign(name="block_lifetime_bucket", labels='{"le": "+Inf"}')
        told = grown.iloc[:1].assign(
            t_s=50.0, name="counter_reset", labels='{"counter": "block_lifetime_count"}', value=4.0
        )
        assert Counters(pd.concat([grown, edges])).buckets("block_lifetime", 0.0) == {float("inf"): 19.0}
        assert Counters(pd.concat([grown, edges, told])).buckets("block_lifetime", 0.0) is None

    def test_a_fall_before_the_start_is_a_reset_but_leaves_the_increase(self) -> None:
        metrics = metric_rows({(BY_SOURCE, "device"): [5, 0, 2]}, [1.0, 9.0, 99.0])
        assert Counters(metrics).by_source(10.0)["device"] == 2.0
        assert Counters(metrics).resets() == [(BY_SOURCE, 9.0)]

    def test_gauges_may_fall(self) -> None:
        metrics = metric_rows({("requests_running", None): [5, 1]}, [1.0, 2.0])
        assert Counters(metrics).resets() == []
        assert Counters(metrics).span(BY_SOURCE) is None

    def test_the_span_of_a_counter_is_its_first_and_last_scrape(self) -> None:
        metrics = metric_rows({(BY_SOURCE, "device"): [1, 2, 3]}, [3.0, 1.0, 2.0])
        assert Counters(metrics).span(BY_SOURCE) == (1.0, 3.0)

    def test_over_rounds_an_unknown_source_stays_unknown(self) -> None:
        one = {"device": 1.0, "host": None, "disk": 2.0, "computed": 3.0}
        assert add_sources([one, one]) == {"device": 2.0, "host": None, "disk": 4.0, "computed": 6.0}
        assert add_sources([one, one | {"disk": None}])["disk"] is None
        assert set(add_sources([]).values()) == {None}


def profile(**tiers: object) -> Profile:
    return Profile.model_validate({"name": "p", "engine": {"kind": "vllm", "model": "tiny"}, "tiers": tiers})


HOST, BIGGER, DISK = {"size": "1GiB"}, {"size": "2GiB"}, {"path": "/srv/kv"}
ELSEWHERE = {"path": "/srv/other"}
"""Every arm must have a directory of its own, so where it lies is no change of the tier."""
STORE = {"type": "obj", "bucket": "kv", "endpoint_override": "http://127.0.0.1:9000"}


class TestNewestTier:
    @pytest.mark.parametrize(
        ("baseline", "candidate", "tier"),
        [
            ({}, {"host": HOST}, "host"),
            ({}, {"host": HOST, "disk": DISK}, "disk"),
            ({"host": HOST}, {"host": HOST, "disk": DISK}, "disk"),
            ({"host": HOST}, {"host": BIGGER, "disk": DISK}, "disk"),
            ({"host": HOST}, {"host": BIGGER}, "host"),
            ({"device": {"blocks": 9}, "host": HOST}, {"device": {"blocks": 8}, "host": BIGGER}, "host"),
            ({}, {"device": {"kv_dtype": "fp8"}}, "device"),
            ({"host": HOST, "disk": DISK}, {"host": HOST}, None),
            ({"host": HOST}, {"host": HOST}, None),
            ({"disk": DISK, "host": HOST}, {"host": HOST, "device": {"kv_dtype": "fp8"}}, "device"),
            ({"host": HOST, "disk": DISK}, {"host": BIGGER, "disk": ELSEWHERE}, "host"),
            (
                {"host": HOST, "disk": DISK},
                {"device": {"kv_dtype": "fp8"}, "host": HOST, "disk": ELSEWHERE},
                "device",
            ),
            ({"host": HOST, "disk": DISK}, {"host": HOST, "disk": ELSEWHERE}, None),
            ({"host": HOST, "disk": DISK}, {"host": BIGGER, "disk": ELSEWHERE | {"read_threads": 4}}, "disk"),
            ({"host": HOST}, {"host": HOST, "secondary": [STORE]}, "disk"),
            (
                {"host": HOST, "secondary": [STORE]},
                {"host": HOST, "secondary": [STORE | {"io_threads": 4}]},
                "disk",
            ),
        ],
    )
    def test_is_the_coldest_added_else_the_coldest_changed(
        self, baseline: dict[str, object], candidate: dict[str, object], tier: str | None
    ) -> None:
        assert newest_tier(profile(**baseline), profile(**candidate)) == tier

    def test_a_disk_that_is_added_counts_before_a_host_that_changed(self) -> None:
        assert newest_tier(BASELINE, TIERED) == "disk"


class TestIndependentUnits:
    ROUNDS = Rounds.model_validate({"min": 3, "max": 12})

    def test_with_fresh_launches_the_round_is_the_unit(self) -> None:
        units = independent_units(good_pairs(4), self.ROUNDS, attached=False)
        assert units.kind == "round"
        assert units.groups == ((0,), (1,), (2,), (3,))
        assert units.look == Look(4, 3, 12)

    @pytest.mark.parametrize(
        ("base", "cand", "groups"),
        [
            ("aabbcc", "xxyyzz", ((0, 1), (2, 3), (4, 5))),
            ("aabbcc", "uvwxyz", ((0, 1), (2, 3), (4, 5))),
            ("abcdef", "uvwxxz", ((0,), (1,), (2,), (3, 4), (5,))),
            ("abbccd", "xxyyzz", ((0, 1, 2, 3, 4, 5),)),
            ("abcabc", "uvwxyz", ((0, 3), (1, 4), (2, 5))),
        ],
    )
    def test_rounds_connected_by_a_launch_of_either_arm_count_as_one(
        self, base: str, cand: str, groups: tuple[tuple[int, ...], ...]
    ) -> None:
        pairs = [
            replace(pair, baseline=replace(pair.baseline, launch=b), candidate=replace(pair.candidate, launch=c))
            for pair, b, c in zip(same_pairs(6), base, cand, strict=True)
        ]
        units = independent_units(pairs, self.ROUNDS, attached=False)
        assert units.kind == "launch"
        assert units.groups == groups
        assert units.average([1, 2, 3, 4, 5, 6]) == [sum(g) / len(g) + 1 for g in groups]

    def test_looks_are_counted_in_units(self) -> None:
        pairs = [
            replace(pair, baseline=replace(pair.baseline, launch=str(n // 2)))
            for n, pair in enumerate(same_pairs(6))
        ]
        units = independent_units(pairs, self.ROUNDS, attached=False)
        assert units.look == Look(3, 2, 6)
        assert units.pairs_for(4) == 8
        assert independent_units(pairs, self.ROUNDS, attached=True).pairs_for(4) == 4

    def test_the_same_name_in_both_arms_is_not_the_same_launch(self) -> None:
        pairs = good_pairs(2)
        pairs[0] = replace(pairs[0], baseline=replace(pairs[0].baseline, launch="1"))
        pairs[1] = replace(pairs[1], candidate=replace(pairs[1].candidate, launch="1"))
        assert independent_units(pairs, self.ROUNDS, attached=False).kind == "round"

    def test_attached_servers_have_one_launch_and_rounds_as_units(self) -> None:
        pairs = [replace(pair, baseline=replace(pair.baseline, launch="x")) for pair in same_pairs(3)]
        units = independent_units(pairs, self.ROUNDS, attached=True)
        assert (units.kind, units.look.done) == ("round", 3)

    def test_no_pair_is_no_unit(self) -> None:
        units = independent_units([], self.ROUNDS, attached=False)
        assert (units.groups, units.kind, units.look) == ((), "round", Look(0, 3, 12))
        assert units.pairs_for(3) == 3

    def test_what_is_left_when_some_pairs_say_nothing(self) -> None:
        units = independent_units(good_pairs(4), self.ROUNDS, attached=False).only([0, 3])
        assert units.groups == ((0,), (3,))
        assert units.look == Look(2, 3, 12)
        assert units.average({0: 1.0, 3: 2.0}) == [1.0, 2.0]
