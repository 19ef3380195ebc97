"""The measured offset of another clock is never further from the truth than it says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.load.offset import Offset, Reading, clock_offset

ways = st.integers(0, 10**9)


def reading(at_ns: int, there_ns: int, stay_ns: int, back_ns: int, truth_ns: int) -> Reading:
    received = at_ns + there_ns + truth_ns
    return Reading(at_ns, received, received + stay_ns, at_ns + there_ns + stay_ns + back_ns)


@given(st.integers(-(10**15), 10**15), st.lists(st.tuples(ways, ways, ways), min_size=1, max_size=20))
def test_the_truth_lies_within_the_stated_error_however_unequal_the_ways(
    truth_ns: int, journeys: list[tuple[int, int, int]]
) -> None:
    readings = [reading(n * 10**10, *journey, truth_ns) for n, journey in enumerate(journeys)]
    offset = clock_offset(readings)
    assert abs(offset.offset_ns - truth_ns) <= offset.error_ns
    assert offset.error_ns <= min(there + back for there, _, back in journeys) // 2 + 1


def test_equal_ways_give_the_offset_itself_and_the_shortest_round_trip_counts() -> None:
    slow, quick = reading(0, 900, 50, 100, 7_000), reading(10_000, 40, 10, 40, 7_000)
    assert clock_offset([slow, quick]) == Offset(7_000, 41)
    assert Offset(7_000, 41).there(5) == 7_005


def test_without_a_reading_nothing_is_known() -> None:
    with pytest.raises(ValueError, match="empty"):
        clock_offset([])
