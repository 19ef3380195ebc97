"""Trend per rule: drift since the last change, changes with what changed beside them, and what does not count."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kvbench.history.store import append, read
from kvbench.history.trend import Comparison, Series, comparisons
from kvbench.judge.verdict import Outcome
from tests.history.build import Recorded, manifest, record, verdict

NOISE = np.exp(np.random.default_rng(2).normal(0, 0.02, 30))


def seen(results: Path, runs: list[Recorded], last: int | None = None) -> Comparison:
    record(results, runs)
    (found,) = comparisons(read(results), last)
    return found


def rule(found: Comparison, name: str) -> Series:
    return next(series for series in found.series if series.rule == name)


def test_a_steady_drift_is_told_as_a_factor_over_the_runs(tmp_path: Path) -> None:
    runs = [Recorded(night, ratio=1.02**night) for night in range(7)]
    trend = rule(seen(tmp_path, runs), "ttft-p90").trend
    assert trend is not None
    assert trend.drift == pytest.approx(1.02**6)
    assert trend.runs == 7
    assert trend.interval[0] <= trend.drift <= trend.interval[1]


def test_a_share_drifts_by_a_difference_and_a_level_one_not_at_all(tmp_path: Path) -> None:
    errors = rule(seen(tmp_path, [Recorded(night) for night in range(6)]), "errors")
    assert not errors.logarithmic
    assert errors.trend is not None
    assert errors.trend.drift == 0


def test_a_change_is_named_with_its_date_and_the_engine_that_came_with_it(tmp_path: Path) -> None:
    runs = [
        Recorded(night, ratio=NOISE[night] * 1.3, engine="0.33.0")
        if night >= 12
        else Recorded(night, ratio=NOISE[night])
        for night in range(24)
    ]
    series = rule(seen(tmp_path, runs), "ttft-p90")
    (change,) = series.changes
    assert f"{change.run.created:%Y-%m-%d}" == "2026-01-13"
    assert change.after / change.before == pytest.approx(1.3, rel=0.05)
    told = {(version.what, version.before, version.after) for _, version in change.with_it}
    assert told == {
        ("engine", "vllm 0.32.0", "vllm 0.33.0"),
        ("engine of the baseline", "vllm 0.32.0", "vllm 0.33.0"),
    }
    assert series.trend is not None
    assert series.trend.runs == 12


@pytest.mark.parametrize(
    ("field", "before", "after", "what"),
    [
        ("driver", "570.86.15", "580.1", "driver"),
        ("driver", None, "580.1", "driver"),
        ("kvbench", "0.1.0", "0.2.0", "kvbench"),
        ("host_mib", 64, 128, "profile"),
        ("seed", 1, 2, "workload"),
    ],
)
def test_whatever_changed_between_two_runs_is_told(
    tmp_path: Path, field: str, before: object, after: object, what: str
) -> None:
    runs = [Recorded(night, **{field: value}) for night, value in enumerate((before, after))]  # type: ignore[arg-type]
    first, second = seen(tmp_path, runs).runs
    assert first.changed == ()
    assert [change.what for change in second.changed] == [what]


def test_an_invalid_run_is_shown_and_counts_for_nothing(tmp_path: Path) -> None:
    runs = [
        Recorded(night, ratio=100.0 if night > 8 else 1.0, verdict=Outcome.INVALID if night > 8 else Outcome.GO)
        for night in range(18)
    ]
    found = seen(tmp_path, runs)
    tail = rule(found, "ttft-p90")
    assert len(tail.points) == 18
    assert tail.changes == ()
    assert tail.trend is not None
    assert tail.trend.drift == pytest.approx(1.0)
    assert rule(found, "residue").points[-1].status == "fail"


def test_a_value_that_was_not_measured_is_no_value(tmp_path: Path) -> None:
    runs = [Recorded(night, ratio=None if night == 3 else 1.1) for night in range(6)]
    points = rule(seen(tmp_path, runs), "ttft-p90").points
    assert [point.value for point in points] == [1.1, 1.1, 1.1, None, 1.1, 1.1]
    assert points[3].interval is None


def test_a_night_without_the_effect_is_not_told_by_another_figure(tmp_path: Path) -> None:
    """Its candidate was at 0.2 s, which is no ratio."""
    record(tmp_path, [Recorded(night, ratio=1.1) for night in range(4)])
    last = verdict(Recorded(4))
    rules = [
        each.model_copy(update={"effect": None, "ci": None}) if each.rule == "ttft-p90" else each
        for each in last.rules
    ]
    append(tmp_path, manifest(Recorded(4)), last.model_copy(update={"rules": rules}))
    (found,) = comparisons(read(tmp_path), None)
    assert [point.value for point in rule(found, "ttft-p90").points] == [1.1, 1.1, 1.1, 1.1, None]


def test_only_the_newest_runs_are_taken_and_each_candidate_has_its_own(tmp_path: Path) -> None:
    record(tmp_path, [Recorded(night) for night in range(5)])
    record(tmp_path, [Recorded(night, candidate="other") for night in range(3, 9)])
    other, tiered = comparisons(read(tmp_path), 4)
    assert (other.candidate, len(other.runs)) == ("other", 4)
    assert [f"{run.created:%d}" for run in tiered.runs] == ["02", "03", "04", "05"]
    assert all(len(series.points) == 4 for series in tiered.series)


def test_rules_of_validity_that_always_passed_are_left_out_unless_asked_for(tmp_path: Path) -> None:
    record(tmp_path, [Recorded(0), Recorded(1)])
    (found,) = comparisons(read(tmp_path), None)
    assert [series.rule for series in found.series] == ["ttft-p90", "errors"]
    (found,) = comparisons(read(tmp_path), None, ["residue"])
    assert [series.rule for series in found.series] == ["residue"]
