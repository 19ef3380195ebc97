"""What must not change a verdict: the order of rounds, the unit of time, an unrelated class, an arm's copy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import permutations
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kvbench.judge.evidence import ArmRound, Comparison, RoundPair
from kvbench.judge.judge import combine, judge
from kvbench.judge.verdict import CandidateVerdict
from kvbench.spec.rules import Rules, Sustained
from kvbench.spec.workload import Workload
from tests.judge.build import COPY, MEASURED_S, WARM_S, arm_round, comparison, request_rows, rules, ttfts, workload
from tests.judge.change import died, edited, late, with_baseline, with_candidate

N = 60
EACH = settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.too_slow])
BETTER = {"GO": 2, "INCONCLUSIVE": 1, "NO_GO": 0}


@dataclass(frozen=True)
class Played:
    """TTFT ratios, one a round, and for how many rounds the run is planned."""

    ratios: tuple[float, ...]
    planned: int

    @property
    def rounds(self) -> tuple[int, int]:
        """As rules have them: all at once, or with looks before the last."""
        return (3, self.planned) if self.planned > len(self.ratios) else (self.planned, self.planned)


def around(centre: float, factors: tuple[float, ...] = (0.97, 1.0, 1.03), *, planned: int = 3) -> Played:
    return Played(tuple(round(centre * factor, 6) for factor in factors), planned)


CALM = ((0.97, 1.0, 1.03), (0.97, 0.99, 1.01, 1.03))
NOISY = ((0.6, 1.0, 1.7), (0.6, 0.7, 1.2, 1.7))
"""Rounds of one effect never agree to the last digit: such agreement supports no interval."""
CASES = {
    "GO": around(0.3),
    "GO at the first look of twelve": around(0.3, planned=12),
    "NO_GO by a ratio": around(2.5),
    "NO_GO for no benefit": around(1.0),
    "INCONCLUSIVE": around(0.75, NOISY[0]),
}


@st.composite
def plays(draw: st.DrawFn) -> Played:
    """Of a few sizes, so that rounds can be made once."""
    factors = draw(st.sampled_from([*CALM, *CALM, *NOISY]))
    centre = draw(st.sampled_from([0.3, 0.75, 1.0, 1.4, 2.5]))
    planned = draw(st.sampled_from([len(factors), 12]))
    return around(centre, tuple(draw(st.permutations(factors))), planned=planned)


def and_every_verdict(*more: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Beside what is drawn, the property holds for the case of each verdict; `more`: the other arguments."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        for case in CASES.values():
            test = example(case, *more)(test)
        return test

    return decorate


def the_rules(scale: float = 1.0, rounds: tuple[int, int] = (3, 3), of: dict[str, str] | None = None) -> Rules:
    """Every kind of rule; times in units of `scale` seconds. `of`: the class that rules on latencies are about."""
    about = of or {}
    made = rules(
        guardrails=[
            {"id": "ratio", "metric": "ttft", "quantile": 0.9, "max_ratio": 1.5, **about},
            {"id": "budget", "metric": "e2e", "class": "long", "quantile": 0.5, "max": 2.0 * scale},
            {"id": "itl", "metric": "itl", "quantile": 0.9, "max_ratio": 1.5, **about},
            {"id": "errors", "metric": "error_rate", "max": 0.05},
            {
                "id": "rollback",
                "metric": "ttft",
                "quantile": 0.5,
                "max": 1.9 * scale,
                "sustained": {"window": 40, "for": 60},
                **about,
            },
            {"id": "parity", "metric": "output_parity", "max": 0.1},
        ],
        benefits=[{"id": "faster", "metric": "ttft", "class": "long", "quantile": 0.5, "max_ratio": 0.8}],
        evidence=[{"id": "promoted", "metric": "promoted_tokens", "min": 1}],
        rounds=rounds,
        validity={"send_lag_p99": 0.02 * scale, "scrape_gap": 3.0 * scale},
    )
    # Set afterwards, as a scaled window may be shorter than a file may say.
    scaled = Sustained.model_construct(window=40 * scale, for_s=60 * scale)
    guardrails = [
        rule if rule.sustained is None else rule.model_copy(update={"sustained": scaled})
        for rule in made.guardrails
    ]
    return made.model_copy(update={"guardrails": guardrails})


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
    span = {"start_s": WARM_S * scale, "span_s": MEASURED_S * scale}
    sides = {}
    for name, factor, cached in (("base", 1.0, 0.0), ("tiered", ratio, 900.0)):
        made = request_rows(base * factor * scale, gaps=0.02 * factor * scale, cached=cached, **span)
        if constant:
            others = request_rows(
                np.full(constant, 0.5 * scale), gaps=0.02 * scale, classes="constant", first_id=N, **span
            )
            made = tuple(pd.concat(both, ignore_index=True) for both in zip(made, others, strict=True))
        requests, tokens = made
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


def run(played: Played, *, scale: float = 1.0, constant: int = 0, of: dict[str, str] | None = None) -> Comparison:
    pairs = [
        pair(index, ratio, scale=scale, constant=constant) for index, ratio in enumerate(played.ratios, start=1)
    ]
    load = the_load(scale, constant > 0)
    return comparison(pairs, the_rules(scale, played.rounds, of), workload=load, rounds_planned=played.planned)


def statuses(verdict: CandidateVerdict) -> dict[str, str]:
    return {rule.rule: rule.status for rule in verdict.rules}


@pytest.mark.parametrize("name", CASES)
def test_each_case_ends_in_its_verdict_by_the_rule_that_it_is_about(name: str) -> None:
    """So what follows compares decisions, and not one unknown with another."""
    verdict = judge(run(CASES[name]))
    found = statuses(verdict)
    assert verdict.verdict == name.split(maxsplit=1)[0], verdict.reasons
    wanted = {
        "GO": {"ratio": "pass", "itl": "pass", "faster": "pass", "budget": "pass", "rollback": "pass"},
        "NO_GO by a ratio": {"ratio": "fail", "itl": "fail", "faster": "fail", "rollback": "fail"},
        "NO_GO for no benefit": {"ratio": "pass", "itl": "pass", "faster": "fail", "rollback": "pass"},
        "INCONCLUSIVE": {"ratio": "unknown", "faster": "unknown", "errors": "pass", "parity": "pass"},
    }
    expected = wanted.get(name, wanted["GO"])
    assert {rule: found[rule] for rule in expected} == expected


@EACH
@and_every_verdict(Random(3))
@given(plays(), st.randoms(use_true_random=False))
def test_the_order_of_rounds_does_not_matter(played: Played, random: Any) -> None:
    given_order = run(played)
    shuffled = list(given_order.pairs)
    random.shuffle(shuffled)
    one, other = judge(given_order), judge(replace(given_order, pairs=tuple(shuffled)))
    assert one.model_dump() == other.model_dump()


def late_twice(pairs: list[RoundPair]) -> list[RoundPair]:
    for place in (0, 2):
        pairs = with_candidate(pairs, place, requests=edited(pairs[place].candidate, late).requests)
    return pairs


def dead_twice(pairs: list[RoundPair]) -> list[RoundPair]:
    for place, at_s in ((0, 70.0), (2, 30.0)):
        pairs = with_candidate(pairs, place, events=(died(at_s),), complete=False)
    return pairs


def on_two_launches(pairs: list[RoundPair]) -> list[RoundPair]:
    for place, launch in enumerate(("one", "other", "one")):
        pairs = with_candidate(with_baseline(pairs, place, launch=launch), place, launch=launch)
    return pairs


@pytest.mark.parametrize(
    ("verdict", "words", "changed"),
    [
        ("INVALID", "round 3 of tiered: the client", late_twice),
        ("NO_GO", "into round 1: ", dead_twice),
        ("GO", "launches of evidence", on_two_launches),
    ],
)
def test_nor_does_it_matter_where_something_else_than_the_rules_decides(
    verdict: str, words: str, changed: Callable[[list[RoundPair]], list[RoundPair]]
) -> None:
    made = run(CASES["GO"])
    told = [judge(replace(made, pairs=order)) for order in permutations(changed(list(made.pairs)))]
    assert told[0].verdict == verdict, told[0].reasons
    assert words in " ".join(told[0].reasons)
    assert all(each.model_dump() == told[0].model_dump() for each in told[1:])


@EACH
@and_every_verdict()
@given(plays())
def test_renumbering_rounds_changes_nothing_but_their_numbers(played: Played) -> None:
    forward = run(played)
    backward = tuple(
        RoundPair(index, replace(p.baseline, index=index), replace(p.candidate, index=index))
        for index, p in enumerate(reversed(forward.pairs), start=1)
    )
    one, other = judge(forward), judge(replace(forward, pairs=backward))
    assert (one.verdict, statuses(one)) == (other.verdict, statuses(other))
    for mine, theirs in zip(one.rules, other.rules, strict=True):
        assert mine.decision_ci == pytest.approx(theirs.decision_ci)


@EACH
@and_every_verdict(60.0)
@and_every_verdict(1e-3)
@given(plays(), st.sampled_from([1e-3, 0.5, 60.0]))
def test_the_unit_of_time_does_not_matter(played: Played, scale: float) -> None:
    seconds, other = judge(run(played)), judge(run(played, scale=scale))
    assert (seconds.verdict, statuses(seconds)) == (other.verdict, statuses(other))
    for one, two in zip(seconds.rules, other.rules, strict=True):
        unit = scale if one.unit == "s" else 1.0
        assert [two.baseline, two.candidate] == [times(unit, one.baseline), times(unit, one.candidate)]
        unit = unit if one.rule == "budget" else 1.0  # the other effects are ratios, shares and counts
        assert two.effect == times(unit, one.effect)
        for ours, theirs in ((one.ci, two.ci), (one.decision_ci, two.decision_ci)):
            assert (ours is None) == (theirs is None)
            assert list(theirs or ()) == [times(unit, end) for end in ours or ()]
    assert seconds.latency
    for here, there in zip(seconds.latency, other.latency, strict=True):
        for figure in ("p50", "p90", "p99"):
            assert there[figure] == times(scale, here[figure])


def times(unit: float, figure: Any) -> Any:
    """About so much in the other unit; None where there is no figure."""
    return None if figure is None else pytest.approx(unit * figure, rel=1e-6)


@EACH
@and_every_verdict(80)
@given(plays(), st.sampled_from([1, 17, 80]))
def test_a_constant_class_does_not_change_what_is_said_about_another(played: Played, constant: int) -> None:
    """The verdict by rules about one class is what it is without the other, and so is each interval."""
    of = {"class": "long"}
    without, with_it = judge(run(played, of=of)), judge(run(played, constant=constant, of=of))
    assert (without.verdict, statuses(without)) == (with_it.verdict, statuses(with_it))
    for rule in ("ratio", "itl", "budget", "faster"):
        one, other = (next(r for r in verdict.rules if r.rule == rule) for verdict in (without, with_it))
        assert other.effect == pytest.approx(one.effect)
        assert other.decision_ci == pytest.approx(one.decision_ci)


@EACH
@and_every_verdict()
@given(plays())
def test_an_arm_against_its_copy_is_never_go_and_never_breaks_a_guardrail(played: Played) -> None:
    made = run(played)
    copies = tuple(RoundPair(p.index, p.candidate, replace(p.candidate, arm="copy")) for p in made.pairs)
    _is_no_go_by_no_guardrail(judge(replace(made, candidate=COPY, pairs=copies)))


@EACH
@and_every_verdict()
@given(plays())
def test_an_arm_against_another_run_of_it_is_never_go_and_never_breaks_a_guardrail(played: Played) -> None:
    """Measured twice, it differs by a per cent, so that there are intervals that could decide wrongly."""
    made = run(played)
    copies = tuple(
        RoundPair(p.index, p.candidate, replace(pair(p.index, ratio * wobble).candidate, arm="copy"))
        for p, ratio, wobble in zip(made.pairs, played.ratios, (1.01, 0.99, 1.005, 0.995), strict=False)
    )
    verdict = judge(replace(made, candidate=COPY, pairs=copies))
    _is_no_go_by_no_guardrail(verdict)
    intervals = {rule.rule: rule.decision_ci for rule in verdict.rules}
    for rule in ("ratio", "itl", "faster"):
        low, high = intervals[rule] or (np.nan, np.nan)
        assert low < 1 < high
    assert statuses(verdict)["faster"] == "fail"


def _is_no_go_by_no_guardrail(verdict: CandidateVerdict) -> None:
    assert verdict.verdict in ("INCONCLUSIVE", "NO_GO")
    assert not [
        rule
        for rule in verdict.rules
        if rule.kind == "guardrail" and rule.status == "fail" and rule.metric != "e2e"
    ]
    assert not [rule for rule in verdict.rules if rule.kind == "benefit" and rule.status == "pass"]


@pytest.mark.parametrize("other", CASES)
@pytest.mark.parametrize("name", CASES)
def test_a_candidate_that_is_there_twice_changes_nothing(name: str, other: str) -> None:
    first, second = judged(name), judged(other)
    once, twice = combine([first, second]), combine([first, second, first])
    assert once.model_dump(exclude={"candidates"}) == twice.model_dump(exclude={"candidates"})
    assert combine([first, first]).reasons == combine([first]).reasons


@lru_cache
def judged(name: str) -> CandidateVerdict:
    """The verdict of a case."""
    return judge(run(CASES[name]))


@EACH
@and_every_verdict()
@given(plays())
def test_swapping_the_arms_inverts_the_effect_and_its_interval(played: Played) -> None:
    made = run(played)
    swapped = tuple(RoundPair(p.index, p.candidate, p.baseline) for p in made.pairs)
    one, other = (
        next(rule for rule in judge(comparison_).rules if rule.rule == "ratio")
        for comparison_ in (made, replace(made, pairs=swapped))
    )
    assert one.effect is not None
    assert one.ci is not None
    assert other.effect == pytest.approx(1 / one.effect)
    assert other.ci == pytest.approx((1 / one.ci[1], 1 / one.ci[0]))


@EACH
@and_every_verdict(3.0)
@given(plays(), st.sampled_from([1.01, 1.3, 3.0]))
def test_a_slower_candidate_never_looks_better(played: Played, slower: float) -> None:
    better = {"pass": 2, "unknown": 1, "fail": 0}
    behind = replace(played, ratios=tuple(ratio * slower for ratio in played.ratios))
    one, other = judge(run(played)), judge(run(behind))
    for rule in ("ratio", "faster"):
        # The spread of the log ratios is the same, so the interval moves up as it is.
        assert better[statuses(other)[rule]] <= better[statuses(one)[rule]]
    assert BETTER[other.verdict] <= BETTER[one.verdict]


@EACH
@and_every_verdict()
@given(plays())
def test_what_decides_is_the_interval_that_is_shown(played: Played) -> None:
    for rule in judge(run(played)).rules:
        if rule.decision_ci is None or rule.limit is None or rule.metric in ("goodput", "promoted_tokens"):
            continue
        low, high = rule.decision_ci
        assert (rule.status == "pass") == (high <= rule.limit)
        assert (rule.status == "fail") == (low > rule.limit)
        if rule.ci is not None:
            assert low <= rule.ci[0]
            assert rule.ci[1] <= high


TELLS_NO_VERDICT = {"prompt_tokens_engine"}
"""An engine that does not say how long prompts were leaves one check unknown, which is said and does not block."""


@EACH
@example([])
@example(["prompt_tokens_engine"])
@given(
    st.lists(
        st.sampled_from(["first_token_s", "intended_s", "last_token_s", "cached_tokens", "prompt_tokens_engine"]),
        unique=True,
    )
)
def test_missing_figures_never_make_a_go(columns: list[str]) -> None:
    """Whatever is missing in the candidate: a GO then rests on something else, never on the gap."""
    made = run(CASES["GO"])
    pairs = tuple(
        replace(
            p,
            candidate=replace(p.candidate, requests=p.candidate.requests.assign(**dict.fromkeys(columns, np.nan))),
        )
        for p in made.pairs
    )
    verdict = judge(replace(made, pairs=pairs))
    assert (verdict.verdict == "GO") == (set(columns) <= TELLS_NO_VERDICT)
