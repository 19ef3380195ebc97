"""Reads what `kvbench probe` wrote: TTFT by source and prefix length, as curves. Seconds, tokens."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvbench.errors import InputError, Where
from kvbench.plan.costs import fit_cost

__all__ = ["Curve", "ProbeFile", "read_probe"]

SUFFIX_TOKENS = 8
"""Behind every prefix that a probe sends, and always computed."""


_WRONG = (AttributeError, KeyError, OverflowError, TypeError, ValueError)


@dataclass(frozen=True)
class Curve:
    """TTFT = base + slope × tokens + bend × tokens²."""

    base_s: float
    slope_s: float
    bend_s: float = 0.0


@dataclass(frozen=True)
class ProbeFile:
    """The sources that were measured; `computed` is always there."""

    path: Path
    curves: Mapping[str, Curve]
    itl_s: Mapping[int, float] = field(default_factory=dict)
    """Gap between tokens while so many requests decode; empty: not in this probe."""
    suffixes: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """TTFT by (prefix on the device, tokens computed behind it); empty: not in this probe."""
    background_per_s: float | None = None
    """It also probed beside so many other requests. What it saw there is not in `curves`."""


def read_probe(path: Path) -> ProbeFile:
    """From the file. InputError when it is none, or tells nothing of computing."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=Where(path)) from None
    except (ValueError, RecursionError):
        raise InputError("expected the JSON that `kvbench probe --json` prints", where=Where(path)) from None
    if not isinstance(document, dict) or not isinstance(document.get("cost_per_token_s"), dict):
        raise InputError("expected the JSON that `kvbench probe --json` prints", where=Where(path))
    curves = {
        source: curve
        for source in ("computed", "device", "host", "disk")
        if (curve := _curve(document, source, path)) is not None
    }
    if "computed" not in curves:
        raise InputError(
            "this probe does not say what computing a token costs", where=Where(path), do="probe again, for longer"
        )
    return ProbeFile(path, curves, _decode(document, path), _suffixes(document, path), _background(document, path))


def _finite(value: float | str) -> float:
    """ValueError or OverflowError for what is no number that a probe measures."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(value)
    return number


def _decode(document: dict[str, Any], path: Path) -> dict[int, float]:
    try:
        return {int(each["requests"]): _finite(each["itl_s"]) for each in document.get("decode") or ()}
    except _WRONG:
        raise InputError("what it says of decoding is no probe's", where=Where(path)) from None


def _background(document: dict[str, Any], path: Path) -> float | None:
    try:
        return _finite(document["background_per_s"]) if document.get("under_load") is not None else None
    except _WRONG:
        raise InputError("what it says of its background is no probe's", where=Where(path)) from None


def _curve(document: dict[str, Any], source: str, path: Path) -> Curve | None:
    """As the probe fitted it, else from its points, else the cost per token alone."""
    try:
        told = (document.get("curve") or {}).get(source)
        if told:
            return Curve(*(_finite(part) for part in told))
        points = [point for point in document.get("points") or () if point["source"] == source]
        lengths = [_finite(point["prefix_tokens"]) for point in points]
        line = fit_cost(lengths, [_finite(point["ttft_s"]) for point in points], curved=source == "computed")
        if line is not None:
            return Curve(*(float(part) / 1000.0**power for power, part in enumerate(line.coefficients)))
        slope = document["cost_per_token_s"].get(source)
        return None if slope is None else Curve(0.0, _finite(slope))
    except _WRONG:
        raise InputError(f"what it says of the source {source!r} is no probe's", where=Where(path)) from None


def _suffixes(document: dict[str, Any], path: Path) -> dict[tuple[int, int], float]:
    try:
        return {
            (int(each["prefix_tokens"]), int(each["suffix_tokens"])): _finite(each["ttft_s"])
            for each in document.get("suffixes") or ()
        }
    except _WRONG:
        raise InputError("what it says of suffixes is no probe's", where=Where(path)) from None
