"""After a hook: a tier is off only if it is proven, TTFT is back only if it stays so, and the cost is counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from kvbench.canary.rollback import AfterHook, judge_rollback
from kvbench.canary.series import Group, Replica
from kvbench.canary.tier_off import Switch
from kvbench.canary.told import ServerSays
from kvbench.canary.verdict import Rollback
from kvbench.judge.tiers import Tier
from kvbench.spec.profile import Profile
from kvbench.spec.rules import Rules
from tests.canary.build import P99, SUSTAINED, T0, Truth, group, rules

FIRED, AGAIN, END = 300.0, 330.0, 600.0
"""The hook runs, and another process serves; between them nobody answers."""
OFF = Truth(gap=(FIRED, AGAIN), restart_at=AGAIN, off_at=AGAIN)
STAYS_ON = Truth(gap=(FIRED, AGAIN), restart_at=AGAIN)
BUDGET = rules(SUSTAINED)
WITHOUT = Profile.model_validate(
    {"name": "w", "engine": {"kind": "vllm", "environment": "vllm-cpu", "model": "tiny"}, "tiers": {}}
)
SERVER = "http://c-0"
"""Of the replica that its instance label calls c-0."""
WITH_TIER = ServerSays(
    configured=True, connector="OffloadingConnector", host_bytes=1 << 26, families=["vllm:kv_offload_store_bytes"]
)
WITHOUT_TIER = ServerSays(configured=True, families=[])


def look(
    candidate: Group,
    *,
    at: float,
    baseline: Group | None = None,
    asked: Rules = BUDGET,
    told: Mapping[str, ServerSays] | None = None,
    before: Rollback | None = None,
    tier: Tier | None = "host",
    within: float = END - FIRED,
) -> Rollback:
    """One look, `at` seconds after the beginning, at what was there by then."""
    now = T0 + at
    switch = Switch(tier, WITHOUT, T0, T0 + FIRED, T0 + FIRED + within, 60.0, {SERVER: WITH_TIER} if told else {})
    there = [
        None if each is None else each.each(lambda replica: replica.within(-np.inf, now))
        for each in (candidate, baseline)
    ]
    assert there[0] is not None
    seen = AfterHook(asked, there[0], there[1], told or {}, frozenset(told or ()), now)
    return judge_rollback(switch, seen, before)


def canary(*truths: Truth) -> Group:
    return group("c", *truths, seconds=END)


def without(whole: Group, *names: str) -> Group:
    """As of an engine that does not tell these."""
    return whole.each(
        lambda each: Replica(each.name, {k: series for k, series in each.samples.items() if k[0] not in names})
    )


class TestTheTier:
    def test_is_off_when_nothing_is_looked_up_behind_the_device_any_more(self) -> None:
        found = look(canary(OFF), at=400).tier_off
        assert found.status == "proven"
        assert found.after_s == pytest.approx(AGAIN - FIRED)
        assert "no tokens looked up behind the device" in found.text
        assert "another process serves since" in found.text

    def test_is_on_as_long_as_a_token_comes_from_it(self) -> None:
        assert look(canary(STAYS_ON), at=400).tier_off.status == "waiting"
        late = look(canary(STAYS_ON), at=END)
        assert late.tier_off.status == "failed"
        assert "prompt tokens came from the host tier" in " ".join(late.replicas[0].evidence)
        assert late.ended

    def test_is_not_off_because_nobody_asks_for_it(self) -> None:
        silent = Truth(gap=(FIRED, AGAIN), restart_at=AGAIN, off_at=FIRED, per_s=0.0)
        found = look(canary(silent), at=END).tier_off
        assert found.status == "unknown"
        assert "lookups were not counted before" in found.text

    def test_is_not_off_while_its_server_is_away(self) -> None:
        assert "no replica answers" in look(canary(OFF), at=AGAIN - 2).tier_off.text
        refused = np.array([T0 + FIRED + 5])
        candidate = Group("c", (Replica("c-0", canary(OFF).replicas[0].samples, refused),))
        found = look(candidate, at=FIRED + 6)
        assert found.tier_off.status == "waiting"
        assert "c-0: it does not answer" in found.tier_off.text

    def test_is_off_by_the_servers_own_words_before_any_request(self) -> None:
        found = look(canary(OFF), at=AGAIN + 2, told={SERVER: WITHOUT_TIER})
        assert [row.replica for row in found.replicas] == ["c-0"]
        assert found.tier_off.status == "proven"
        assert "its configuration has no KV connector" in found.tier_off.text
        assert "declare no family of the host tier, 1 before" in found.tier_off.text

    def test_is_on_by_the_servers_own_words_whatever_is_counted(self) -> None:
        found = look(canary(OFF), at=END, told={SERVER: WITH_TIER}).tier_off
        assert found.status == "failed"
        assert "its configuration still has OffloadingConnector" in found.text

    def test_of_a_server_that_is_asked_and_has_no_series_counts_as_well(self) -> None:
        found = look(canary(OFF), at=END, told={SERVER: WITHOUT_TIER, "http://other": WITH_TIER})
        assert [(row.replica, row.status) for row in found.replicas] == [("c-0", "off"), ("http://other", "on")]
        assert found.tier_off.status == "failed"

    def test_is_off_only_if_every_replica_says_so(self) -> None:
        found = look(canary(OFF, Truth()), at=END)
        assert found.tier_off.status == "failed"
        assert [row.status for row in found.replicas] == ["off", "on"]
        assert found.replicas[1].since is None
        assert "no restart is seen" in found.replicas[1].unproven

    def test_of_replicas_that_were_replaced_is_that_of_the_new_ones(self) -> None:
        old = group("old", Truth(silent_from=FIRED), seconds=END).replicas
        new = group("new", Truth(off_at=0.0), seconds=END).replicas[0].within(T0 + AGAIN, T0 + END)
        found = look(Group("c", (*old, new)), at=450)
        assert [row.replica for row in found.replicas] == ["new-0"]
        assert found.tier_off.status == "proven"

    def test_that_an_engine_does_not_tell_is_not_known(self) -> None:
        found = look(without(canary(OFF), "tier_cache_queries"), at=END).tier_off
        assert found.status == "unknown"

    def test_is_not_waited_for_where_nobody_knows_which_it_is(self) -> None:
        found = look(canary(OFF), at=450, tier=None)
        assert (found.tier_off.status, found.baseline_back.status) == ("unknown", "proven")
        assert "which tier is meant is not known" in found.tier_off.text
        assert found.ended


class TestTTFT:
    def test_is_back_after_a_whole_stretch_within_its_budget(self) -> None:
        slow_at_first = replace(OFF, slow=lambda t: 0.5 if 300 < t < 380 else 0)
        early = look(canary(slow_at_first), at=AGAIN + 40)
        assert early.baseline_back.status == "waiting"
        assert "TTFT is looked at in" in early.baseline_back.text
        over = look(canary(slow_at_first), at=AGAIN + 65)
        assert over.baseline_back.status == "waiting"
        assert "TTFT is not back" in over.baseline_back.text
        back = look(canary(slow_at_first), at=445)
        assert back.baseline_back.status == "proven"
        assert back.baseline_back.after_s == pytest.approx(445 - 60 - FIRED)
        assert back.ended
        later = look(canary(slow_at_first), at=500, before=back)
        assert later.baseline_back.after_s == back.baseline_back.after_s

    def test_that_stays_over_its_budget_is_not(self) -> None:
        stays_slow = replace(OFF, slow=lambda t: 0.3)
        found = look(canary(stays_slow), at=END)
        assert (found.tier_off.status, found.baseline_back.status) == ("proven", "failed")

    @pytest.mark.parametrize(("fast_s", "status"), [(0.05, "proven"), (0.07, "failed")])
    def test_without_a_budget_is_held_against_the_baseline(self, fast_s: float, status: str) -> None:
        base = group("b", Truth(seed=2), seconds=END)
        truth = replace(OFF, fast_s=fast_s)
        asked = rules({"id": "e", "metric": "error_rate", "max": 0.1})
        found = look(canary(truth), at=END, baseline=base, asked=asked).baseline_back
        assert found.status == status
        assert "of the baseline between 40 ms and 60 ms" in found.text

    def test_of_too_few_requests_is_not_known(self) -> None:
        few = replace(OFF, per_s=0.1)
        found = look(canary(few), at=END).baseline_back
        assert found.status == "unknown"
        assert "so far" in found.text

    def test_with_nothing_to_hold_it_to_is_not_known(self) -> None:
        asked = rules({"id": "e", "metric": "error_rate", "max": 0.1})
        assert look(canary(OFF), at=END, asked=asked).baseline_back.status == "unknown"

    def test_is_not_looked_at_while_nothing_has_changed(self) -> None:
        found = look(canary(Truth()), at=400).baseline_back
        assert found.status == "waiting"
        assert "before anything has changed" in found.text


class TestTheCost:
    def test_is_the_time_without_service_and_the_hits_that_did_not_come(self) -> None:
        candidate = canary(OFF)
        away = Replica("c-0", candidate.replicas[0].samples, T0 + np.array([FIRED + 4, FIRED + 14, FIRED + 24]))
        found = look(Group("c", (away,)), at=450, baseline=group("b", Truth(seed=2), seconds=END))
        cost = found.cost
        assert cost is not None
        assert cost.without_service_s == pytest.approx((20.0, AGAIN - FIRED))
        assert cost.requests_under_way == 1.0
        assert cost.requests_meanwhile == pytest.approx(300, rel=0.1)
        assert cost.cached_share_before == pytest.approx(0.5)
        assert cost.cached_share_until_back == pytest.approx(0.3)
        assert cost.cached_share_after == pytest.approx(0.3)
        since = cost.requests_since
        assert since == pytest.approx(10 * (450 - AGAIN), rel=0.1)
        assert cost.recomputed_tokens == pytest.approx(0.2 * 200 * since)
        assert cost.recomputed_requests == pytest.approx(0.2 * since)
        assert cost.sources_before["host"] == pytest.approx(0.2)
        assert cost.sources_after["host"] == 0
        assert cost.ttft_before is not None
        assert cost.ttft_before.p50_s == (0.04, 0.06)
        assert cost.ttft_baseline is not None

    def test_of_a_restart_between_two_scrapes_is_known_as_finely_as_they_tell(self) -> None:
        quick = Truth(restart_at=AGAIN, off_at=AGAIN)
        cost = look(canary(quick), at=450).cost
        assert cost is not None
        assert cost.without_service_s == pytest.approx((0.0, 5.0))

    def test_is_none_where_others_serve_meanwhile(self) -> None:
        found = look(canary(OFF, Truth(off_at=0.0)), at=END)
        assert found.cost is not None
        assert found.cost.without_service_s == (0.0, 0.0)

    def test_of_what_is_not_counted_is_not_known(self) -> None:
        found = look(without(canary(OFF), "cached_tokens", "prompt_tokens"), at=END)
        assert found.cost is not None
        assert found.cost.recomputed_tokens is None
        assert found.cost.cached_share_before is None


def test_a_p99_without_sustained_is_a_budget_too() -> None:
    found = look(canary(OFF), at=END, asked=rules(P99)).baseline_back
    assert found.status == "proven"
    assert "TTFT p99 at most 1 s" in found.text
