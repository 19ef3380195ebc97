"""Virtual time: a round's tables have the schemas of a recorded one, repeat exactly, and show what was injected."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from kvbench.engine.emulated.counters import canonical_series
from kvbench.engine.emulated.exposition import exposition
from kvbench.engine.emulated.fates import Fates
from kvbench.engine.emulated.sizes import sizes_of
from kvbench.engine.emulated.virtual import SimulatedRound, simulate
from kvbench.observe.canonical import canonical, identity_breaks, parse_engine
from kvbench.record.tables import HOST, METRICS, REQUESTS, TOKENS
from kvbench.spec.emulation import Injections, Noise
from tests.engine.emulated.build import a_core, a_profile, a_request, a_schedule, play

LONG_ANSWERS = {
    "prefix": {"tokens": 512, "pool": 6, "popularity": "uniform"},
    "suffix_tokens": 32,
    "output_tokens": 20,
}
TIERED = {"blocks": 80, "host_blocks": 100, "disk": True}


def played(inject: dict | None = None, **changes: object) -> SimulatedRound:
    return simulate(a_schedule(**changes), a_profile(**TIERED, inject=inject))


def measured(result: SimulatedRound) -> pd.DataFrame:
    frame = result.requests.to_pandas()
    return frame[frame["phase"] != "prime"]


def last(result: SimulatedRound, name: str) -> dict[str, float]:
    frame = result.metrics.to_pandas()
    rows = frame[(frame["name"] == name) & (frame["t_s"] == frame["t_s"].max())]
    return {
        json.loads(labels).get("source", ""): value
        for labels, value in zip(rows["labels"], rows["value"], strict=True)
    }


def test_a_round_has_the_tables_of_a_recorded_one() -> None:
    result = played()
    assert result.requests.schema == REQUESTS
    assert result.tokens.schema == TOKENS
    assert result.metrics.schema == METRICS
    assert result.host.schema == HOST
    requests, tokens = result.requests.to_pandas(), result.tokens.to_pandas()
    assert len(requests) == len(a_schedule())
    assert set(requests["status"]) == {"ok"}
    assert (requests["prompt_tokens_engine"] == requests["prompt_tokens_planned"]).all()
    assert (requests["sent_s"] >= requests["intended_s"] - 1e-9).all()
    assert (requests[requests["phase"] == "prime"]["ended_s"] < 0).all()
    assert tokens.groupby("id").size().to_dict() == requests.set_index("id")["output_tokens_received"].to_dict()
    assert (tokens.groupby("id")["t_s"].first() == requests.set_index("id")["first_token_s"]).all()


def test_tokens_by_source_are_those_of_the_requests() -> None:
    result = played()
    requests, counted = result.requests.to_pandas(), last(result, "prompt_tokens_by_source")
    assert sum(counted.values()) == requests["prompt_tokens_engine"].sum()
    assert counted["device"] + counted["host"] + counted["disk"] == requests["cached_tokens"].sum()
    assert counted["disk"] > 0
    assert counted["host"] > 0


def test_the_same_arguments_give_the_same_tables_and_another_launch_other_times() -> None:
    arm = a_profile(**TIERED)
    noisy = arm.engine.emulation.model_copy(update={"noise": Noise()})
    one, again, other = (simulate(a_schedule(), arm, emulation=noisy, label=label) for label in ("a", "a", "b"))
    assert one.tokens.equals(again.tokens)
    assert one.metrics.equals(again.metrics)
    assert not one.tokens.equals(other.tokens)
    assert one.requests["id"].equals(other.requests["id"])


def test_sessions_and_closed_loops_follow_the_answers() -> None:
    chat = {
        "weight": 1.0,
        "prefix": {"tokens": 64, "pool": 2, "popularity": "uniform"},
        "suffix_tokens": 32,
        "output_tokens": 8,
        "turns": 3,
        "think": 0.5,
    }
    sessions = measured(played(classes={"chat": chat}, arrivals={"process": "poisson", "rate": 1.0}))
    later = sessions[(sessions["turn"] > sessions["turn"].min()) & (sessions["status"] == "ok")]
    assert len(later) > 5
    assert set(later["intended_basis"]) == {"previous turn"}
    closed = measured(played(arrivals={"process": "closed", "closed": {"concurrency": 2}}))
    sent = closed[closed["status"] == "ok"].sort_values("sent_s")
    assert len(sent) > 20
    for at_s in sent["sent_s"]:
        assert ((sent["sent_s"] <= at_s) & (sent["ended_s"] > at_s)).sum() <= 2


def test_the_end_of_a_round_cuts_off_no_answer_before_its_own_time_out() -> None:
    """Given answers that take 40 s, then those sent in the last seconds are as whole as the others."""
    arm = a_profile(blocks=400)
    slow = arm.engine.emulation.model_copy(
        update={"costs": arm.engine.emulation.costs.model_copy(update={"step": 0.1})}
    )
    long = {"suffix_tokens": 32, "output_tokens": 400}

    def answers(timeout_s: float) -> pd.DataFrame:
        planned = a_schedule(
            classes={"long": long}, arrivals={"process": "constant", "rate": 0.5}, request_timeout=timeout_s
        )
        return measured(simulate(planned, arm, emulation=slow))

    whole = answers(120.0)
    assert set(whole["status"]) == {"ok"}
    assert whole["ended_s"].max() > 20 + 30
    cut = answers(35.0)
    assert set(cut["status"]) == {"error"}
    assert (cut["ended_s"] - cut["intended_s"]).to_numpy() == pytest.approx(35.0)


def test_a_scrape_of_the_server_says_what_the_tables_say() -> None:
    """Given any state of the counters, then parsing the exposition gives the canonical samples of virtual time."""
    for arm in (a_profile(), a_profile(40, 60), a_profile(**TIERED)):
        core = a_core(arm)
        for round_ in range(3):
            requests = [(0.1 * n, a_request(n + 100 * round_, n, 320, 5)) for n in range(12)]
            play(core, [(1000.0 * round_ + at_s, request) for at_s, request in requests])
            sizes = sizes_of(arm)
            text = exposition(core.read_gauges(), sizes, model='od"d', created_s=1.0)
            scraped = canonical(parse_engine(text, buckets=False))
            direct = canonical_series(core.read_gauges(), host=sizes.host_bytes > 0, disk=sizes.disk)
            assert {(s.name, s.labels): pytest.approx(s.value) for s in scraped} == {
                (name, labels): value for name, labels, value in direct
            }
            assert identity_breaks(parse_engine(text)) == ()


@pytest.mark.parametrize(
    ("inject", "status", "cause"),
    [
        ({"errors": {"share": 0.1}}, "error", "http_status"),
        ({"dropped_streams": {"share": 0.1}}, "error", "stream_broken"),
        ({"short_outputs": {"share": 0.1}}, "error", "short_output"),
    ],
)
def test_a_share_of_the_requests_fails(inject: dict, status: str, cause: str) -> None:
    requests = played(inject).requests.to_pandas()
    failed = requests[requests["status"] == status]
    assert len(failed) == pytest.approx(0.1 * len(requests), abs=1)
    assert failed["error"].str.startswith(cause).all()


def test_a_slower_tail_may_begin_later() -> None:
    fates = Fates(Injections.model_validate({"slower_tail": {"share": 0.5, "by": 2.0, "after": 20}}))
    held = [number for number in range(40) if fates.of(number, 100, 10).held_s == 2.0]
    assert len(held) == 10
    assert min(held) >= 20


def test_a_slower_tail_moves_the_tail_and_not_the_median() -> None:
    plain, slow = (measured(played(inject)) for inject in (None, {"slower_tail": {"share": 0.05, "by": 2.0}}))
    before, after = (frame["first_token_s"] - frame["intended_s"] for frame in (plain, slow))
    assert after.median() == pytest.approx(before.median(), abs=1e-9), "time zero comes later, which rounds"
    assert after.quantile(0.99) > before.quantile(0.99) + 1.5


def test_stalls_are_gaps_between_tokens() -> None:
    def longest_gap(result: SimulatedRound) -> float:
        return float(result.tokens.to_pandas().groupby("id")["t_s"].diff().max())

    assert longest_gap(played({"stalls": {"every": 3.0, "by": 1.5}})) > 1.5 > longest_gap(played())


def test_slow_promotions_and_useless_hits_make_hits_no_better_than_computing() -> None:
    def ttft_of_hits(inject: dict | None) -> float:
        requests = measured(played(inject))
        hits = requests[requests["cached_tokens"] >= 512]
        return float((hits["first_token_s"] - hits["intended_s"]).mean())

    plain = ttft_of_hits(None)
    assert ttft_of_hits({"slow_promotions": {"factor": 200.0}}) > 3 * plain
    assert ttft_of_hits({"useless_hits": True}) > 1.5 * plain


def test_without_promotions_nothing_comes_back() -> None:
    counted = last(played({"no_promotions": True}), "prompt_tokens_by_source")
    assert (counted["host"], counted["disk"]) == (0.0, 0.0)


def test_corrupt_outputs_are_those_of_promoted_prompts() -> None:
    plain, corrupt = played().requests.to_pandas(), played({"corrupt_outputs": {"share": 1.0}}).requests.to_pandas()
    assert (plain["prompt_digest"] == corrupt["prompt_digest"]).all()
    differ = plain["output_digest"] != corrupt["output_digest"]
    assert 0 < differ.sum() < len(plain)
    assert (corrupt[differ]["cached_tokens"] > 0).all()


def test_a_leaked_output_shows_another_tenants_canary_and_no_other_output_does() -> None:
    canaries = {"tenants": 3}
    short = played(canaries=canaries).requests.to_pandas()
    assert short["foreign_canary"].isna().all(), "eight tokens hold no canary"
    asked = {"canaries": canaries, "classes": {"long": LONG_ANSWERS}}
    plain, leaking = (
        played(inject, **asked).requests.to_pandas() for inject in (None, {"leaked_outputs": {"share": 0.2}})
    )
    assert (plain[plain["foreign_canary"].notna()]["foreign_canary"] == -1).all()
    looked = leaking[leaking["foreign_canary"].notna()]
    leaks = looked[looked["foreign_canary"] >= 0]
    assert 0 < len(leaks) < 0.2 * len(looked)
    assert (leaks["foreign_canary"] != leaks["tenant"]).all()
    assert (leaks["cached_tokens"] > 0).all()


def test_a_frozen_engine_a_dead_one_a_restart_and_a_refusal_of_everything_are_events() -> None:
    frozen = played({"freeze": {"after": 40}})
    assert [e.kind for e in frozen.events] == ["frozen"]
    assert (measured(frozen)["status"] == "error").any()
    dead = played({"death": {"after": 40}})
    assert [e.kind for e in dead.events] == ["died"]
    assert set(dead.requests.to_pandas()["status"]) == {"ok", "error", "unsent"}
    again = played({"restart": {"after": 40, "down": 1.0}})
    assert [e.kind for e in again.events] == ["restarted"]
    refusing = played({"errors": {"share": 1.0}})
    assert [e.kind for e in refusing.events] == ["refusing"]
    assert refusing.events[0].detail.startswith("it answers /health and refuses every request with 500")
    generated = again.metrics.to_pandas().query("name == 'generation_tokens'")["value"]
    assert (generated.diff() < 0).any()


def test_a_counter_reset_loses_no_request() -> None:
    result = played({"counter_reset": {"after": 40}})
    assert set(result.requests.to_pandas()["status"]) == {"ok"}
    assert (result.metrics.to_pandas().query("name == 'prompt_tokens'")["value"].diff() < 0).any()


def test_metrics_may_be_missing_from_the_start_or_vanish() -> None:
    never, vanished = (played({"missing_metrics": {"after": after}}).scrapes for after in (0, 40))
    assert (never.supported, never.vanished) == (False, False)
    assert (vanished.supported, vanished.vanished) == (True, True)
