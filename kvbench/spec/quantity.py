"""Quantities as users write them: a number with a unit, or a plain number in the base unit.

Base units: bytes, seconds, per second, fraction. `4/s`, `16GiB`, `250ms`, `0.1%`.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, Field

__all__ = [
    "Bandwidth",
    "ByteSize",
    "Fraction",
    "PositiveSeconds",
    "Rate",
    "Seconds",
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


def parse_quantity(value: object, kind: str) -> float:
    """Return `value` in the base unit of `kind` (a key of `UNITS`); ValueError says what would be valid."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"expected a quantity in {kind} such as {_EXAMPLES[kind]}, got {value!r}")
    if isinstance(value, int | float):
        return float(value)
    match = _QUANTITY.fullmatch(value)
    units = UNITS[kind]
    if match is None:
        raise ValueError(f"{value!r} is not a quantity; write a number with a unit such as {_EXAMPLES[kind]}")
    number, unit = float(match[1]), match[2]
    if unit == "":
        return number
    if unit not in units:
        raise ValueError(f"{value!r} has no unit of {kind}; valid units: {', '.join(units)}")
    return number * units[unit]


def _parser(kind: str) -> BeforeValidator:
    return BeforeValidator(lambda value: parse_quantity(value, kind))


def _whole_bytes(value: object) -> int:
    amount = parse_quantity(value, "bytes")
    if amount != amount or abs(amount) == float("inf"):
        raise ValueError(f"{value!r} is not a size")
    return round(amount)


ByteSize = Annotated[int, BeforeValidator(_whole_bytes), Field(gt=0)]
Bandwidth = Annotated[float, _parser("bytes per second"), Field(gt=0, allow_inf_nan=False)]
Seconds = Annotated[float, _parser("seconds"), Field(ge=0, allow_inf_nan=False)]
PositiveSeconds = Annotated[float, _parser("seconds"), Field(gt=0, allow_inf_nan=False)]
Rate = Annotated[float, _parser("per second"), Field(gt=0, allow_inf_nan=False)]
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
