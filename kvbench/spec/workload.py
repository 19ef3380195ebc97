"""A workload: arrivals, phases and classes of requests, as the user writes it.

Lengths in tokens, times in seconds, rates per second after loading.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from kvbench.spec.model import Misfit, Name, SpecFile, SpecModel
from kvbench.spec.quantity import Fraction, Number, PositiveSeconds, Rate, Seconds, Whole

__all__ = [
    "Arrivals",
    "Class",
    "Empirical",
    "Geometric",
    "Length",
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

Tokens = Annotated[Whole, Field(ge=1)]


def _form(*keys: str, bare: type | tuple[type, ...] = (int, float, str)) -> Callable[[object], str | None]:
    """Which of several written forms a value has: "bare", or the one of `keys` that it carries."""

    def form(value: object) -> str | None:
        if isinstance(value, SpecModel):
            fields = type(value).model_fields
            return next((key for key in keys if key in fields), None)
        if isinstance(value, dict):
            return next((key for key in keys if key in value), None)
        return "bare" if isinstance(value, bare) else None

    return form


class Uniform(SpecModel):
    """Whole numbers from a to b, both included."""

    uniform: tuple[Tokens, Tokens]

    @field_validator("uniform")
    @classmethod
    def _rising(cls, value: tuple[int, int]) -> tuple[int, int]:
        if value[0] > value[1]:
            raise ValueError(f"the smaller number comes first, got {list(value)}")
        return value


def _spread(median: float, p95: float) -> None:
    if p95 < median:
        raise Misfit((("p95",), f"the 95th percentile cannot lie below the median, {median:g}"))


class LogNormalShape(SpecModel):
    median: Annotated[Number, Field(gt=0)]
    p95: Annotated[Number, Field(gt=0)]

    @model_validator(mode="after")
    def _fits(self) -> LogNormalShape:
        _spread(self.median, self.p95)
        return self


class LogNormal(SpecModel):
    """Lognormal by its median and 95th percentile, rounded, at least 1."""

    lognormal: LogNormalShape


class GeometricShape(SpecModel):
    mean: Annotated[Number, Field(ge=1)]


class Geometric(SpecModel):
    """Geometric on 1, 2, ... by its mean."""

    geometric: GeometricShape


class Empirical(SpecModel):
    """One whole number per line of a file, drawn with replacement. Loading reads the file into `values`."""

    empirical: Path
    values: tuple[Tokens, ...] = ()


Length = Annotated[
    Annotated[Tokens, Tag("bare")]
    | Annotated[Uniform, Tag("uniform")]
    | Annotated[LogNormal, Tag("lognormal")]
    | Annotated[Geometric, Tag("geometric")]
    | Annotated[Empirical, Tag("empirical")],
    Discriminator(
        _form("uniform", "lognormal", "geometric", "empirical"),
        custom_error_type="form",
        custom_error_message=(
            "expected a whole number or one of {uniform: [a, b]}, {lognormal: {median, p95}}, "
            "{geometric: {mean}}, {empirical: FILE}"
        ),
    ),
]


class ThinkShape(SpecModel):
    median: PositiveSeconds
    p95: PositiveSeconds

    @model_validator(mode="after")
    def _fits(self) -> ThinkShape:
        _spread(self.median, self.p95)
        return self


class ThinkLogNormal(SpecModel):
    lognormal: ThinkShape


Think = Annotated[
    Annotated[Seconds, Tag("bare")] | Annotated[ThinkLogNormal, Tag("lognormal")],
    Discriminator(
        _form("lognormal"),
        custom_error_type="form",
        custom_error_message="expected a time such as 30s, or {lognormal: {median, p95}}",
    ),
]


class Zipf(SpecModel):
    """Popularity of rank r is proportional to r ** -zipf; 0 is uniform."""

    zipf: Annotated[Number, Field(ge=0)]


class WorkingSet(SpecModel):
    """The pool is sized so that its prefixes together are `times` the capacity of a tier."""

    of: Literal["device", "host", "disk"]
    times: Annotated[Number, Field(gt=0)]


Popularity = Annotated[
    Annotated[Literal["uniform"], Tag("bare")] | Annotated[Zipf, Tag("zipf")],
    Discriminator(
        _form("zipf", bare=str),
        custom_error_type="form",
        custom_error_message="expected uniform, or {zipf: EXPONENT}",
    ),
]


class Prefix(SpecModel):
    """A pool of shared beginnings; exactly one of `pool` and `working_set`."""

    tokens: Length
    pool: Tokens | None = None
    working_set: WorkingSet | None = None
    popularity: Popularity = "uniform"

    @model_validator(mode="after")
    def _one_size(self) -> Prefix:
        if self.pool is None and self.working_set is None:
            raise Misfit(((), "needs a size: pool: N, or working_set: {of: device, times: 3}"))
        if self.pool is not None and self.working_set is not None:
            raise Misfit((("working_set",), "give pool or working_set, not both"))
        return self


class Targets(SpecModel):
    """Latency targets of a class, for goodput."""

    ttft: PositiveSeconds | None = None
    itl: PositiveSeconds | None = None
    tpot: PositiveSeconds | None = None
    e2e: PositiveSeconds | None = None


class Class(SpecModel):
    """A kind of request. With `turns` it is a session: each turn carries the turns before it."""

    weight: Annotated[Number, Field(gt=0)] = 1.0
    prefix: Prefix | None = None
    suffix_tokens: Length
    output_tokens: Length
    turns: Length | None = None
    think: Think | None = None
    targets: Targets = Targets()

    @model_validator(mode="after")
    def _think_between_turns(self) -> Class:
        if self.think is not None and self.turns is None:
            raise Misfit((("think",), "think time lies between turns; add turns"))
        return self


class Gamma(SpecModel):
    cv: Annotated[Number, Field(gt=0)]


class Closed(SpecModel):
    concurrency: Annotated[Whole, Field(ge=1)]


class TraceSource(SpecModel):
    path: Path
    format: str | None = None
    speed: Annotated[Number, Field(gt=0)] = 1.0


_OWN_SETTINGS = ("gamma", "closed", "trace")


class Arrivals(SpecModel):
    """When requests (or sessions) begin.

    The settings of a process may also be written under it (`process: {gamma: {cv: 2}}`) or in its place
    (`closed: {concurrency: 4}`).
    """

    process: Literal["poisson", "gamma", "constant", "closed", "trace"]
    rate: Rate | None = None
    gamma: Gamma | None = None
    closed: Closed | None = None
    trace: TraceSource | None = None

    @model_validator(mode="before")
    @classmethod
    def _one_spelling(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        process = data.get("process")
        if isinstance(process, dict):
            if len(process) != 1 or (name := next(iter(process))) not in _OWN_SETTINGS:
                raise Misfit((("process",), "expected one process, such as poisson or {gamma: {cv: 2}}"))
            if name in data:
                raise Misfit(((name,), f"the settings of {name} are given twice"))
            return {**data, "process": name, name: process[name]}
        given = [name for name in _OWN_SETTINGS if name in data]
        return {**data, "process": given[0]} if process is None and len(given) == 1 else data

    @model_validator(mode="after")
    def _fits(self) -> Arrivals:
        problems: list[tuple[tuple[str, ...], str]] = []
        for name in _OWN_SETTINGS:
            if name == self.process and getattr(self, name) is None:
                example = {"gamma": "{cv: 2}", "closed": "{concurrency: 4}", "trace": "{path: FILE}"}[name]
                problems.append((("process",), f"process {name} needs {name}: {example}"))
            if name != self.process and getattr(self, name) is not None:
                problems.append(((name,), f"has no effect with process {self.process}"))
        open_loop = self.process in ("poisson", "gamma", "constant")
        if open_loop and self.rate is None:
            problems.append((("process",), f"process {self.process} needs rate, such as 4/s"))
        if not open_loop and self.rate is not None:
            reason = "a request follows another" if self.process == "closed" else "the trace says when (see speed)"
            problems.append((("rate",), f"has no effect with process {self.process}: {reason}"))
        if problems:
            raise Misfit(*problems)
        return self


class RateTarget(SpecModel):
    """The rate moves linearly from the one before to `to` over the phase."""

    to: Rate


PhaseRate = Annotated[
    Annotated[Rate, Tag("bare")] | Annotated[RateTarget, Tag("to")],
    Discriminator(
        _form("to"),
        custom_error_type="form",
        custom_error_message="expected a rate such as 4/s, or {to: 12/s} for a ramp",
    ),
]


class Phase(SpecModel):
    """A stretch of the round; in order."""

    name: Name
    for_s: PositiveSeconds = Field(alias="for")
    measured: bool = True
    rate: PhaseRate | None = None


class Workload(SpecFile):
    """One YAML file. `prime` says how the tiers are filled before the first phase."""

    name: Name
    seed: Annotated[Whole, Field(ge=0)] = 1
    arrivals: Arrivals
    phases: Annotated[list[Phase], Field(min_length=1)]
    classes: Annotated[dict[Name, Class], Field(min_length=1)]
    think_scale: Annotated[Number, Field(gt=0)] = 1.0
    repeat: Fraction = 0.0
    tier_holdout: Fraction = 0.0
    prime: Literal["none", "each_prefix_once"] = "none"
    """`each_prefix_once` sends every prefix of every pool once, one at a time, before the first phase."""
    request_timeout: PositiveSeconds = 120.0
    """A request that is not complete by then has failed; failures count at this value in every latency."""

    @model_validator(mode="after")
    def _fits(self) -> Workload:
        problems: list[tuple[tuple[str | int, ...], str]] = []
        seen: set[str] = set()
        for i, phase in enumerate(self.phases):
            if phase.name == "prime":
                problems.append((("phases", i, "name"), "prime is the name of the filling before the first phase"))
            if phase.name in seen:
                problems.append((("phases", i, "name"), f"another phase is called {phase.name}"))
            seen.add(phase.name)
            if phase.rate is not None and self.arrivals.rate is None:
                problems.append((("phases", i, "rate"), f"has no effect with process {self.arrivals.process}"))
        if not any(phase.measured for phase in self.phases):
            problems.append((("phases",), "no phase is measured, so nothing could be judged"))
        if "all" in self.classes:
            problems.append((("classes", "all"), "rules use the word all for every class; choose another name"))
        if problems:
            raise Misfit(*problems)
        return self
