"""What is refused before a run: rules that some round of the workload cannot carry."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from kvbench.compare.plan import plan_comparison, show_plan
from kvbench.spec.loading import Experiment, load_profile, load_rules, load_workload
from kvbench.spec.profile import Profile
from kvbench.spec.rules import Rules
from kvbench.spec.workload import Workload

P90 = {"id": "p90", "metric": "ttft", "quantile": 0.9, "max": 2.0}
ENGINE = {"kind": "emulated", "model": "any", "args": {"max-model-len": 4096}}


def experiment(rule: dict[str, object], rounds: int = 1, **load: object) -> Experiment:
    workload = {
        "name": "w",
        "arrivals": {"process": "poisson", "rate": 4},
        "phases": [{"name": "fill", "for": 2, "measured": False}, {"name": "steady", "for": 10}],
        "classes": {"a": {"suffix_tokens": 64, "output_tokens": 4}},
    }
    tiers = {"device": {"blocks": 64}, "host": {"size": "64MiB"}}
    return Experiment(
        Profile.model_validate({"name": "base", "engine": ENGINE, "tiers": {"device": tiers["device"]}}),
        (Profile.model_validate({"name": "tiered", "engine": ENGINE, "tiers": tiers}),),
        Workload.model_validate(workload | load),
        Rules.model_validate({"guardrails": [rule], "rounds": {"min": 1, "max": rounds}}),
    )


def test_every_round_that_may_be_played_must_carry_a_quantile() -> None:
    refused = [plan_comparison(experiment(P90, rounds), []).refused for rounds in (1, 12)]
    assert refused[0] == ()
    (sentence,) = refused[1]
    assert sentence.startswith("p90 needs 30 requests a round, the schedule has ")
    assert "has 4" not in sentence


def test_a_pool_sized_from_the_engine_does_not_keep_a_rule_from_being_refused() -> None:
    prefix = {"tokens": 512, "working_set": {"of": "device", "times": 2}}
    sized = {"a": {"prefix": prefix, "suffix_tokens": 64, "output_tokens": 4}}
    one = experiment(P90 | {"quantile": 0.99}, classes=sized)
    unknown = one.baseline.model_copy(update={"tiers": one.baseline.tiers.model_copy(update={"device": _NO_SIZE})})
    plan = plan_comparison(replace(one, baseline=unknown), [])
    assert plan.summary is None
    assert [sentence.split(",")[0] for sentence in plan.refused] == ["p90 needs 300 requests a round"]


def test_users_who_leave_carry_no_rule_on_whole_answers() -> None:
    leaving = {"a": {"suffix_tokens": 64, "output_tokens": 4, "abort": {"share": 0.5, "after": 1}}}
    refused = {
        metric: plan_comparison(experiment(P90 | {"metric": metric}, classes=leaving), []).refused
        for metric in ("ttft", "e2e")
    }
    assert refused["ttft"] == ()
    (sentence,) = refused["e2e"]
    assert sentence.startswith("p90 needs 30 requests a round, the schedule has ")


_NO_SIZE = experiment(P90).baseline.tiers.device.model_copy(update={"blocks": None})


@pytest.mark.parametrize(
    ("window", "for_s", "words"), [(1, 8, "needs 20 requests"), (1, 60, "looks back over 60 s")]
)
def test_a_rollback_rule_that_could_never_pass_is_refused(window: float, for_s: float, words: str) -> None:
    rule = P90 | {"sustained": {"window": window, "for": for_s}}
    assert [words in sentence for sentence in plan_comparison(experiment(rule), []).refused] == [True]


def test_turns_that_follow_an_answer_may_fill_a_window() -> None:
    agent = {"weight": 9, "turns": 9, "think": "100ms", "suffix_tokens": 64, "output_tokens": 4}
    mixed = {"a": {"suffix_tokens": 64, "output_tokens": 4}, "agent": agent}
    rule = P90 | {"sustained": {"window": 4, "for": 8}}
    asked = [experiment(rule | {"class": name}, classes=mixed) for name in ("all", "agent", "a")]
    refused = [" ".join(plan_comparison(each, []).refused) for each in asked]
    assert ["its window" in sentences for sentences in refused] == [False, False, True]


def test_a_closed_loop_has_as_many_requests_as_the_engine_answers() -> None:
    rule = P90 | {"quantile": 0.999}
    loop = experiment(rule, arrivals={"process": "closed", "closed": {"concurrency": 2}})
    assert plan_comparison(loop, []).refused == ()


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (P90 | {"sustained": {"window": 1, "for": 60}}, "looks back over 60 s"),
        (P90 | {"sustained": {"window": 1, "for": 10}}, None),
        ({"id": "p", "metric": "promoted_tokens", "min": 1, "class": "a"}, "is not known by class"),
        ({"id": "e", "metric": "error_rate", "max": 0}, "no number of requests"),
        ({"id": "e", "metric": "error_rate", "max": 1e-9}, None),
    ],
)
def test_what_no_engine_however_fast_could_change_is_refused_in_a_closed_loop(
    rule: dict[str, object], words: str | None
) -> None:
    loop = experiment(rule, arrivals={"process": "closed", "closed": {"concurrency": 2}})
    assert [(words or "") in sentence for sentence in plan_comparison(loop, []).refused] == [True] * bool(words)


@pytest.mark.parametrize(
    ("baseline", "candidate", "workload", "rules"),
    [
        ("cpu/demo-baseline", "cpu/demo-host-and-disk", "demo", "demo"),
        ("cpu/baseline", "cpu/baseline-copy", "mixed", "default"),
        ("emulated/baseline", "emulated/disk", "mixed", "default"),
        ("vllm/baseline", "vllm/host-and-disk", "mixed", "default"),
    ],
)
def test_the_shipped_rules_are_carried_by_the_workload_they_are_shipped_with(
    baseline: str, candidate: str, workload: str, rules: str
) -> None:
    shipped = Experiment(
        load_profile(baseline), (load_profile(candidate),), load_workload(workload), load_rules(rules)
    )
    assert plan_comparison(shipped, []).refused == ()


def test_what_is_expected_of_a_host_tier_follows_its_policy() -> None:
    few_are_popular = {"tokens": 512, "pool": 40, "popularity": {"zipf": 1.1}}
    classes = {"a": {"prefix": few_are_popular, "suffix_tokens": 64, "output_tokens": 4}}
    load = experiment(P90, classes=classes, arrivals={"process": "poisson", "rate": 30})
    tiers = {"device": {"blocks": 64}, "host": {"size": "8MiB"}}
    arms = tuple(
        Profile.model_validate(
            {"name": policy, "engine": ENGINE, "tiers": tiers | {"host": tiers["host"] | {"policy": policy}}}
        )
        for policy in ("lru", "arc")
    )
    sources = plan_comparison(replace(load, candidates=arms), []).sources
    assert sources["lru"] != sources["arc"]
    assert sum(sources["lru"].values()) == sum(sources["arc"].values())


def test_people_are_told_what_the_time_leaves_out(capsys: pytest.CaptureFixture[str]) -> None:
    load = experiment(P90, classes={"a": {"suffix_tokens": 64, "output_tokens": 4}})
    show_plan(Console(width=200), plan_comparison(load, []))
    told = capsys.readouterr().out
    assert "; nothing was started" in told
    assert "which fill the tiers" not in told
    prefixes = {"a": {"prefix": {"tokens": 512, "pool": 3}, "suffix_tokens": 64, "output_tokens": 4}}
    load = experiment(P90, classes=prefixes, prime="each_prefix_once")
    show_plan(Console(width=200), plan_comparison(load, []))
    told = capsys.readouterr().out
    assert "and for each arm and round what 3 prompts (1,560 tokens) take, which fill the tiers" in told
