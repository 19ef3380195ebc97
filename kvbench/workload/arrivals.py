"""When requests (or sessions) begin: pure functions from a rate profile and a random stream to times in seconds.

Every open-loop process is a unit-rate process carried through the inverse of the expected count (time-change): a
ramp of a Poisson process is exactly the non-homogeneous Poisson process, and one of a constant process is even in
expected count. Closed loops have no times; see `build`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, count, repeat

from kvbench.errors import InputError, NotSupportedYetError
from kvbench.spec.workload import Arrivals, Phase, RateTarget
from kvbench.workload.randomness import Stream
from kvbench.workload.schedule import PhaseSpan

__all__ = [
    "MOST_REQUESTS",
    "RateProfile",
    "RateSpan",
    "arrival_times",
    "constant",
    "gamma",
    "lay_out_phases",
    "poisson",
    "rate_profile",
]

MOST_REQUESTS = 1_000_000
"""A round with more is a slip of a unit: at 100 requests a second it would take three hours."""


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
        slope = (self.end_rate - self.start_rate) / (self.end_s - self.start_s)
        root = math.sqrt(max(0.0, self.start_rate * self.start_rate + 2.0 * slope * expected))
        # 2x / (r + root) is the quadratic formula in the form that does not cancel, and holds for slope 0.
        time_s = self.start_s + 2.0 * expected / (self.start_rate + root)
        return min(time_s, math.nextafter(self.end_s, self.start_s))


class RateProfile:
    """The rate over a round, as spans that follow each other."""

    def __init__(self, spans: Sequence[RateSpan]) -> None:
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
    starts from where the phase before it ended. InputError when there is no rate to start from.
    """
    spans: list[RateSpan] = []
    for phase, laid in zip(phases, lay_out_phases(phases), strict=True):
        before = spans[-1].end_rate if spans else arrivals.rate
        if isinstance(phase.rate, RateTarget):
            start, end = before, phase.rate.to
        else:
            start = phase.rate or arrivals.rate or before
            end = start or 0.0
        if start is None:
            raise InputError(
                f"phase {phase.name!r} has no rate to start from",
                do="give arrivals.rate, or a rate in the first phase, such as 4/s",
            )
        spans.append(RateSpan(laid.start_s, laid.end_s, start, end))
    return RateProfile(spans)


def _renewals(profile: RateProfile, gaps: Iterator[float]) -> list[float]:
    """Arrival times of the unit-rate process with these gaps, carried through the profile."""
    times: list[float] = []
    for position in accumulate(gaps):
        if position >= profile.expected:
            break
        times.append(profile.time_of(position))
    return times


def poisson(profile: RateProfile, stream: Stream) -> list[float]:
    """The (non-homogeneous) Poisson process of this rate."""
    return _renewals(profile, (stream.exponential() for _ in repeat(None)))


def constant(profile: RateProfile) -> list[float]:
    """One arrival at time zero and one whenever a whole arrival more is expected."""
    return _renewals(profile, (float(index > 0) for index in count()))


def gamma(profile: RateProfile, cv: float, stream: Stream) -> list[float]:
    """Gaps with a gamma distribution and this coefficient of variation (1 is Poisson; above it, bursts).

    The first gap is the residual life of a gap (U times a length-biased gap, which is gamma of shape + 1), so that
    the process is stationary from the start and its expected count is exactly the profile's.
    """
    shape = 1.0 / (cv * cv)

    def gaps() -> Iterator[float]:
        yield stream.uniform() * stream.gamma(shape + 1.0) / shape
        while True:
            yield stream.gamma(shape) / shape

    return _renewals(profile, gaps())


def arrival_times(arrivals: Arrivals, phases: Sequence[Phase], stream: Stream) -> list[float]:
    """Ascending times in seconds of an open-loop process. InputError when the file does not say enough."""
    if arrivals.process == "trace":
        raise NotSupportedYetError("arrivals from a trace")
    profile = rate_profile(arrivals, phases)
    if profile.expected > MOST_REQUESTS:
        raise InputError(
            f"{profile.expected:.3g} arrivals in one round are more than {MOST_REQUESTS}",
            do="lower the rate or shorten the phases",
        )
    if arrivals.process == "poisson":
        return poisson(profile, stream)
    if arrivals.process == "constant":
        return constant(profile)
    if arrivals.gamma is None:
        raise InputError("gamma arrivals need a coefficient of variation", do="write gamma: {cv: 2}")
    return gamma(profile, arrivals.gamma.cv, stream)
