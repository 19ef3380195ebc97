"""Quantities as users write them: a number with a unit, or a plain number in the base unit.

Base units: bytes, seconds, per second, fraction. `4/s`, `16GiB`, `250ms`, `0.1%`. Plain numbers and counts too.
"""

from __future__ import annotations

import math
import re
from typing import Annotated

from pydantic import BeforeValidator, Field

from kvbench.spec.bounds import (
    BANDWIDTH,
    LARGEST_SEED,
    LONGEST_S,
    MOST_COUNT,
    RATE,
    SIZE,
    TIME,
    between,
    within,
    zero_or_between,
)

__all__ = [
    "Bandwidth",
    "ByteSize",
    "Cost",
    "Count",
    "CountFromZero",
    "Fraction",
    "Number",
    "PositiveSeconds",
    "Rate",
    "Seconds",
    "Seed",
    "Whole",
    "parse_number",
    "parse_quantity",
    "show_bytes",
    "show_seconds",
]

_BYTES = {"B": 1.0, **{p + "B": 1000.0**n for n, p in enumerate("kMGTP", 1)}, "KB": 1000.0}
_BYTES |= {p + "iB": 1024.0**n for n, p in enumerate("KMGTP", 1)}
_SECONDS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_RATES = {"/s": 1.0, "/m": 1 / 60, "/min": 1 / 60, "/h": 1 / 3600}
UNITS: dict[str, dict[str, float]] = {
    "bytes": _BYTES,
    "seconds": _SECONDS,
    "per second": _RATES,
    "bytes per second": {f"{unit}/s": factor for unit, factor in _BYTES.items()},
    "fraction": {"%": 0.01},
}
_EXAMPLES = {
    "bytes": "16GiB",
    "seconds": "250ms",
    "per second": "2/s",
    "bytes per second": "2GiB/s",
    "fraction": "0.1%",
}
_QUANTITY = re.compile(r"\s*([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*(\S*)\s*")
_CLOCK = re.compile(r"\d+(:\d\d)+(\.\d*)?")


def parse_quantity(value: object, kind: str) -> float:
    """Return `value` in the base unit of `kind` (a key of `UNITS`); ValueError says what would be valid."""
    example = _EXAMPLES[kind]
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"expected a quantity in {kind} such as {example}, got {_show(value)}")
    if not isinstance(value, str):
        return _finite(value, value)
    if _CLOCK.fullmatch(value.strip()):
        raise ValueError(
            f"{_show(value)} is not a quantity: write a number with a unit, not colons, such as {example}"
        )
    match = _QUANTITY.fullmatch(value)
    if match is None:
        raise ValueError(f"{_show(value)} is not a quantity: write a number with a unit such as {example}")
    number, unit = match[1], match[2]
    if unit and unit not in UNITS[kind]:
        raise ValueError(f"{_show(value)} has no unit of {kind}; valid units: {', '.join(UNITS[kind])}")
    return _finite(float(number) * UNITS[kind].get(unit, 1.0), value)


def _finite(number: float, written: object) -> float:
    try:
        amount = float(number)
    except OverflowError:
        amount = math.inf
    if not math.isfinite(amount):
        raise ValueError(f"{_show(written)} is not a finite number")
    return amount


def _show(value: object) -> str:
    """As the user would write it."""
    text = str(value).lower() if isinstance(value, bool) else "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _parser(kind: str) -> BeforeValidator:
    return BeforeValidator(lambda value: parse_quantity(value, kind))


def _whole_bytes(value: object) -> int:
    return round(parse_quantity(value, "bytes"))


def _whole(value: object) -> int:
    """Counts carry no unit; `12`, `12.0` and `"12"` are twelve, `true` is not one."""
    try:
        number = parse_number(value)
    except ValueError:
        number = math.nan
    if number != round(number) if math.isfinite(number) else True:
        raise ValueError(f"expected a whole number, got {_show(value)}")
    return round(number) if not isinstance(value, int) else value


def parse_number(value: object) -> float:
    """A number without a unit."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"expected a number, got {_show(value)}")
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if isinstance(value, str) and (match is None or match[2]):
        raise ValueError(f"expected a plain number, got {_show(value)}")
    return _finite(float(value) if isinstance(value, str) else value, value)


Whole = Annotated[int, BeforeValidator(_whole)]
Number = Annotated[float, BeforeValidator(parse_number)]
Count = Annotated[Whole, Field(ge=1), between(1, MOST_COUNT)]
CountFromZero = Annotated[Whole, Field(ge=0), between(0, MOST_COUNT)]
Seed = Annotated[Whole, between(-LARGEST_SEED, LARGEST_SEED)]
ByteSize = Annotated[int, BeforeValidator(_whole_bytes), Field(gt=0), within(SIZE)]
Bandwidth = Annotated[float, _parser("bytes per second"), Field(gt=0), within(BANDWIDTH)]
Seconds = Annotated[float, _parser("seconds"), Field(ge=0), zero_or_between(TIME)]
PositiveSeconds = Annotated[float, _parser("seconds"), Field(gt=0), within(TIME)]
Cost = Annotated[float, _parser("seconds"), Field(ge=0, le=LONGEST_S)]
"""Seconds of work for one thing of many, so that nanoseconds count, too."""
Rate = Annotated[float, _parser("per second"), Field(gt=0), within(RATE)]
Fraction = Annotated[float, _parser("fraction"), Field(ge=0, le=1)]


def show_bytes(amount: float) -> str:
    """Binary units with three significant digits: `48 MiB`."""
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(amount) >= factor:
            return f"{amount / factor:.3g} {unit}"
    return f"{amount:.0f} B"


def show_seconds(amount: float) -> str:
    """The unit that reads best, three significant digits: `182 ms`, `1.2 s`, `4 min 10 s`."""
    size = abs(amount)
    if size >= 120:
        minutes, seconds = divmod(round(amount), 60)
        return f"{minutes} min {seconds} s" if seconds else f"{minutes} min"
    if size >= 1 or size == 0:
        return f"{amount:.3g} s"
    return f"{amount * 1e3:.3g} ms" if size >= 1e-3 else f"{amount * 1e6:.3g} µs"
