"""The measurement's figures about itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvbench.judge.evidence import RoundPair
from tests.judge.ask import figures
from tests.judge.build import BASELINE, COPY, SCRAPES, TIERED, arm_round, comparison, request_rows, ttfts
from tests.judge.change import (
    candidate_edited,
    late,
    with_baseline,
    with_candidate,
)


def test_the_figures_of_the_instrument_are_the_worst_ones() -> None:
    pairs = candidate_edited(late)
    pairs = with_baseline(pairs, 0, load={"timestamp_error_p99_s": 0.002}, scrapes=replace(SCRAPES, succeeded=97))
    pairs = with_candidate(pairs, 2, load={"timestamp_error_p99_s": 0.001})
    found = figures(comparison(pairs))
    assert found.send_lag_p99_s == pytest.approx(0.05, abs=0.001)
    assert found.timestamp_error_p99_s == 0.002
    assert found.scrape_coverage == 0.97
    assert found.multi_token_event_share == 0.0


def test_the_stated_error_of_times_is_never_less_than_what_the_calibration_found() -> None:
    pairs = candidate_edited(late)
    pairs = with_baseline(pairs, 0, load={"timestamp_error_p99_s": 0.0, "calibrated_timestamp_error_p99_s": 0.0003})
    assert figures(comparison(pairs)).timestamp_error_p99_s == 0.0003


def test_what_changes_the_meaning_of_times_is_told_of_all_rounds_together() -> None:
    """Given a step of the wall clock in one round and two in another, then there were three."""
    pairs = candidate_edited(late)
    pairs = with_baseline(pairs, 0, load={"clock_steps": 1.0, "unstamped_reads_share": 0.02, "stepped_down_s": 0.0})
    more = {"clock_steps": 2.0, "unstamped_reads_share": 0.01, "stepped_down_s": 4.0, "uncounted_outputs": 5.0}
    pairs = with_candidate(pairs, 2, load=more)
    pairs = with_candidate(pairs, 0, load={"resent_on_stale_connection": 1.0, "substituted_turns": 7.0})
    found = figures(comparison(pairs))
    assert (found.clock_steps, found.unstamped_reads_share, found.stepped_down_s) == (3.0, 0.02, 4.0)
    assert (found.resent_on_stale_connection, found.substituted_turns, found.uncounted_outputs) == (1.0, 7.0, 5.0)


def test_the_clocks_of_workers_elsewhere_are_told_with_what_that_may_be_wrong_by() -> None:
    pairs = candidate_edited(late)
    pairs = with_baseline(pairs, 0, load={"worker_clock_offset_max_s": 7.5, "worker_clock_error_max_s": 0.0004})
    pairs = with_candidate(pairs, 2, load={"worker_clock_offset_max_s": 7.6, "worker_clock_error_max_s": 0.0002})
    found = figures(comparison(pairs))
    assert (found.worker_clock_offset_s, found.worker_clock_error_s) == (7.6, 0.0004)


def test_without_requests_the_instrument_has_no_figures() -> None:
    requests, tokens = request_rows([])
    empty = arm_round("a", 1, requests, tokens, scrapes=replace(SCRAPES, supported=False))
    found = figures(comparison([RoundPair(1, empty, empty)]))
    assert set(found.model_dump().values()) == {None, 0}


def test_lognormal_latencies_are_reproducible() -> None:
    """The builder gives paired draws: the same seed, the same requests."""
    assert np.array_equal(ttfts(seed=3), ttfts(seed=3))


def test_profiles_of_the_builder_are_what_they_say() -> None:
    assert TIERED.tier_names == ("device", "host", "disk")
    assert COPY.tiers == BASELINE.tiers
