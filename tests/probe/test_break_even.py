"""Where hits begin to pay, from medians that were measured on the embedded engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.plan.costs import BreakEven
from kvbench.probe.command import probe_and_check
from kvbench.probe.result import Point, Result, break_evens, check_lengths, checks_of
from kvbench.probe.series import Sample, Series, costs_of
from kvbench.probe.setting import Options, Room

ROOM = Room(unit=128, device=16_384, host=65_536, disk=True, max_model_len=8_256)
MEASURED = {
    "host": {128: (18.0, 17.8, 18.1), 896: (19.5, 18.7, 20.8), 1920: (21.7, 21.2, 24.2), 3968: (29.9, 27.6, 31.6)},
    "disk": {128: (23.0, 22.3, 23.6), 896: (27.3, 25.9, 27.9), 1920: (31.1, 30.4, 33.0), 3968: (44.6, 43.5, 46.2)},
    "computed": {128: (21.1, 20.9, 21.4), 896: (108, 106, 110), 1920: (220, 215, 235), 3968: (597, 572, 641)},
}
"""Source → prefix tokens → TTFT in ms with its interval: vLLM 0.32 on two cores, 2026-11-30."""


def points() -> list[Point]:
    return [
        Point(source, tokens, 30, median / 1e3, (low / 1e3, high / 1e3))
        for source, rows in MEASURED.items()
        for tokens, (median, low, high) in rows.items()
    ]


def samples() -> list[Sample]:
    draw = np.random.default_rng(1)
    return [
        Sample(source, tokens, float(draw.normal(median, (high - low) / 2)) / 1e3, group)
        for source, rows in MEASURED.items()
        for tokens, (median, low, high) in rows.items()
        for group in range(30)
    ]


def test_the_shortest_hit_on_disk_loses_although_the_lines_say_that_it_wins() -> None:
    found = break_evens(costs_of(samples(), 0.95), points(), ROOM)
    assert found["disk"].tokens is not None
    assert 128 < found["disk"].tokens <= 256
    assert check_lengths(found["disk"], ROOM, 3968) == {"below": 128, "above": 256}
    assert found["host"].tokens == 128
    assert check_lengths(found["host"], ROOM, 3968) == {"above": 128}


def test_it_is_checked_where_as_many_runs_again_can_be_expected_to_tell() -> None:
    """At the end of its interval they would tell every other time."""
    wide = BreakEven(1439, (1124, 1984))
    assert check_lengths(wide, ROOM, 8064) == {"below": 768, "above": 2560}
    assert check_lengths(wide, ROOM, 2048) == {"below": 768, "above": 2048}
    assert check_lengths(BreakEven(500, (200, 8000)), ROOM, 8064) == {"below": 128, "above": 8064}
    assert check_lengths(BreakEven(None, (1124, None)), ROOM, 8064) == {"below": 1024}


def test_runs_add_up_at_a_length_that_lies_beyond_the_interval_as_well() -> None:
    tighter = BreakEven(1439, (1300, 1600))
    assert check_lengths(tighter, ROOM, 8064, run=(768, 2560)) == {"below": 768, "above": 2560}
    assert check_lengths(tighter, ROOM, 8064, run=(1408, 1536)) == {"below": 1152, "above": 1792}


def test_what_lies_below_the_shortest_measured_length_is_not_proven() -> None:
    longer = [point for point in points() if point.prefix_tokens > 128]
    low, high = break_evens(costs_of(samples(), 0.95), longer, ROOM)["disk"].ci
    assert (low, high) == (128, 896)


def test_runs_on_both_sides_of_it_confirm_it() -> None:
    (below,) = checks_of({"disk": {128: "below"}}, samples())
    assert below.agrees
    (above,) = checks_of({"disk": {896: "above"}}, samples())
    assert above.agrees


def test_a_check_of_a_few_runs_has_a_difference_and_no_interval() -> None:
    few = [sample for sample in samples() if sample.group < 5]
    (below,) = checks_of({"disk": {128: "below"}}, few)
    assert below.difference_s == pytest.approx(1.9e-3, abs=1e-3)
    assert (below.ci, below.agrees) == (None, None)


def test_one_hiccup_of_the_machine_moves_no_check() -> None:
    slow = [Sample("computed", 128, 0.9, 31)]
    (below,) = checks_of({"disk": {128: "below"}}, [*samples(), *slow])
    assert below.agrees


def test_a_length_that_no_check_ran_at_is_not_told() -> None:
    (side,) = checks_of({"disk": {256: "above"}}, samples())
    assert (side.difference_s, side.agrees) == (None, None)


def test_what_made_the_break_even_does_not_confirm_it() -> None:
    costs = costs_of(samples(), 0.95)
    result = Result(Series(samples()), costs, break_evens(costs, points(), ROOM))
    assert result.sides(ROOM)["disk"] == {"below": 128, "above": 256}
    told = [(check.side, check.prefix_tokens, check.agrees) for check in result.checks(ROOM, 0.95)]
    assert told == [("above", 128, None), ("below", 128, None), ("above", 256, None)]
    assert not result.is_checked(result.sides(ROOM), 0.95)


def test_a_check_still_tells_when_the_interval_of_the_break_even_has_moved_past_it() -> None:
    result = Result(Series(samples()), costs_of(samples(), 0.95), {"disk": BreakEven(400, (100, 1000))}, samples())
    result.checked = {"disk": {128: "below", 896: "above"}}
    assert result.sides(ROOM)["disk"] == {"above": 1664}
    assert [(check.side, check.agrees) for check in result.checks(ROOM, 0.95)] == [("below", True), ("above", True)]
    assert not result.is_checked(result.sides(ROOM), 0.95), "at 1,664 nothing was run"


def test_a_side_that_no_check_ran_on_is_not_passed_over() -> None:
    result = Result(
        Series(samples()), costs_of(samples(), 0.95), {"disk": BreakEven(1500, (1400, 1600))}, samples()
    )
    result.checked = {"disk": {896: "above"}}
    below, above = result.checks(ROOM, 0.95)
    assert (below.side, below.prefix_tokens, below.agrees) == ("below", 896, False)
    assert (above.side, above.prefix_tokens, above.agrees) == ("above", 1792, None)


def test_a_check_that_moved_the_break_even_past_it_confirms_nothing() -> None:
    result = Result(Series(samples()), costs_of(samples(), 0.95), {"disk": BreakEven(200, (150, 300))}, samples())
    result.checked = {"disk": {128: "above", 896: "above"}}
    told = {check.prefix_tokens: (check.agrees, check.moved) for check in result.checks(ROOM, 0.95)}
    assert told == {128: (True, True), 896: (True, False)}


def test_a_break_even_that_the_check_moved_is_checked_where_it_is_then() -> None:
    """A lucky series says that 128 tokens from disk win; the check says that they lose, so 256 is run as well."""
    asked: list[list[int]] = []

    def record(room: Room, lengths: Sequence[int], *_: Any, **how: Any) -> Series:
        if how.get("wanted") is None:
            lucky = [Sample("disk", 128, (20.0 + group / 100) / 1e3, group) for group in range(6)]
            others = [s for s in samples() if (s.source, s.prefix_tokens) != ("disk", 128)]
            return Series([*others, *lucky])
        asked.append(list(lengths))
        draw = np.random.default_rng(len(asked))
        at = {"host": 18.5, "disk": 24.0, "computed": 21.1}
        slope = {"host": 1.5, "disk": 2.0, "computed": 13.0}
        return Series(
            [
                Sample(source, n, draw.normal(at[source] + slope[source] * (n / 128 - 1), 0.2) / 1e3, group)
                for source in at
                for n in lengths
                for group in range(12)
            ]
        )

    with mock.patch("kvbench.probe.command.record_series", record):
        result = probe_and_check(
            *(ROOM, (128, 896, 1920, 3968), Options(), mock.Mock(), mock.Mock(), print, "alone", 0, 5.0)
        )
    assert 128 in asked[0]
    assert 256 not in asked[0]
    assert {128, 256} <= set(asked[1])
    found = [check for check in result.checks(ROOM, 0.95) if check.source == "disk"]
    assert [(check.side, check.prefix_tokens, check.agrees) for check in found] == [
        ("below", 128, True),
        ("above", 256, True),
    ]


def test_a_check_that_is_not_told_apart_goes_on_with_the_prompts_that_it_has_sent() -> None:
    """What is to come from the disk is on its way there for half a minute, which a new line would begin anew."""
    lines: list[tuple[int, int]] = []

    def record(room: Room, lengths: Sequence[int], *_: Any, **how: Any) -> Series:
        if how.get("wanted") is None:
            return Series(samples())
        assert list(lengths) == how["line"].lengths
        assert how["line"].wanted == {"device": False, "host": True, "disk": True, "computed": True}
        lines.append((id(how["line"]), how["first_number"]))
        return Series([])

    with mock.patch("kvbench.probe.command.record_series", record):
        probe_and_check(
            *(ROOM, (128, 896, 1920, 3968), Options(), mock.Mock(), mock.Mock(), print, "alone", 0, 5.0)
        )
    assert len(lines) == 2
    assert len(set(lines)) == 1
    assert lines[0][1] > 0, "apart from the numbers of the series"


def test_without_intervals_the_lines_decide() -> None:
    few = [Point(p.source, p.prefix_tokens, 3, p.ttft_s, None) for p in points()]
    costs = costs_of(samples(), 0.95)
    assert break_evens(costs, few, ROOM) == break_evens(costs, [], ROOM)


@settings(max_examples=50, deadline=None)
@given(
    base_s=st.floats(0.0, 0.3),
    token_s=st.floats(1e-5, 1e-3),
    width=st.floats(0.001, 0.2),
)
def test_on_straight_lines_it_is_where_they_cross_and_within_its_interval(
    base_s: float, token_s: float, width: float
) -> None:
    lengths = (128, 896, 1920, 3968)
    rows = [("disk", n, 0.01 + base_s + token_s * n / 10) for n in lengths]
    rows += [("computed", n, 0.01 + token_s * n) for n in lengths]
    found = break_evens(
        costs_of(samples(), 0.95),
        [Point(source, n, 30, s, (s * (1 - width), s * (1 + width))) for source, n, s in rows],
        ROOM,
    )["disk"]
    truth = base_s / (0.9 * token_s)
    low, high = found.ci
    if truth > 3968:
        assert found.tokens is None
        return
    assert found.tokens is not None
    assert abs(found.tokens - max(truth, 128)) <= 1
    assert low is not None
    assert low <= found.tokens
    assert high is None or found.tokens <= high
