"""The benchmark of analyses judges what it measures: each of its limits can be missed."""

from __future__ import annotations

import pytest

from tests.benchmarks import bench_analyze
from tests.benchmarks.bench_analyze import Curve, Size


def analysed(references: int, *, curve_s: float, whole_s: float, whole_bytes: float = 1e9) -> Size:
    return Size(Curve(references, curve_s, 0.5, 10**9), whole_s, int(whole_bytes))


@pytest.mark.parametrize(
    ("small", "large", "further", "missed"),
    [
        ({}, {}, 4.0, []),
        ({"curve_s": 0.4}, {}, 4.0, ["the curve of 1,000,000 references: 2,500,000 a second, not 3,000,000"]),
        ({}, {"curve_s": 4.0}, 4.0, ["the curve of 10,000,000 references: 2,500,000 a second, not 3,000,000"]),
        ({"whole_s": 1.8}, {"whole_s": 15.5}, 4.0, ["analyze of 10,000,000 references: 15.5 s, not below 15"]),
        ({}, {"whole_bytes": 2.1e9}, 4.0, ["analyze of 10,000,000 references: 2.10 GB, not below 2"]),
        ({"whole_s": 1.2}, {"whole_s": 14.5}, 4.0, ["from 1,000,000 references to 10,000,000: 20.00 times"]),
        ({}, {}, 20.0, ["20 bytes for each further reference to the same blocks"]),
    ],
)
def test_every_limit_of_an_analysis_can_be_missed(
    small: dict[str, float], large: dict[str, float], further: float, missed: list[str]
) -> None:
    """Given an empty trace of half a second, then ten times the references may take 11.7 times and 15 % more."""
    sizes = [
        analysed(10**6, **({"curve_s": 0.1, "whole_s": 1.6} | small)),
        analysed(10**7, **({"curve_s": 1.2, "whole_s": 13.0} | large)),
    ]
    assert list(bench_analyze.misses(sizes, 0.5, further)) == missed
