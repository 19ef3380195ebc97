"""The rate over a round, per second, and its inverse: at which second how many arrivals are expected.

A rate is a row of spans that follow each other; each knows how many arrivals it is expected to see and when. There
is no randomness in here.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from kvbench.errors import InputError, KeyPath
from kvbench.spec.places import about
from kvbench.spec.rates import Burst, OnOff, RateTarget, Sinusoid
from kvbench.spec.workload import Arrivals, Phase
from kvbench.workload.randomness import cosine
from kvbench.workload.schedule import PhaseSpan

__all__ = ["CrowdSpan", "RateProfile", "RateSpan", "SineSpan", "Span", "lay_out_phases", "rate_profile"]

_MOST_CYCLES = 100_000
"""A shape that repeats more often within a phase is a slip of a unit."""


_CLOSE_TURNS = 1e-12
"""The error of Newton's method after so small a step is about its square."""


class Span(Protocol):
    """A stretch of time with its rate."""

    @property
    def expected(self) -> float:
        """Arrivals expected in the whole span."""

    @property
    def end_rate(self) -> float:
        """The rate at its end."""

    def time_of(self, expected: float) -> float:
        """The time at which this many arrivals (fewer than the whole span's) are expected since its start."""


@dataclass(frozen=True, slots=True)
class RateSpan:
    """A stretch of time over which the rate (per second) moves linearly."""

    start_s: float
    end_s: float
    start_rate: float
    end_rate: float

    @property
    def expected(self) -> float:
        """Arrivals expected in the whole span."""
        return (self.end_s - self.start_s) * (self.start_rate + self.end_rate) / 2.0

    def time_of(self, expected: float) -> float:
        """The time at which this many arrivals are expected since the span's start; never at or past its end."""
        if expected <= 0.0:
            return self.start_s
        slope = (self.end_rate - self.start_rate) / (self.end_s - self.start_s)
        root = math.sqrt(max(0.0, self.start_rate * self.start_rate + 2.0 * slope * expected))
        if self.start_rate + root == 0.0:  # from rate 0 on, and so few that their square root is lost
            return self.start_s
        # 2x / (r + root) is the quadratic formula in the form that does not cancel, and holds for slope 0.
        time_s = self.start_s + 2.0 * expected / (self.start_rate + root)
        return min(time_s, math.nextafter(self.end_s, self.start_s))


@dataclass(frozen=True, slots=True)
class CrowdSpan:
    """A moment at which `size` arrivals are expected at once."""

    at_s: float
    size: float
    end_rate: float

    @property
    def expected(self) -> float:
        """Arrivals expected in it."""
        return self.size

    def time_of(self, expected: float) -> float:
        """The moment, whatever `expected` is."""
        return self.at_s


@dataclass(frozen=True, slots=True)
class SineSpan:
    """A stretch of time with the rate `mean + amplitude sin(2 pi t / period)`, t counted from `origin_s`."""

    start_s: float
    end_s: float
    mean: float
    amplitude: float
    period_s: float
    origin_s: float

    @property
    def expected(self) -> float:
        """Arrivals expected in the whole span."""
        return self._until(self.end_s) - self._until(self.start_s)

    @property
    def end_rate(self) -> float:
        """The rate at its end."""
        return self.rate_at(self.end_s)

    def rate_at(self, t_s: float) -> float:
        """The rate at `t_s`."""
        return self.mean + self.amplitude * cosine((t_s - self.origin_s) / self.period_s - 0.25)

    def time_of(self, expected: float) -> float:
        """The time at which this many arrivals are expected since the span's start; never at or past its end."""
        since_origin = self._until(self.start_s) + expected
        periods = math.floor(since_origin / (self.mean * self.period_s))
        turns = self._turns_of(since_origin - periods * (self.mean * self.period_s))
        time_s = self.origin_s + (periods + turns) * self.period_s
        return min(max(time_s, self.start_s), math.nextafter(self.end_s, self.start_s))

    def _until(self, t_s: float) -> float:
        """Arrivals expected from the origin to `t_s`."""
        turns = (t_s - self.origin_s) / self.period_s
        return self.period_s * self._within(turns)

    def _within(self, turns: float) -> float:
        """The integral of the rate over `turns` of a period, per second of period."""
        return self.mean * turns + self.amplitude * (1.0 - cosine(turns)) / (2.0 * math.pi)

    def _turns_of(self, expected: float) -> float:
        """The share of a period in which this many arrivals are expected: Newton's method within a bracket."""
        wanted = expected / self.period_s
        low, high = 0.0, 1.0
        turns = min(max(wanted / self.mean, 0.0), 1.0)
        for _ in range(64):
            beyond = self._within(turns) - wanted
            if beyond > 0.0:
                high = turns
            else:
                low = turns
            rate = self.mean + self.amplitude * cosine(turns - 0.25)
            step = turns - beyond / rate if rate > 0.0 else math.inf
            nearer = step if low <= step <= high else (low + high) / 2.0
            moved, turns = abs(nearer - turns), nearer
            if moved <= _CLOSE_TURNS:
                break
        return turns


class RateProfile:
    """The rate over a round, as spans that follow each other."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self.spans = tuple(spans)
        self._expected_at_end = tuple(accumulate(span.expected for span in spans))

    @property
    def expected(self) -> float:
        """Arrivals expected in the whole round."""
        return self._expected_at_end[-1]

    def time_of(self, expected: float) -> float:
        """The time in seconds at which `expected` (from 0 to below the whole round's) arrivals are expected."""
        index = min(bisect_right(self._expected_at_end, expected), len(self.spans) - 1)
        before = self._expected_at_end[index - 1] if index else 0.0
        return self.spans[index].time_of(expected - before)


def lay_out_phases(phases: Sequence[Phase]) -> tuple[PhaseSpan, ...]:
    """The phases end to end from time zero."""
    ends = list(accumulate(phase.for_s for phase in phases))
    starts = [0.0, *ends[:-1]]
    return tuple(
        PhaseSpan(name=phase.name, start_s=start, end_s=end, measured=phase.measured)
        for phase, start, end in zip(phases, starts, ends, strict=True)
    )


def rate_profile(arrivals: Arrivals, phases: Sequence[Phase]) -> RateProfile:
    """The rate that the user asked for.

    A phase without a rate has `arrivals.rate`, or without that the rate at which the phase before it ended; a ramp
    starts from where the phase before it ended. The clock of a shape in `arrivals.rate` is the round's, of one in a
    phase the phase's own. InputError when there is no rate to start from, or a shape repeats without end.
    """
    spans: list[Span] = []
    for index, (phase, laid) in enumerate(zip(phases, lay_out_phases(phases), strict=True)):
        path: KeyPath = ("arrivals", "rate") if phase.rate is None else ("phases", index, "rate")
        with about(*path):
            spans += _spans(arrivals, phase, laid, spans)
    return RateProfile(spans)


def _spans(arrivals: Arrivals, phase: Phase, laid: PhaseSpan, before: Sequence[Span]) -> list[Span]:
    """Of one phase, after those `before` it."""
    if isinstance(phase.rate, RateTarget):
        start = before[-1].end_rate if before else _at_zero(arrivals.rate)
        if start is None:
            raise _no_rate(phase)
        return [RateSpan(laid.start_s, laid.end_s, start, phase.rate.to)]
    if phase.rate is not None:
        return list(_shaped(phase.rate, laid, laid.start_s))
    if arrivals.rate is not None:
        return list(_shaped(arrivals.rate, laid, 0.0))
    if before:
        return [RateSpan(laid.start_s, laid.end_s, before[-1].end_rate, before[-1].end_rate)]
    raise _no_rate(phase)


def _no_rate(phase: Phase) -> InputError:
    return InputError(
        f"phase {phase.name!r} has no rate to start from",
        do="give arrivals.rate, or a rate in the first phase, such as 4/s",
    )


def _at_zero(rate: float | Sinusoid | OnOff | Burst | None) -> float | None:
    """The rate with which a shape begins; of a burst, what goes on beside it."""
    match rate:
        case Sinusoid(sinusoid=shape):
            return shape.mean
        case OnOff(on_off=shape):
            return shape.rate
        case Burst(burst=shape):
            return shape.base or 0.0
        case _:
            return rate


def _shaped(rate: float | Sinusoid | OnOff | Burst, phase: PhaseSpan, origin_s: float) -> Iterator[Span]:
    """The spans of a phase with this rate, whose clock starts at `origin_s`."""
    match rate:
        case Sinusoid(sinusoid=shape):
            yield SineSpan(phase.start_s, phase.end_s, shape.mean, shape.amplitude, shape.period, origin_s)
        case OnOff(on_off=shape):
            for start_s in _cycles(phase, origin_s, shape.on + shape.off):
                yield from _steady(phase, start_s, start_s + shape.on, shape.rate)
                yield from _steady(phase, start_s + shape.on, start_s + shape.on + shape.off, shape.base or 0.0)
        case Burst(burst=shape):
            base = shape.base or 0.0
            for start_s in _cycles(phase, origin_s, shape.every):
                if shape.over:
                    yield from _steady(phase, start_s, start_s + shape.over, base + shape.size / shape.over)
                elif phase.start_s <= start_s < phase.end_s:
                    yield CrowdSpan(start_s, float(shape.size), base)
                yield from _steady(phase, start_s + shape.over, start_s + shape.every, base)
        case _:
            yield RateSpan(phase.start_s, phase.end_s, rate, rate)


def _cycles(phase: PhaseSpan, origin_s: float, cycle_s: float) -> Iterator[float]:
    """The beginnings of the cycles that reach into the phase."""
    first = math.floor((phase.start_s - origin_s) / cycle_s)
    count = math.ceil((phase.end_s - origin_s) / cycle_s) - first
    if count > _MOST_CYCLES:
        raise InputError(
            f"the rate of phase {phase.name!r} repeats {count:,} times", do=f"at most {_MOST_CYCLES:,} are played"
        )
    # One more on either side, for what rounding may have cut off: what lies outside the phase yields nothing.
    return (origin_s + index * cycle_s for index in range(max(first - 1, 0), first + count + 1))


def _steady(phase: PhaseSpan, start_s: float, end_s: float, rate: float) -> Iterator[Span]:
    """A steady rate as far as it lies within the phase."""
    start_s, end_s = max(start_s, phase.start_s), min(end_s, phase.end_s)
    if start_s < end_s:
        yield RateSpan(start_s, end_s, rate, rate)
