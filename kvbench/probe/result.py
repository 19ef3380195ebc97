"""What a probe found: points, costs, break-even lengths and whether they hold, as one document. Pure.

Times in seconds, lengths in tokens. A figure that was not measured is null, never zero.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy import special

from kvbench.plan.costs import BreakEven, CostLine, break_even, crossing
from kvbench.probe.series import Sample, Series, costs_of
from kvbench.probe.setting import Options, Room

__all__ = [
    "Check",
    "Point",
    "Result",
    "break_evens",
    "check_lengths",
    "checks_of",
    "document",
    "points_of",
    "result_of",
]

_ORDER = ("device", "host", "disk", "computed")
FEWEST_LENGTHS = 3
"""At so many lengths a hit and computing must have medians with intervals, for the break-even to rest on these."""


@dataclass(frozen=True)
class Point:
    """TTFT of one source at one prefix length."""

    source: str
    prefix_tokens: int
    n: int
    ttft_s: float
    """The median."""
    ci: tuple[float, float] | None
    """Of the median, from the order of the samples; None: too few (six give 95 %)."""


@dataclass(frozen=True)
class Check:
    """Runs at a length just below or just above the break-even: which is cheaper there, a hit or computing?"""

    source: str
    side: str
    """`below` or `above`: where the length lies of the break-even as it is known in the end."""
    prefix_tokens: int
    difference_s: float | None
    """Median TTFT of hits minus that of computed prompts, of those that ran for the check."""
    ci: tuple[float, float] | None
    agrees: bool | None
    """With the break-even; None: the interval does not tell, or nothing was run there."""
    moved: bool = False
    """The break-even lay on the other side of it before these runs, so that they are no confirmation."""


@dataclass
class Result:
    """Everything that was found for one series."""

    series: Series
    costs: dict[str, CostLine]
    break_even: dict[str, BreakEven]
    check_samples: list[Sample] = field(default_factory=list)
    checked: dict[str, dict[int, str]] = field(default_factory=dict)
    """Tier → the lengths that were run to check its break-even, and on which side of it each lay by then."""

    @property
    def samples(self) -> list[Sample]:
        """Of the series and of its checks."""
        return [*self.series.samples, *self.check_samples]

    def sides(self, room: Room) -> dict[str, dict[str, int]]:
        """Tier → the lengths to run at beside its break-even as it is known now."""
        longest = int(self.costs["computed"].longest) if "computed" in self.costs else 0
        return {
            tier: check_lengths(even, room, longest, self.checked.get(tier, ()))
            for tier, even in self.break_even.items()
        }

    def checks(self, room: Room, confidence: float) -> list[Check]:
        """What the checks say at every length that they ran at, and on which side of the break-even, as it is now,
        none ran. The series does not count: from it the break-even was made."""
        beside = self.sides(room)
        lengths: dict[str, dict[int, str]] = {}
        for tier, even in self.break_even.items():
            lengths[tier] = {tokens: _side(tokens, even) for tokens in self.checked.get(tier, ())}
            run = set(lengths[tier].values())
            lengths[tier] |= {tokens: side for side, tokens in beside[tier].items() if side not in run}
        return [
            replace(
                check, moved=self.checked.get(check.source, {}).get(check.prefix_tokens, check.side) != check.side
            )
            for check in checks_of(lengths, self.check_samples, confidence)
        ]

    def is_checked(self, sides: Mapping[str, Mapping[str, int]], confidence: float) -> bool:
        """Whether at each of these lengths the checks tell which is cheaper."""
        lengths = {tier: {tokens: side for side, tokens in beside.items()} for tier, beside in sides.items()}
        return all(check.agrees is not None for check in checks_of(lengths, self.check_samples, confidence))


def points_of(samples: Sequence[Sample], confidence: float = 0.95) -> list[Point]:
    """Hot to cold, then by length."""
    grouped: dict[tuple[str, int], list[float]] = {}
    for sample in samples:
        grouped.setdefault((sample.source, sample.prefix_tokens), []).append(sample.ttft_s)
    return [
        Point(source, tokens, len(values), float(np.median(values)), _median_interval(values, confidence))
        for (source, tokens), values in sorted(
            grouped.items(), key=lambda item: (_ORDER.index(item[0][0]), item[0][1])
        )
    ]


def _median_interval(values: Sequence[float], confidence: float) -> tuple[float, float] | None:
    """The sign test turned around: order statistics k and n + 1 − k (Conover 1999, section 3.2)."""
    n, ordered = len(values), sorted(values)
    k = 0
    while k < n // 2 and special.bdtr(k, n, 0.5) <= (1 - confidence) / 2:
        k += 1
    return None if k == 0 else (ordered[k - 1], ordered[n - k])


def break_evens(costs: dict[str, CostLine], points: Sequence[Point], room: Room) -> dict[str, BreakEven]:
    """Of the tiers behind the device, where both they and computing were measured.

    From the medians, where there are enough of them: what engines take for the shortest prompts is milliseconds off
    any line through all lengths, and it is among these that a good tier breaks even. Else where the lines cross.
    """
    computed = costs.get("computed")
    found: dict[str, BreakEven] = {}
    for tier in ("host", "disk"):
        if computed is None or tier not in costs:
            continue
        longest = int(computed.longest)
        gaps = _gaps(points, tier)
        found[tier] = (
            crossing(list(gaps), list(gaps.values()), smallest=room.unit, longest=longest)
            if len(gaps) >= FEWEST_LENGTHS
            else break_even(costs[tier], computed, smallest=room.unit, longest=longest)
        )
    return found


def _gaps(points: Sequence[Point], tier: str) -> dict[float, tuple[float, float, float]]:
    """Length → by how many seconds a hit is slower than computing, with the ends of its interval.

    The interval of a difference from those of its two terms, which need not be symmetric: Zou & Donner (2008).
    """
    by_length: dict[int, dict[str, Point]] = {}
    for point in points:
        by_length.setdefault(point.prefix_tokens, {})[point.source] = point
    gaps: dict[float, tuple[float, float, float]] = {}
    for tokens, sources in sorted(by_length.items()):
        hit, computed = sources.get(tier), sources.get("computed")
        if hit is None or computed is None or hit.ci is None or computed.ci is None:
            continue
        gap = hit.ttft_s - computed.ttft_s
        below = math.hypot(hit.ttft_s - hit.ci[0], computed.ci[1] - computed.ttft_s)
        above = math.hypot(hit.ci[1] - hit.ttft_s, computed.ttft_s - computed.ci[0])
        gaps[float(tokens)] = (gap, gap - below, gap + above)
    return gaps


def check_lengths(even: BreakEven, room: Room, longest: int, run: Collection[int] = ()) -> dict[str, int]:
    """`below` and `above` → the whole unit to run at on that side; a side may have none.

    Twice as far from the break-even as its interval reaches. Where the interval ends a difference is as large as
    the interval of its own, so that as many runs again would tell it only every other time; at twice the distance
    they do 97 times of 100. A length that was `run` and still lies beyond the interval is kept: its runs add up.
    """
    low, high = even.ci
    sides: dict[str, int] = {}
    if low is not None:
        nearest = (low - 1) // room.unit * room.unit
        if room.unit <= nearest < (even.tokens or math.inf):
            further = (_twice_as_far(low, even.tokens) - 1) // room.unit * room.unit
            kept = [tokens for tokens in run if tokens <= nearest]
            sides["below"] = max(kept, default=max(further, room.unit))
    if high is not None:
        nearest = math.ceil(high / room.unit) * room.unit
        if nearest <= longest:
            further = math.ceil(_twice_as_far(high, even.tokens) / room.unit) * room.unit
            kept = [tokens for tokens in run if nearest <= tokens <= longest]
            sides["above"] = min(kept, default=min(further, longest // room.unit * room.unit))
    return sides


def _twice_as_far(end: int, tokens: int | None) -> int:
    return end if tokens is None else 2 * end - tokens


def _side(tokens: int, even: BreakEven) -> str:
    return "below" if even.tokens is None or tokens < even.tokens else "above"


def checks_of(
    lengths: Mapping[str, Mapping[int, str]], samples: Sequence[Sample], confidence: float = 0.95
) -> list[Check]:
    """`lengths`: by tier, those beside its break-even, each with its side. By medians, as the break-even is: one
    hiccup of the machine moves no median."""
    points = points_of(samples, confidence)
    medians = {(point.source, point.prefix_tokens): point.ttft_s for point in points}
    found = []
    for tier, sides in lengths.items():
        gaps = _gaps(points, tier)
        for tokens, side in sorted(sides.items()):
            hit_s, computed_s = medians.get((tier, tokens)), medians.get(("computed", tokens))
            difference_s = None if hit_s is None or computed_s is None else hit_s - computed_s
            ci = gaps[tokens][1:] if tokens in gaps else None
            agrees: bool | None = None
            if ci is not None and (ci[0] > 0 or ci[1] < 0):
                agrees = (ci[0] > 0) == (side == "below")
            found.append(Check(tier, side, tokens, difference_s, ci, agrees))
    return found


def document(result: Result, room: Room, options: Options) -> dict[str, Any]:
    """The keys that the documentation names, and what tells how far they can be trusted."""
    sources = room.sources
    return {
        "points": [
            {
                "source": point.source,
                "prefix_tokens": point.prefix_tokens,
                "n": point.n,
                "ttft_s": point.ttft_s,
                "ci": point.ci,
            }
            for point in points_of(result.samples, options.confidence)
        ],
        "cost_per_token_s": {s: result.costs[s].per_token_s if s in result.costs else None for s in sources},
        "cost_per_token_ci": {s: result.costs[s].ci if s in result.costs else None for s in sources},
        "base_s": {s: result.costs[s].base_s if s in result.costs else None for s in sources},
        "curve": {
            s: [float(c) / 1000.0**power for power, c in enumerate(result.costs[s].coefficients)]
            for s in sources
            if s in result.costs
        },
        "break_even_tokens": {tier: even.tokens for tier, even in result.break_even.items()},
        "break_even_ci": {tier: even.ci for tier, even in result.break_even.items()},
        "checks": [vars(check) for check in result.checks(room, options.confidence)],
        "smallest_hit_tokens": room.unit,
        "confidence": options.confidence,
        "interval_reached": result.series.reached,
        "thrown_away": dict(result.series.thrown_away),
        "not_reached": [*result.series.given_up, *_unseen(result, sources)],
        "seconds": round(result.series.seconds, 3),
    }


def _unseen(result: Result, sources: Sequence[str]) -> list[str]:
    return [s for s in sources if s not in result.series.given_up and not result.series.of(s)]


def result_of(series: Series, room: Room, options: Options) -> Result:
    """Costs and break-even lengths of what was measured."""
    costs = costs_of(series.samples, options.confidence)
    points = points_of(series.samples, options.confidence)
    return Result(series, costs, break_evens(costs, points, room))
