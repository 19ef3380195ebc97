"""What hits were worth, on emulated rounds whose costs are known, and on rounds made by hand."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest

from kvbench.engine.emulated.virtual import simulate
from kvbench.judge import hit_quality as hitting
from kvbench.judge.case import build_case
from kvbench.judge.evidence import Comparison, RoundPair
from kvbench.judge.held_out import _effect, _Stratum
from kvbench.judge.hit_quality import hit_quality
from kvbench.judge.judge import judge
from kvbench.judge.quality import HitQuality, Holdout
from kvbench.judge.verdict import CandidateVerdict, Outcome
from kvbench.plan.cost_mix import METHOD
from kvbench.spec.profile import Profile
from kvbench.spec.rules import Rules
from kvbench.spec.workload import Workload
from kvbench.workload.build import build_schedule

COMPUTED_S, LOAD_BLOCK_S, READ_BLOCK_S, BLOCK = 1.25e-4, 2.5e-4, 5e-4, 128
ROUNDS = 3


def workload(**changes: object) -> Workload:
    prefix = {"pool": 12, "popularity": "uniform"}
    spec: dict = {
        "name": "hits",
        "seed": 4,
        "arrivals": {"process": "poisson", "rate": 0.8},
        "phases": [{"name": "steady", "for": 120.0}],
        "classes": {
            "short": {"prefix": {"tokens": 1024, **prefix}, "suffix_tokens": 64, "output_tokens": 4},
            "long": {"prefix": {"tokens": 3072, **prefix}, "suffix_tokens": 64, "output_tokens": 4},
        },
        "prime": "each_prefix_once",
        **changes,
    }
    return Workload.model_validate(spec)


def profile(name: str, *, host_blocks: int = 0, disk: bool = False, inject: dict | None = None) -> Profile:
    tiers: dict = {"device": {"blocks": 100}}
    if host_blocks:
        tiers["host"] = {"size": host_blocks * 262_144}
    if disk:
        tiers["disk"] = {"path": "/nowhere/kv"}
    still = {"launch": 0.01, "level": 0.01, "step": 0.01}
    engine = {
        "kind": "emulated",
        "model": "tiny",
        "args": {"max-model-len": 4096},
        "emulation": {"noise": still, "costs": {"token_context": 0.0}},
        **({"inject": inject} if inject else {}),
    }
    return Profile.model_validate({"name": name, "engine": engine, "tiers": tiers})


@cache
def compared(*, slow: float = 1.0, holdout: float = 0.0, disk: bool = True) -> Comparison:
    """Three rounds of the device alone against host and disk behind it."""
    spec = workload(tier_holdout=holdout)
    baseline = profile("base")
    inject = {"slow_promotions": {"factor": slow}} if slow != 1.0 else None
    candidate = profile("tiered", host_blocks=200, disk=disk, inject=inject)
    pairs = []
    for index in range(1, ROUNDS + 1):
        schedule = build_schedule(spec, index, block_tokens=BLOCK, capacities_tokens=None, max_model_len=4096)
        sides = [
            simulate(schedule, arm, label=f"{arm.name}-{index}").arm_round(arm.name, index)
            for arm in (baseline, candidate)
        ]
        pairs.append(RoundPair(index, *sides))
    rules = Rules.model_validate(
        {
            "guardrails": [],
            "benefits": [{"id": "ttft", "metric": "ttft", "quantile": 0.5, "max_ratio": 0.9}],
            "rounds": {"min": ROUNDS, "max": ROUNDS},
        }
    )
    return Comparison(baseline, candidate, spec, rules, tuple(pairs), ROUNDS)


@cache
def verdict(**changes: object) -> CandidateVerdict:
    return judge(compared(**changes))


def quality(**changes: object) -> HitQuality:
    found = verdict(**changes).hits
    assert found is not None
    return found


def test_the_costs_of_the_engine_are_found_again() -> None:
    costs = {cost.source: cost for cost in quality().costs}
    assert costs["computed"].per_token_s == pytest.approx(COMPUTED_S, rel=0.05)
    assert costs["host"].per_token_s == pytest.approx(LOAD_BLOCK_S / BLOCK, rel=0.5)
    assert costs["device"].per_token_s == pytest.approx(0.0, abs=3e-6)
    order = [costs[source].per_token_s for source in ("device", "host", "disk", "computed")]
    assert order == sorted(order)
    for cost in costs.values():
        assert cost.ci is not None
        assert cost.ci[0] <= cost.per_token_s <= cost.ci[1]
    assert costs["disk"].ci is not None
    assert costs["computed"].ci is not None
    assert costs["disk"].ci[1] < costs["computed"].ci[0], "computing costs more beyond doubt"


def test_of_very_many_requests_a_part_is_fitted_which_is_said_and_is_always_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A million requests in each arm would take the fits minutes and gigabytes for the same line."""
    every = quality()
    assert every.method == METHOD
    monkeypatch.setattr(hitting, "FITTED_AT_MOST", 300)
    first, again = (hit_quality(build_case(compared())) for _ in range(2))
    assert first is not None
    assert first == again
    total = sum(row.n for row in every.ttft_by_source)
    assert first.method is not None
    fitted = int(first.method.split("fitted to ")[1].split(" of ")[0])
    assert 290 <= fitted <= 300 < total
    assert first.method.endswith(" requests, drawn at random")
    whole, part = ({cost.source: cost for cost in found.costs} for found in (every, first))
    assert part["computed"].per_token_s == pytest.approx(whole["computed"].per_token_s, rel=0.1)
    assert part.keys() == whole.keys()
    for one, other in zip(first.worth, every.worth, strict=True):
        assert (one.requests, one.tokens) == (other.requests, other.tokens), "what was saved is counted over all"
        assert one.saved_s == pytest.approx(other.saved_s, rel=0.2)


def test_good_promotions_saved_what_computing_would_have_taken() -> None:
    rows = {row.tier: row for row in quality().worth}
    for tier in ("host", "disk"):
        row = rows[tier]
        most = row.tokens * COMPUTED_S
        assert 0.5 * most < row.saved_s < 1.1 * most
        assert row.pays == "yes"
        assert row.lost_share < 0.1
        assert row.break_even_tokens is not None
        assert row.break_even_tokens < 1024
        assert row.saved_s_per_gib_moved == pytest.approx(row.saved_s / (row.tokens * 2048 / 2**30), rel=0.02)
        assert row.moved_by == "counters"
    a_round = rows["host"].saved_s / ROUNDS
    assert rows["host"].saved_s_per_gib_kept == pytest.approx(a_round / (200 * 262_144 / 2**30))


def test_what_a_kept_gib_saves_does_not_grow_with_the_rounds() -> None:
    """Given the same round three times and once, then a GiB of either tier saves the same."""
    several = compared()
    first = several.pairs[0]
    alike = tuple(
        RoundPair(
            index,
            replace(first.baseline, index=index, launch=f"b{index}"),
            replace(first.candidate, index=index, launch=f"c{index}"),
        )
        for index in (1, 2, 3)
    )
    thrice, once = (hit_quality(build_case(replace(several, pairs=pairs))) for pairs in (alike, (first,)))
    assert thrice is not None
    assert once is not None
    for one, three in zip(once.worth, thrice.worth, strict=True):
        assert three.saved_s == pytest.approx(3 * one.saved_s)
        assert three.saved_s_per_gib_kept == pytest.approx(one.saved_s_per_gib_kept)


def test_promotions_slower_than_computing_lost_seconds_and_the_tier_is_named() -> None:
    """Given host loads that take longer than recompute, then so many seconds were lost, NO_GO, and which tier."""
    slow = verdict(slow=120.0, disk=False)
    assert slow.hits is not None
    (host,) = [row for row in slow.hits.worth if row.tier == "host"]
    assert host.saved_s < 0
    assert host.lost_share > 0.9
    assert host.pays == "never"
    assert slow.verdict is Outcome.NO_GO
    assert slow.action is not None
    assert slow.action.disable_tier == "host"
    assert any(reason.startswith("promotions from host lost ") for reason in slow.reasons)


def test_ttft_rises_from_source_to_source() -> None:
    rows = [row for row in quality().ttft_by_source if row.prompt_tokens_from == 2048]
    service = {(row.arm, row.source): row.service_p50_s for row in rows}
    assert service["tiered", "device"] < service["tiered", "host"] < service["tiered", "disk"]
    assert service["tiered", "disk"] < service["base", "computed"]
    assert all(row.service_ci is not None for row in rows if row.n > 3 * ROUNDS * 3)


def test_the_ledger_of_both_arms_adds_up_to_the_counters() -> None:
    for arm in verdict().ledger:
        assert arm.mismatch_points == dict.fromkeys(("device", "host", "disk", "computed"), 0.0)
        assert sum(arm.evidence.values()) == arm.requests
    assert {arm.arm for arm in verdict().ledger} == {"base", "tiered"}


def test_a_tenth_held_out_shows_what_the_disk_is_worth() -> None:
    (all_, *classes) = verdict(holdout=0.3).holdout
    assert all_.class_ == "all"
    assert {row.class_ for row in classes} == {"short", "long"}
    assert all_.ci is not None
    assert all_.difference_s < 0
    assert all_.ci[1] < 0, "held out requests compute what the disk would have given"
    assert all_.difference_s == pytest.approx(all_.ttft_kept_s - all_.ttft_held_s)


def test_with_a_few_held_out_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """Given three rounds of sixty requests with a skewed TTFT, of which a random tenth or so is held out."""
    draw, covered, told = np.random.default_rng(7), 0, 0
    for _ in range(800):
        strata: list[_Stratum] = []
        effects: list[float] = []
        for _round in range(3):
            without = np.exp(draw.normal(-1.5, 1.0, 60))
            held = draw.random(60) < 0.1
            strata.append(_Stratum("long", without[held], 0.6 * without[~held]))
            if held.sum() >= 2:
                effects.append(float(np.mean(-0.4 * without)))
        found = _effect("long", strata, 0.95)
        if found is not None and found.ci is not None:
            told += 1
            covered += found.ci[0] <= float(np.mean(effects)) <= found.ci[1]
    assert told > 700
    assert 0.915 <= covered / told <= 0.985


def test_without_a_secondary_tier_nothing_is_held_out() -> None:
    assert verdict(holdout=0.3, disk=False).holdout == []
    assert verdict().holdout == []


def test_held_out_requests_take_nothing_from_disk() -> None:
    recorded = compared(holdout=0.3).pairs[0].candidate
    rows = recorded.requests.merge(recorded.ledger, on="id")
    assert rows[rows["holdout"]]["disk"].sum() == 0
    assert rows[~rows["holdout"]]["disk"].sum() > 0


def holdout_with(change: Callable[[pd.DataFrame], pd.DataFrame], *, ledger: bool = True) -> Holdout:
    """Of all requests, with the candidate's requests changed, and without their ledger when asked."""
    whole = compared(holdout=0.3)
    pairs = tuple(
        RoundPair(
            pair.index,
            pair.baseline,
            replace(
                pair.candidate,
                requests=change(pair.candidate.requests),
                ledger=pair.candidate.ledger if ledger else pd.DataFrame(),
            ),
        )
        for pair in whole.pairs
    )
    return judge(replace(whole, pairs=pairs)).holdout[0]


def test_a_server_that_does_not_heed_the_wish_is_found_out() -> None:
    """Given marks on other requests than those that were held out, then the tier served them as it served any."""

    def moved(requests: pd.DataFrame) -> pd.DataFrame:
        return requests.assign(holdout=np.roll(requests["holdout"].to_numpy(), 11))

    assert verdict(holdout=0.3).holdout[0].heeded is True
    assert holdout_with(lambda requests: requests).heeded is True
    assert holdout_with(moved).heeded is False


def test_without_a_ledger_fewer_cached_tokens_show_that_the_wish_was_heeded() -> None:
    assert holdout_with(lambda requests: requests, ledger=False).heeded is True
    silent = holdout_with(lambda requests: requests.assign(cached_tokens=np.nan), ledger=False)
    assert silent.heeded is None
    assert silent.difference_s == verdict(holdout=0.3).holdout[0].difference_s


def test_without_a_ledger_what_the_engine_counts_is_said_and_nothing_of_single_requests() -> None:
    bare = compared()
    pairs = tuple(
        RoundPair(
            pair.index,
            replace(pair.baseline, ledger=pd.DataFrame()),
            replace(pair.candidate, ledger=pd.DataFrame()),
        )
        for pair in bare.pairs
    )
    found = judge(replace(bare, pairs=pairs))
    assert found.hits is not None
    assert found.hits == HitQuality(
        movement=quality().movement, lookup_wait_s=quality().lookup_wait_s, preemptions=quality().preemptions
    )
    assert {"host to device (load)", "disk to host (promotion)"} <= {row.way for row in found.hits.movement}
    assert found.hits.preemptions is not None
    assert found.ledger == []
    assert found.verdict is verdict().verdict


def lying(tokens: int, *, to: str = "unattributed") -> CandidateVerdict:
    """So many tokens of each of the candidate's requests from the disk are booked elsewhere by its ledger."""

    def changed(ledger: pd.DataFrame) -> pd.DataFrame:
        moved = ledger["disk"].clip(upper=tokens)
        return ledger.assign(**{"disk": ledger["disk"] - moved, to: ledger[to] + moved})

    whole = compared()
    pairs = tuple(
        replace(pair, candidate=replace(pair.candidate, ledger=changed(pair.candidate.ledger)))
        for pair in whole.pairs
    )
    return judge(replace(whole, pairs=pairs))


def test_a_ledger_that_the_counters_deny_tells_nothing_of_single_requests() -> None:
    denied = lying(2048, to="host")
    (why,) = [arm.distrusted for arm in denied.ledger if arm.arm == "tiered"]
    assert why is not None
    assert re.match(r"the ledger of tiered has \d+\.\d points more prompt tokens from host than the engine", why)
    assert denied.hits is not None
    assert (denied.hits.worth, denied.hits.costs, denied.hits.ttft_by_source) == ([], [], [])
    assert denied.hits.movement == quality().movement
    assert [arm.distrusted for arm in verdict().ledger] == [None, None]


def test_what_a_ledger_leaves_open_is_no_reason_to_distrust_it() -> None:
    vague = lying(2048)
    assert [arm.distrusted for arm in vague.ledger] == [None, None]
    assert min(off for off in vague.ledger[1].mismatch_points.values() if off is not None) < -5
    assert vague.hits is not None
    assert vague.hits.worth


def test_what_was_moved_is_what_the_engine_counts_also_where_nobody_used_it() -> None:
    whole = compared()
    twice = ("host_load_bytes", "disk_read_bytes")

    def moved_more(metrics: pd.DataFrame) -> pd.DataFrame:
        return metrics.assign(value=metrics["value"].where(~metrics["name"].isin(twice), 2 * metrics["value"]))

    def uncounted(metrics: pd.DataFrame) -> pd.DataFrame:
        return metrics[~metrics["name"].isin(twice)]

    for change, factor, by in ((moved_more, 0.5, "counters"), (uncounted, 1.0, "tokens")):
        pairs = tuple(
            replace(pair, candidate=replace(pair.candidate, metrics=change(pair.candidate.metrics)))
            for pair in whole.pairs
        )
        found = hit_quality(build_case(replace(whole, pairs=pairs)))
        assert found is not None
        for row, usual in zip(found.worth, quality().worth, strict=True):
            assert row.saved_s_per_gib_moved == pytest.approx(factor * usual.saved_s_per_gib_moved, rel=0.02)
            assert row.moved_by == by


def test_without_a_ledger_and_without_counters_nothing_is_said() -> None:
    bare = compared()
    pairs = tuple(
        RoundPair(
            pair.index,
            replace(pair.baseline, ledger=pd.DataFrame()),
            replace(pair.candidate, ledger=pd.DataFrame(), metrics=pair.candidate.metrics.iloc[:0]),
        )
        for pair in bare.pairs
    )
    assert judge(replace(bare, pairs=pairs)).hits is None


def test_whether_a_tier_pays_is_said_as_far_as_the_interval_tells() -> None:
    """Given loads that cost about what computing costs, then it is not known; nor from a single round, of any."""
    rows = {row.tier: row for row in quality(slow=64.0, disk=False).worth}
    assert rows["host"].pays == "unknown"
    once = replace(compared(), pairs=compared().pairs[:1])
    found = hit_quality(build_case(once))
    assert found is not None
    assert {row.pays for row in found.worth} == {"unknown"}
