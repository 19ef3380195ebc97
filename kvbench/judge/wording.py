"""How the judge says figures: metrics by their usual names, numbers with units. Plain sentences, no layout."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from kvbench.spec.quantity import show_bytes, show_seconds

__all__ = ["TYPICAL_ROUND", "count", "listed", "quantile_name", "ratio", "share", "value", "what"]

_NAMES = {
    "ttft": "TTFT",
    "ttft_service": "TTFT from the actual send",
    "itl": "ITL",
    "tpot": "TPOT",
    "e2e": "E2E",
    "throughput_tokens": "output throughput",
}

TYPICAL_ROUND = "in a typical round"
"""What a latency budget is held against: the geometric mean of the rounds' quantiles."""


def quantile_name(quantile: float) -> str:
    """0.99 → p99, 0.999 → p99.9."""
    return f"p{quantile * 100:.6g}"


def what(metric: str, quantile: float | None = None, class_: str = "all", source: str | None = None) -> str:
    """`TTFT p99 of class long`."""
    words = _NAMES.get(metric, metric.replace("_", " "))
    if source is not None:
        words += f" from {source}"
    if quantile is not None:
        words += f" {quantile_name(quantile)}"
    return words if class_ == "all" else f"{words} of class {class_}"


def ratio(amount: float) -> str:
    """Three significant digits."""
    return f"{amount:.3g}"


def share(amount: float) -> str:
    """A fraction as per cent, three significant digits."""
    return f"{amount * 100:.3g} %"


def value(amount: float, unit: str | None) -> str:
    """A figure with its unit."""
    if not math.isfinite(amount):
        return "unbounded"
    if unit in _SHOW:
        return _SHOW[unit](amount)
    return f"{amount:.4g} {unit}" if unit else f"{amount:.4g}"


_SHOW: dict[str | None, Callable[[float], str]] = {
    "s": show_seconds,
    "bytes": show_bytes,
    "fraction": share,
    "tokens": lambda amount: f"{amount:,.0f} tokens",
    "cores": lambda amount: f"{amount:.2g} cores",
    "1/s": lambda amount: f"{amount:.4g}/s",
}


def count(number: int, noun: str, plural: str | None = None) -> str:
    """`1 round`, `3 rounds`; a plural that takes more than an s is given."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def listed(sentences: Sequence[str], most: int = 3) -> str:
    """The first few of several findings, and how many more there are."""
    text = "; ".join(sentences[:most])
    return text if len(sentences) <= most else f"{text}; and {len(sentences) - most} more"
