"""Who pays: per class, who gained, who lost, by how much."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from kvbench.judge.case import build_case
from kvbench.judge.evidence import RoundPair
from kvbench.judge.judge import judge
from kvbench.judge.verdict import ClassChange
from kvbench.judge.who_pays import who_pays
from tests.judge.build import arm_round, comparison, good_pairs, request_rows, ttfts

WOBBLE = (1.0, 1.02, 0.99)
"""Of the candidate, round by round: known noise."""


def pairs(long_ratio: float, short_ratio: float, n: int = 40, short: int = 40) -> list[RoundPair]:
    """Two classes whose TTFT changes by these ratios."""
    made = []
    for index, wobble in enumerate(WOBBLE, start=1):
        base = np.concatenate([ttfts(n, 2.0, seed=index), ttfts(short, 0.2, seed=10 + index)])
        factor = np.array([long_ratio] * n + [short_ratio] * short) * wobble
        classes = ["long"] * n + ["short"] * short
        sides = [
            arm_round(name, index, *request_rows(ttft, gaps=gap, classes=classes))
            for name, ttft, gap in (("base", base, 0.02), ("tiered", base * factor, 0.02 * wobble))
        ]
        made.append(RoundPair(index, *sides))
    return made


def row(found: list[ClassChange], class_: str, metric: str, quantile: float) -> ClassChange:
    (one,) = [r for r in found if (r.class_, r.metric, r.quantile) == (class_, metric, quantile)]
    return one


def test_one_class_pays_for_another() -> None:
    found = who_pays(build_case(comparison(pairs(0.5, 1.5))))
    long, short = (row(found, name, "ttft", 0.5) for name in ("long", "short"))
    assert (long.change, short.change) == ("gained", "lost")
    assert long.effect == pytest.approx(0.5 * stats.gmean(WOBBLE))
    assert short.effect == pytest.approx(1.5 * stats.gmean(WOBBLE))
    assert short.baseline == pytest.approx(stats.gmean([np.median(ttfts(40, 0.2, seed=10 + i)) for i in (1, 2, 3)]))
    assert short.candidate == pytest.approx(short.baseline * short.effect)


def test_the_interval_is_the_plain_one_over_rounds() -> None:
    found = row(who_pays(build_case(comparison(pairs(0.5, 1.5)))), "long", "ttft", 0.5)
    logs = np.log(0.5 * np.array(WOBBLE))
    assert found.ci == pytest.approx(np.exp(stats.t.interval(0.95, 2, logs.mean(), stats.sem(logs))))


def test_a_change_within_the_noise_is_unclear() -> None:
    found = who_pays(build_case(comparison(pairs(1.0, 1.0))))
    assert {change.change for change in found} == {"unclear"}


def test_every_class_has_its_median_and_the_highest_tail_that_is_carried() -> None:
    found = who_pays(build_case(comparison(pairs(0.5, 1.5, short=12))))
    assert [(r.class_, r.metric, r.quantile) for r in found if r.metric == "ttft"] == [
        ("long", "ttft", 0.5),
        ("long", "ttft", 0.9),
        ("short", "ttft", 0.5),
        ("short", "ttft", 0.75),
    ]
    assert {r.metric for r in found} == {"ttft", "itl", "e2e"}


def test_a_class_that_carries_the_median_alone_has_no_tail_and_one_that_carries_nothing_no_row() -> None:
    found = who_pays(build_case(comparison(pairs(0.5, 1.5, short=11))))
    assert [r.quantile for r in found if (r.class_, r.metric) == ("short", "ttft")] == [0.5]
    found = who_pays(build_case(comparison(pairs(0.5, 1.5, short=5))))
    assert {r.class_ for r in found} == {"long"}


def test_gaps_of_zero_have_no_ratio() -> None:
    made = []
    for index in (1, 2, 3):
        side = arm_round("base", index, *request_rows(ttfts(40, seed=index), gaps=0.0))
        made.append(RoundPair(index, side, side))
    assert {r.metric for r in who_pays(build_case(comparison(made)))} == {"ttft", "e2e"}


def test_a_single_round_has_no_interval_and_is_unclear() -> None:
    found = who_pays(build_case(comparison(pairs(0.5, 1.5)[:1])))
    assert {(r.ci, r.change) for r in found} == {(None, "unclear")}


def test_it_is_part_of_the_verdict() -> None:
    verdict = judge(comparison(good_pairs()))
    assert verdict.who_pays == who_pays(build_case(comparison(good_pairs())))
    assert verdict.model_dump(by_alias=True)["who_pays"][0]["class"] == "long"
    assert judge(comparison([])).who_pays == []
