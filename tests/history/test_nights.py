"""The newest run against the nights before it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.history.nights import Night, judge_night, prediction_interval
from kvbench.history.store import read
from kvbench.judge.verdict import Outcome
from tests.history.build import Recorded, record

NOISE = np.exp(np.random.default_rng(5).normal(0, 0.03, 40))


def nights(count: int, **same: object) -> list[Recorded]:
    return [Recorded(night, baseline_s=0.2 * NOISE[night], **same) for night in range(count)]  # type: ignore[arg-type]


def judged(results: Path, runs: list[Recorded], asked: int = 14) -> Night:
    record(results, runs)
    night = judge_night(read(results), asked)
    assert night is not None
    return night


def test_a_night_like_the_others_is_go(tmp_path: Path) -> None:
    night = judged(tmp_path, nights(15))
    (rule,) = night.rules
    assert (night.verdict, rule.rule, rule.status, rule.count) == (Outcome.GO, "ttft-p90", "pass", 14)
    assert rule.interval is not None
    assert rule.interval[0] < 1.0 < rule.interval[1] < rule.limit == 1.5


def test_what_slows_both_arms_alike_is_no_go_although_the_comparison_sees_nothing(tmp_path: Path) -> None:
    slow = Recorded(15, ratio=1.0, baseline_s=0.2 * 2.5)
    night = judged(tmp_path, [*nights(15), slow])
    assert (night.own, night.verdict) == (Outcome.GO, Outcome.NO_GO)
    assert night.rules[0].status == "fail"
    assert night.rules[0].baseline_ratio == pytest.approx(2.5, rel=0.05)
    assert "the baseline moved by ×2.49" in night.text


def test_what_the_interval_cannot_tell_is_inconclusive(tmp_path: Path) -> None:
    night = judged(tmp_path, [*nights(15), Recorded(15, baseline_s=0.2 * 1.5)])
    assert (night.rules[0].status, night.verdict) == ("unknown", Outcome.INCONCLUSIVE)


def test_too_few_nights_are_inconclusive_and_say_how_many_are_needed(tmp_path: Path) -> None:
    night = judged(tmp_path, nights(5))
    assert (night.verdict, night.rules[0].status) == (Outcome.INCONCLUSIVE, "unknown")
    assert "4 nights, 5 needed" in night.text


def test_only_valid_nights_of_the_same_workload_count(tmp_path: Path) -> None:
    other = [replace(run, seed=2) for run in nights(8)]
    spoiled = [replace(run, night=10 + run.night, verdict=Outcome.INVALID, baseline_s=9.0) for run in nights(6)]
    same = [replace(run, night=20 + run.night) for run in nights(7)]
    night = judged(tmp_path, [*other, *spoiled, *same])
    assert night.rules[0].count == 6
    assert night.verdict is Outcome.GO


def test_the_worse_of_both_verdicts_counts(tmp_path: Path) -> None:
    runs = nights(15)
    night = judged(tmp_path, [*runs[:-1], replace(runs[-1], verdict=Outcome.INVALID)])
    assert night.verdict is Outcome.INVALID


def test_a_value_missing_tonight_is_never_a_pass(tmp_path: Path) -> None:
    night = judged(tmp_path, [*nights(15), Recorded(15, ratio=None)])
    assert (night.rules[0].status, night.verdict) == ("unknown", Outcome.INCONCLUSIVE)
    assert night.rules[0].ratio is None


def test_no_more_nights_are_taken_than_asked_for(tmp_path: Path) -> None:
    assert judged(tmp_path, nights(20), asked=6).rules[0].count == 6


def test_nothing_recorded_is_no_night(tmp_path: Path) -> None:
    assert judge_night(read(tmp_path), 14) is None


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    random = np.random.default_rng(11)
    held = 0
    for _ in range(1000):
        *before, tonight = np.exp(random.normal(-1.5, 0.1, 9))
        low, high = prediction_interval(tonight, before, 0.025)
        held += low <= 1.0 <= high
    # 95 % of 1000 with a standard error of 7.
    assert 925 <= held <= 975


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0.01, 10), min_size=5, max_size=20), st.floats(0.01, 10), st.floats(0.1, 10))
def test_a_ratio_does_not_depend_on_the_unit(before: list[float], tonight: float, unit: float) -> None:
    plain = prediction_interval(tonight, before, 0.025)
    scaled = prediction_interval(tonight * unit, [value * unit for value in before], 0.025)
    assert scaled == pytest.approx(plain, rel=1e-6)
