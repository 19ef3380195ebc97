"""Lengths (tokens or turns) and think times (seconds) as users write them: a number or a distribution."""

from __future__ import annotations

from typing import Annotated

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from kvbench.spec.bounds import MOST_TOKENS, between
from kvbench.spec.forms import form
from kvbench.spec.model import Misfit, SpecModel
from kvbench.spec.paths import UserPath
from kvbench.spec.quantity import Number, PositiveSeconds, Seconds, Whole

__all__ = [
    "Empirical",
    "Geometric",
    "Length",
    "LogNormal",
    "Think",
    "ThinkLogNormal",
    "Tokens",
    "Uniform",
    "usual_length",
]

Tokens = Annotated[Whole, Field(ge=1), between(1, MOST_TOKENS)]
"""Of tokens or turns; what else counts from 1 is a `Count`."""
SHORTEST_MEDIAN = 0.001
"""Draws are rounded to at least 1 anyway; and the spread to `MOST_TOKENS` stays one whose powers are finite."""
_Middle = Annotated[Number, Field(gt=0), between(SHORTEST_MEDIAN, MOST_TOKENS)]


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
    median: _Middle
    p95: _Middle

    @model_validator(mode="after")
    def _fits(self) -> LogNormalShape:
        _spread(self.median, self.p95)
        return self


class LogNormal(SpecModel):
    """Lognormal by its median and 95th percentile, rounded, at least 1 and at most `MOST_TOKENS`."""

    lognormal: LogNormalShape


class GeometricShape(SpecModel):
    mean: Annotated[Number, Field(ge=1), between(1, MOST_TOKENS)]


class Geometric(SpecModel):
    """Geometric on 1, 2, ... by its mean, at most `MOST_TOKENS`."""

    geometric: GeometricShape


class Empirical(SpecModel):
    """One whole number per line of a file, drawn with replacement. Loading reads the file into `values`."""

    empirical: UserPath
    values: tuple[Tokens, ...] = ()


Length = Annotated[
    Annotated[Tokens, Tag("bare")]
    | Annotated[Uniform, Tag("uniform")]
    | Annotated[LogNormal, Tag("lognormal")]
    | Annotated[Geometric, Tag("geometric")]
    | Annotated[Empirical, Tag("empirical")],
    Discriminator(
        form("uniform", "lognormal", "geometric", "empirical"),
        custom_error_type="form",
        custom_error_message=(
            "expected a whole number or one of {uniform: [a, b]}, {lognormal: {median, p95}}, "
            "{geometric: {mean}}, {empirical: FILE}"
        ),
    ),
]


def usual_length(length: Length) -> float:
    """The number itself; of a distribution its mean, or the largest of its ordinary draws."""
    match length:
        case Uniform(uniform=(_, largest)):
            return largest
        case LogNormal(lognormal=shape):
            return shape.p95
        case Geometric(geometric=shape):
            return shape.mean
        case Empirical(values=values):
            return max(values, default=0)
        case int():
            return length


class ThinkShape(SpecModel):
    median: PositiveSeconds
    p95: PositiveSeconds

    @model_validator(mode="after")
    def _fits(self) -> ThinkShape:
        _spread(self.median, self.p95)
        return self


class ThinkLogNormal(SpecModel):
    """Lognormal by its median and 95th percentile; at most `LONGEST_S`."""

    lognormal: ThinkShape


Think = Annotated[
    Annotated[Seconds, Tag("bare")] | Annotated[ThinkLogNormal, Tag("lognormal")],
    Discriminator(
        form("lognormal"),
        custom_error_type="form",
        custom_error_message="expected a time such as 30s, or {lognormal: {median, p95}}",
    ),
]
