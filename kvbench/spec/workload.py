"""A workload: arrivals, phases and classes of requests, as the user writes it.

Lengths in tokens, times in seconds, rates per second after loading.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from kvbench.spec.profile import SpecModel
from kvbench.spec.quantity import Fraction, PositiveSeconds, Rate

__all__ = [
    "Arrivals",
    "Class",
    "Empirical",
    "Geometric",
    "LogNormal",
    "Phase",
    "Prefix",
    "RateTarget",
    "Targets",
    "Think",
    "ThinkLogNormal",
    "TraceSource",
    "Uniform",
    "WorkingSet",
    "Workload",
    "Zipf",
]

Tokens = Annotated[int, Field(ge=1)]


class Uniform(SpecModel):
    """Whole numbers from a to b, both included."""

    uniform: tuple[Tokens, Tokens]


class LogNormalShape(SpecModel):
    median: Annotated[float, Field(gt=0)]
    p95: Annotated[float, Field(gt=0)]


class LogNormal(SpecModel):
    """Lognormal by its median and 95th percentile, rounded, at least 1."""

    lognormal: LogNormalShape


class GeometricShape(SpecModel):
    mean: Annotated[float, Field(ge=1)]


class Geometric(SpecModel):
    """Geometric on 1, 2, ... by its mean."""

    geometric: GeometricShape


class Empirical(SpecModel):
    """One whole number per line of a file; drawn with replacement."""

    empirical: Path


Length = Tokens | Uniform | LogNormal | Geometric | Empirical


class ThinkShape(SpecModel):
    median: PositiveSeconds
    p95: PositiveSeconds


class ThinkLogNormal(SpecModel):
    lognormal: ThinkShape


Think = PositiveSeconds | ThinkLogNormal


class Zipf(SpecModel):
    """Popularity of rank r is proportional to r ** -zipf; 0 is uniform."""

    zipf: Annotated[float, Field(ge=0)]


class WorkingSet(SpecModel):
    """The pool is sized so that its prefixes together are `times` the capacity of a tier."""

    of: Literal["device", "host", "disk"]
    times: Annotated[float, Field(gt=0)]


class Prefix(SpecModel):
    """A pool of shared beginnings; exactly one of `pool` and `working_set`."""

    tokens: Length
    pool: Tokens | None = None
    working_set: WorkingSet | None = None
    popularity: Literal["uniform"] | Zipf = "uniform"


class Targets(SpecModel):
    """Latency targets of a class, for goodput."""

    ttft: PositiveSeconds | None = None
    itl: PositiveSeconds | None = None
    tpot: PositiveSeconds | None = None
    e2e: PositiveSeconds | None = None


class Class(SpecModel):
    """A kind of request. With `turns` it is a session: each turn carries the turns before it."""

    weight: Annotated[float, Field(gt=0)] = 1.0
    prefix: Prefix | None = None
    suffix_tokens: Length
    output_tokens: Length
    turns: Length | None = None
    think: Think | None = None
    targets: Targets = Targets()


class Gamma(SpecModel):
    cv: Annotated[float, Field(gt=0)]


class Closed(SpecModel):
    concurrency: Annotated[int, Field(ge=1)]


class TraceSource(SpecModel):
    path: Path
    format: str | None = None
    speed: Annotated[float, Field(gt=0)] = 1.0


class Arrivals(SpecModel):
    """When requests (or sessions) begin."""

    process: Literal["poisson", "gamma", "constant", "closed", "trace"]
    rate: Rate | None = None
    gamma: Gamma | None = None
    closed: Closed | None = None
    trace: TraceSource | None = None


class RateTarget(SpecModel):
    """The rate moves linearly from the one before to `to` over the phase."""

    to: Rate


class Phase(SpecModel):
    """A stretch of the round; in order."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    for_s: PositiveSeconds = Field(alias="for")
    measured: bool = True
    rate: Rate | RateTarget | None = None


class Workload(SpecModel):
    """One YAML file. `fill` says how the tiers are primed before the first phase."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    seed: Annotated[int, Field(ge=0)] = 1
    arrivals: Arrivals
    phases: Annotated[list[Phase], Field(min_length=1)]
    classes: Annotated[dict[str, Class], Field(min_length=1)]
    think_scale: Annotated[float, Field(gt=0)] = 1.0
    repeat: Fraction = 0.0
    tier_holdout: Fraction = 0.0
    prime: Literal["none", "each_prefix_once"] = "none"
    """`each_prefix_once` sends every prefix of every pool once, one at a time, before the first phase."""
    request_timeout: PositiveSeconds = 120.0
    """A request that is not complete by then has failed; failures count at this value in every latency."""
