"""What plans said beside what was measured, on emulated rounds that play what was planned."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pandas as pd
import pytest

from kvbench.engine.emulated.virtual import simulate
from kvbench.judge.case import build_case
from kvbench.judge.evidence import Comparison, Prediction, RoundPair
from kvbench.judge.judge import judge
from kvbench.judge.predicted import source_predictions
from kvbench.judge.quality import SourcePrediction
from kvbench.plan.prediction import predict
from kvbench.workload.build import build_schedule
from tests.judge.build import rules
from tests.judge.test_hit_quality import BLOCK, profile, workload

SLIGHT = 0.03
"""The core's noise is 1 %, and is drawn anew where scrapes part the time otherwise."""


@cache
def foretold() -> Comparison:
    """One round of the device alone against host and disk behind it, and what the core itself predicts of it."""
    arms = (profile("base"), profile("tiered", host_blocks=200, disk=True))
    schedule = build_schedule(workload(), 1, block_tokens=BLOCK, capacities_tokens=None, max_model_len=4096)
    predictions, sides = [], []
    for arm in arms:
        assert arm.engine.emulation is not None
        played = predict([schedule], arm, arm.engine.emulation, 2048)
        medians = {source: ttft["p50"] for source, ttft in played.ttft.items()}
        predictions.append(Prediction(arm.name, "the same core", played.shares, medians))
        sides.append(simulate(schedule, arm, label="plan").arm_round(arm.name, 1))
    pair = RoundPair(1, *sides)
    return Comparison(*arms, workload(), rules(), (pair,), 1, predictions=tuple(predictions))


def rows(comparison: Comparison) -> dict[tuple[str, str], SourcePrediction]:
    return {(row.arm, row.source): row for row in source_predictions(build_case(comparison))}


def test_a_prediction_that_comes_true_has_no_error() -> None:
    found = rows(foretold())
    assert {("base", "computed"), ("tiered", "host"), ("tiered", "disk"), ("tiered", "all")} <= found.keys()
    assert ("base", "host") not in found, "neither predicted nor measured"
    for row in found.values():
        assert row.share_error_points in (None, pytest.approx(0.0, abs=0.5))  # counters are read once a second
        assert row.ttft_error == pytest.approx(0.0, abs=SLIGHT) if row.n >= 6 else row.ttft_error is None
    assert found["tiered", "all"].n == sum(found["tiered", s].n for s in ("device", "host", "disk", "computed"))


def test_errors_are_predicted_less_measured() -> None:
    told = foretold()
    (base, tiered) = told.predictions
    wrong = replace(
        tiered,
        shares={**tiered.shares, "host": (tiered.shares["host"] or 0) + 0.1},
        ttft_p50_s={**tiered.ttft_p50_s, "disk": 2 * (tiered.ttft_p50_s["disk"] or 0)},
    )
    found = rows(replace(told, predictions=(base, wrong)))
    assert found["tiered", "host"].share_error_points == pytest.approx(10.0, abs=0.5)
    assert found["tiered", "disk"].ttft_error == pytest.approx(1.0, abs=2 * SLIGHT)


def test_the_verdict_is_the_same_with_and_without_a_prediction() -> None:
    told = foretold()
    with_it, without = judge(told), judge(replace(told, predictions=()))
    assert without.prediction == []
    assert with_it.model_copy(update={"prediction": []}) == without


def test_without_a_ledger_shares_are_held_and_ttft_by_source_is_not() -> None:
    told = foretold()
    pair = told.pairs[0]
    bare = RoundPair(
        1, replace(pair.baseline, ledger=pd.DataFrame()), replace(pair.candidate, ledger=pd.DataFrame())
    )
    found = rows(replace(told, pairs=(bare,)))
    disk = found["tiered", "disk"]
    assert disk.measured_share is not None
    assert (disk.n, disk.measured_ttft_p50_s, disk.ttft_error) == (0, None, None)
    assert found["tiered", "all"].ttft_error == pytest.approx(0.0, abs=SLIGHT)
