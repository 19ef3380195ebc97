"""What promotions did to everybody else, on rounds made by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from kvbench.judge.case import build_case
from kvbench.judge.evidence import RoundPair
from kvbench.judge.hit_quality import hit_quality
from kvbench.judge.neighbours import neighbours
from kvbench.record.tables import LEDGER
from tests.judge.build import arm_round, as_table, comparison, request_rows


def neighbour_round(index: int, slower: float) -> RoundPair:
    """Every tenth second a promotion of five seconds; others answer in 0.2 s, and `slower` more meanwhile."""
    sent = np.arange(0, 200, 1.0)
    promoted = sent % 10 == 0
    during = (sent % 10 < 5) & ~promoted
    ttft = np.where(promoted, 4.9, 0.2 + np.where(during, slower, 0.0))
    gaps = np.where(during & (sent % 10 < 4), 0.03, 0.02)
    frame, tokens = request_rows(ttft, gaps=gaps, start_s=9.5, span_s=len(sent))
    frame = frame.assign(sent_s=frame["intended_s"])
    ledger = as_table(
        pd.DataFrame(
            {
                "id": frame["id"],
                "prompt_tokens": 1000,
                "computed": np.where(promoted, 100, 1000),
                "device": 0,
                "host": np.where(promoted, 900, 0),
                "disk": 0,
                "unattributed": 0,
                "evidence": "engine",
            }
        ),
        LEDGER,
    )
    counted = (0, ledger["host"].sum(), 0, ledger["computed"].sum())
    side = arm_round("tiered", index, frame, tokens, ledger=ledger, sources=counted)
    return RoundPair(index, side, side)


def test_neighbours_wait_while_others_are_promoted() -> None:
    pairs = [neighbour_round(index, slower) for index, slower in ((1, 0.1), (2, 0.11), (3, 0.09))]
    case = build_case(comparison(pairs))
    found = neighbours(case, [np.zeros(len(pair.candidate.latencies)) for pair in case.pairs])
    assert found is not None
    assert found.effect_s == pytest.approx(0.1)
    assert found.effect_ci is not None
    assert found.effect_ci[0] > 0
    assert found.ttft_service_quiet_s == pytest.approx(0.2)
    assert (found.during, found.quiet) == (3 * 80, 3 * 100)
    assert hit_quality(case) is not None


def test_running_decodes_are_compared_gap_by_gap() -> None:
    """Given answers whose gaps are longer while a promotion runs, then ITL says by how much."""
    case = build_case(comparison([neighbour_round(index, 0.1) for index in (1, 2, 3)]))
    found = neighbours(case, [np.zeros(len(pair.candidate.latencies)) for pair in case.pairs])
    assert found is not None
    assert (found.itl_during_p50_s, found.itl_quiet_p50_s) == (pytest.approx(0.03), pytest.approx(0.02))
    assert found.itl_during_p99_s == pytest.approx(0.03)
    assert found.itl_quiet_p99_s is not None
    assert found.itl_during_p99_s is not None
    assert found.itl_quiet_p99_s < found.itl_during_p99_s


def test_without_quiet_times_there_is_nothing_to_compare() -> None:
    pair = neighbour_round(1, 0.1)
    everywhere = pair.candidate.ledger.assign(host=900, computed=100)
    side = replace(pair.candidate, ledger=everywhere)
    case = build_case(comparison([RoundPair(1, side, side)]))
    assert neighbours(case, [np.zeros(len(case.pairs[0].candidate.latencies))]) is None
