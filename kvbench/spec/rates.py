"""How the rate of arrivals goes along, as users write it. Per second and seconds after loading.

`4/s` is steady, `{sinusoid: {mean: 4/s, amplitude: 2/s, period: 60s}}` swings, `{burst: {size: 20, every: 30s}}`
comes in crowds, `{on_off: {rate: 8/s, on: 10s, off: 20s}}` comes and goes. Each stands in `arrivals.rate` (its
clock is then the round's and runs on through the phases) or in a phase's `rate` (it then starts with the phase).
`{to: 12/s}` is a ramp over its phase, another number a step. The process (poisson, gamma, constant) stays what it
is.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Discriminator, Field, Tag, model_validator

from kvbench.spec.bounds import MOST_BURST, between
from kvbench.spec.forms import form
from kvbench.spec.model import Misfit, SpecModel
from kvbench.spec.quantity import PositiveSeconds, Rate, Seconds, Whole, show_seconds

__all__ = ["ArrivalRate", "Burst", "OnOff", "PhaseRate", "RateTarget", "Sinusoid", "rate_in_words"]


class SinusoidShape(SpecModel):
    mean: Rate
    amplitude: Rate
    period: PositiveSeconds

    @model_validator(mode="after")
    def _fits(self) -> SinusoidShape:
        if self.amplitude > self.mean:
            raise Misfit((("amplitude",), f"a rate cannot fall below zero: at most the mean, {self.mean:g}/s"))
        return self


class Sinusoid(SpecModel):
    """The rate is `mean + amplitude sin(2 pi t / period)`: it begins at the mean and rises first."""

    sinusoid: SinusoidShape


class OnOffShape(SpecModel):
    rate: Rate
    on: PositiveSeconds
    off: PositiveSeconds
    base: Rate | None = None

    @model_validator(mode="after")
    def _fits(self) -> OnOffShape:
        if self.base is not None and self.base >= self.rate:
            raise Misfit((("base",), f"is the rate while off, which lies below the rate while on, {self.rate:g}/s"))
        return self


class OnOff(SpecModel):
    """`rate` for `on`, then `base` (nothing unless given) for `off`, and so on; it begins on."""

    on_off: OnOffShape


class BurstShape(SpecModel):
    size: Annotated[Whole, Field(ge=1), between(1, MOST_BURST)]
    every: PositiveSeconds
    over: Seconds = 0.0
    base: Rate | None = None

    @model_validator(mode="after")
    def _fits(self) -> BurstShape:
        if self.over >= self.every:
            raise Misfit((("over",), f"a burst is over before the next begins, after {show_seconds(self.every)}"))
        return self


class Burst(SpecModel):
    """`size` arrivals are expected within `over` (0: all at one moment), at once and then `every` so often, beside
    `base` (nothing unless given). A constant process has exactly that many, a Poisson process as many on average.
    """

    burst: BurstShape


class RateTarget(SpecModel):
    """The rate moves linearly from the one before to `to` over the phase."""

    to: Rate


_SHAPES = "{sinusoid: {mean, amplitude, period}}, {on_off: {rate, on, off}} or {burst: {size, every}}"

ArrivalRate = Annotated[
    Annotated[Rate, Tag("bare")]
    | Annotated[Sinusoid, Tag("sinusoid")]
    | Annotated[OnOff, Tag("on_off")]
    | Annotated[Burst, Tag("burst")],
    Discriminator(
        form("sinusoid", "on_off", "burst"),
        custom_error_type="form",
        custom_error_message=f"expected a rate such as 4/s, {_SHAPES}",
    ),
]

PhaseRate = Annotated[
    Annotated[Rate, Tag("bare")]
    | Annotated[RateTarget, Tag("to")]
    | Annotated[Sinusoid, Tag("sinusoid")]
    | Annotated[OnOff, Tag("on_off")]
    | Annotated[Burst, Tag("burst")],
    Discriminator(
        form("to", "sinusoid", "on_off", "burst"),
        custom_error_type="form",
        custom_error_message=f"expected a rate such as 4/s, or {{to: 12/s}} for a ramp, {_SHAPES}",
    ),
]


def rate_in_words(rate: float | RateTarget | Sinusoid | OnOff | Burst) -> str:
    """For people: `4/s`, `4/s ± 2/s every 60 s`, `8/s for 10 s, then nothing for 20 s`, `20 at once every 30 s`."""
    match rate:
        case RateTarget():
            return f"to {rate.to:.4g}/s"
        case Sinusoid(sinusoid=shape):
            return f"{shape.mean:.4g}/s ± {shape.amplitude:.4g}/s every {show_seconds(shape.period)}"
        case OnOff(on_off=shape):
            between = f"{shape.base:.4g}/s" if shape.base else "nothing"
            return f"{shape.rate:.4g}/s for {show_seconds(shape.on)}, then {between} for {show_seconds(shape.off)}"
        case Burst(burst=shape):
            within = f"within {show_seconds(shape.over)}" if shape.over else "at once"
            besides = f", {shape.base:.4g}/s besides" if shape.base else ""
            return f"{shape.size:,} {within} every {show_seconds(shape.every)}{besides}"
        case _:
            return f"{rate:.4g}/s"
