"""What must not change a verdict: the order of rounds, the unit of time, an unrelated class, an arm's copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvbench.judge.evidence import ArmRound, Comparison, RoundPair
from kvbench.judge.judge import judge
from kvbench.judge.verdict import CandidateVerdict
from kvbench.spec.rules import Rules
from kvbench.spec.workload import Workload
from tests.judge.build import COPY, MEASURED_S, WARM_S, arm_round, comparison, request_rows, rules, ttfts, workload

N = 60
EACH = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
RATIOS = st.lists(st.sampled_from([0.2, 0.31, 0.7, 0.97, 1.0, 1.04, 1.3, 1.46, 2.2, 3.0]), min_size=3, max_size=4)
"""Of a few sizes, so that rounds can be made once."""
SUSTAINED = {"window": 30, "for": 60}


def the_rules(scale: float = 1.0) -> Rules:
    """Every kind of rule; times in units of `scale` seconds."""
    return rules(
        guardrails=[
            {"id": "ratio", "metric": "ttft", "quantile": 0.9, "max_ratio": 1.5},
            {"id": "budget", "metric": "e2e", "class": "long", "quantile": 0.5, "max": 2.0 * scale},
            {"id": "itl", "metric": "itl", "quantile": 0.9, "max_ratio": 1.5},
            {"id": "errors", "metric": "error_rate", "max": 0.05},
            {
                "id": "rollback",
                "metric": "ttft",
                "quantile": 0.5,
                "max": 2.0 * scale,
                "sustained": {"window": 40 * scale, "for": 60 * scale},
            },
            {"id": "parity", "metric": "output_parity", "max": 0.1},
        ],
        benefits=[{"id": "faster", "metric": "ttft", "class": "long", "quantile": 0.5, "max_ratio": 0.8}],
        evidence=[{"id": "promoted", "metric": "promoted_tokens", "min": 1}],
        rounds=(3, 12),
        validity={"send_lag_p99": 0.02 * scale, "scrape_gap": 3.0 * scale},
    )


def the_load(scale: float = 1.0, extra: bool = False) -> Workload:
    classes: dict[str, Any] = {"long": {"suffix_tokens": 64, "output_tokens": 5}}
    if extra:
        classes["constant"] = {"suffix_tokens": 64, "output_tokens": 5}
    return workload(
        phases=[
            {"name": "warm", "for": WARM_S * scale, "measured": False},
            {"name": "steady", "for": MEASURED_S * scale},
        ],
        classes=classes,
        request_timeout=60.0 * scale,
    )


@lru_cache(maxsize=512)
def pair(index: int, ratio: float, *, scale: float = 1.0, constant: int = 0) -> RoundPair:
    """A pair of rounds with this TTFT ratio; `constant` more requests of another class, the same in both arms."""
    base = ttfts(N, seed=index)
    sides = {}
    for name, factor, cached in (("base", 1.0, 0.0), ("tiered", ratio, 900.0)):
        ttft = np.concatenate([base * factor, np.full(constant, 0.5)])
        requests, tokens = request_rows(
            ttft * scale,
            gaps=0.02 * factor * scale,
            classes=["long"] * N + ["constant"] * constant,
            cached=np.array([cached] * N + [0.0] * constant),
            start_s=WARM_S * scale,
            span_s=MEASURED_S * scale,
        )
        requests["sent_s"] = requests["intended_s"] + 0.001 * scale
        sides[name] = _round(name, index, requests, tokens, scale)
    return RoundPair(index, sides["base"], sides["tiered"])


def _round(name: str, index: int, requests: pd.DataFrame, tokens: pd.DataFrame, scale: float) -> ArmRound:
    made = arm_round(name, index, requests, tokens, sources=(1, 2, 3, 4))
    return replace(
        made,
        metrics=made.metrics.assign(t_s=made.metrics["t_s"] * scale),
        host=made.host.assign(t_s=made.host["t_s"] * scale),
        scrapes=replace(made.scrapes, longest_gap_ours_s=scale),
    )


def run(ratios: Sequence[float], *, scale: float = 1.0, constant: int = 0) -> Comparison:
    pairs = [pair(index, ratio, scale=scale, constant=constant) for index, ratio in enumerate(ratios, start=1)]
    return comparison(pairs, the_rules(scale), workload=the_load(scale, constant > 0))


def statuses(verdict: CandidateVerdict) -> dict[str, str]:
    return {rule.rule: rule.status for rule in verdict.rules}


@EACH
@given(RATIOS, st.randoms(use_true_random=False))
def test_the_order_of_rounds_does_not_matter(ratios: list[float], random: Any) -> None:
    given_order = run(ratios)
    shuffled = list(given_order.pairs)
    random.shuffle(shuffled)
    one, other = judge(given_order), judge(replace(given_order, pairs=tuple(shuffled)))
    assert one.model_dump() == other.model_dump()


@EACH
@given(RATIOS)
def test_renumbering_rounds_changes_nothing_but_their_numbers(ratios: list[float]) -> None:
    forward = run(ratios)
    backward = tuple(
        RoundPair(index, replace(p.baseline, index=index), replace(p.candidate, index=index))
        for index, p in enumerate(reversed(forward.pairs), start=1)
    )
    one, other = judge(forward), judge(replace(forward, pairs=backward))
    assert (one.verdict, statuses(one)) == (other.verdict, statuses(other))


@EACH
@given(RATIOS, st.sampled_from([1e-3, 0.5, 60.0]))
def test_the_unit_of_time_does_not_matter(ratios: list[float], scale: float) -> None:
    seconds, other = judge(run(ratios)), judge(run(ratios, scale=scale))
    assert (seconds.verdict, statuses(seconds)) == (other.verdict, statuses(other))
    for one, two in zip(seconds.rules, other.rules, strict=True):
        if one.effect is not None and one.metric in ("ttft", "itl"):
            assert two.effect == pytest.approx(one.effect)


@EACH
@given(RATIOS, st.sampled_from([1, 17, 80]))
def test_a_constant_class_does_not_change_what_is_said_about_another(ratios: list[float], constant: int) -> None:
    without, with_it = judge(run(ratios)), judge(run(ratios, constant=constant))
    for rule in ("budget", "faster"):
        one, other = (next(r for r in verdict.rules if r.rule == rule) for verdict in (without, with_it))
        assert one.status == other.status
        assert other.effect == pytest.approx(one.effect)
        assert other.decision_ci == pytest.approx(one.decision_ci)


@EACH
@given(RATIOS)
def test_an_arm_against_its_copy_is_never_go_and_never_breaks_a_guardrail(ratios: list[float]) -> None:
    made = run(ratios)
    copies = tuple(RoundPair(p.index, p.candidate, replace(p.candidate, arm="copy")) for p in made.pairs)
    verdict = judge(replace(made, candidate=COPY, pairs=copies))
    assert verdict.verdict in ("INCONCLUSIVE", "NO_GO")
    assert not [
        rule
        for rule in verdict.rules
        if rule.kind == "guardrail" and rule.status == "fail" and rule.metric != "e2e"
    ]
    assert not [rule for rule in verdict.rules if rule.kind == "benefit" and rule.status == "pass"]


@EACH
@given(RATIOS)
def test_swapping_the_arms_inverts_the_effect(ratios: list[float]) -> None:
    made = run(ratios)
    swapped = tuple(RoundPair(p.index, p.candidate, p.baseline) for p in made.pairs)
    one, other = (
        next(rule for rule in judge(comparison_).rules if rule.rule == "ratio")
        for comparison_ in (made, replace(made, pairs=swapped))
    )
    assert one.effect is not None
    assert other.effect == pytest.approx(1 / one.effect)


@EACH
@given(RATIOS, st.sampled_from([1.01, 1.3, 3.0]))
def test_a_slower_candidate_never_looks_better(ratios: list[float], slower: float) -> None:
    better = {"pass": 2, "unknown": 1, "fail": 0}
    one, other = judge(run(ratios)), judge(run([ratio * slower for ratio in ratios]))
    for rule in ("ratio", "faster"):
        # The spread of the log ratios is the same, so the interval moves up as it is.
        assert better[statuses(other)[rule]] <= better[statuses(one)[rule]]


@EACH
@given(RATIOS)
def test_what_decides_is_the_interval_that_is_shown(ratios: list[float]) -> None:
    for rule in judge(run(ratios)).rules:
        if rule.decision_ci is None or rule.limit is None or rule.metric in ("goodput", "promoted_tokens"):
            continue
        low, high = rule.decision_ci
        assert (rule.status == "pass") == (high <= rule.limit)
        assert (rule.status == "fail") == (low > rule.limit)
        if rule.ci is not None:
            assert low <= rule.ci[0]
            assert rule.ci[1] <= high


@EACH
@given(
    st.lists(
        st.sampled_from(["first_token_s", "intended_s", "last_token_s", "cached_tokens", "prompt_tokens_engine"]),
        unique=True,
    )
)
def test_missing_figures_never_make_a_go(columns: list[str]) -> None:
    """Whatever is missing in the candidate: a GO then rests on something else, never on the gap."""
    made = run([0.3, 0.31, 0.32, 0.33])
    pairs = tuple(
        replace(
            p,
            candidate=replace(p.candidate, requests=p.candidate.requests.assign(**dict.fromkeys(columns, np.nan))),
        )
        for p in made.pairs
    )
    verdict = judge(replace(made, pairs=pairs))
    if {"first_token_s", "intended_s", "cached_tokens"} & set(columns):
        assert verdict.verdict != "GO"
