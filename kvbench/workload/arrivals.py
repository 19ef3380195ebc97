"""When requests (or sessions) begin: pure functions from a rate profile and a random stream to times in seconds.

Every open-loop process is a unit-rate process carried through the inverse of the expected count (time-change): a
ramp, a sinusoid or an on/off of a Poisson process is exactly the non-homogeneous Poisson process, and of a constant
process it is even in expected count. Closed loops have no times; see `build`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, count, repeat

from kvbench.errors import InputError
from kvbench.spec.workload import Arrivals, Phase
from kvbench.workload.randomness import Stream
from kvbench.workload.rates import RateProfile, rate_profile

__all__ = ["MOST_REQUESTS", "arrival_times", "constant", "gamma", "poisson"]

MOST_REQUESTS = 1_000_000
"""A round with more is a slip of a unit: at 100 requests a second it would take three hours."""


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
    """Ascending times in seconds of an open-loop process; a trace has its own, see `replay`.

    InputError when the file does not say enough.
    """
    profile = rate_profile(arrivals, phases)
    if profile.expected > MOST_REQUESTS:
        raise InputError(
            f"{profile.expected:.3g} arrivals in one round are more than {MOST_REQUESTS}",
            key=("arrivals", "rate"),
            do="lower the rate or shorten the phases",
        )
    if arrivals.process == "poisson":
        return poisson(profile, stream)
    if arrivals.process == "constant":
        return constant(profile)
    if arrivals.gamma is None:
        raise InputError(
            "gamma arrivals need a coefficient of variation",
            key=("arrivals", "gamma"),
            do="write gamma: {cv: 2}",
        )
    return gamma(profile, arrivals.gamma.cv, stream)
